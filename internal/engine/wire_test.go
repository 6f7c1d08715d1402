package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/fixturetest"
)

// sameBits compares messages: an empty slice is a nil one, floats by their bits.
var sameBits = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
	cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }),
}

func fullRequest() *Request {
	return &Request{
		ID: "req-1", Attempt: 3, Model: "m", Salt: kv.Salt{LoRA: "adapter", Namespace: "tenant"},
		Prompt:    []kv.Token{0, 1, 127, 128, 300, math.MaxUint32},
		Media:     []kv.Media{{Hash: 1 << 63, Start: 1, End: 4}, {Hash: 0, Start: 0, End: 0}},
		Generated: [][]kv.Token{{5, 6}, {}, {7}},
		Done:      []bool{false, true, false},
		Choices:   3,
		Sampling: Sampling{
			Temperature: 0.7, TopK: -1, TopP: 0.9, MinP: 0.1, RepetitionPenalty: 1.1, PresencePenalty: -2,
			FrequencyPenalty: math.Copysign(0, -1), Seed: math.MaxUint64, Bias: []TokenBias{{9, -100}, {70000, 0.5}},
		},
		Stop:         Stop{MaxTokens: 128, MinTokens: 2, Tokens: []kv.Token{2, 50256}, IgnoreEOS: true},
		Logprobs:     -1,
		OutputSchema: &OutputSchema{Schema: []byte(`{"type":"object"}`)},
	}
}

func fullDelta() *Delta {
	return &Delta{
		Attempt: 2, Accepted: true, Choice: 1, Pos: 500, Tokens: []kv.Token{1, 200, 70000},
		Logprobs: []Logprob{
			{Token: 1, Logprob: -0.5, Top: []TokenLogprob{{1, -0.5}, {2, -1}}},
			{Token: 200, Logprob: float32(math.Inf(-1))},
			{Token: 70000, Logprob: -3, Top: []TokenLogprob{{4, -0.25}}},
		},
		Cached: 64, Finish: FinishLength,
	}
}

// TestRequestBytes pins the examples of docs/format/engine.md to the code.
func TestRequestBytes(t *testing.T) {
	plain := &Request{ID: "r1", Attempt: 1, Model: "m", Prompt: []kv.Token{1, 2, 300}, Choices: 1, Stop: Stop{MaxTokens: 5}, Logprobs: -1}
	if got, want := AppendRequest(nil, plain), documented(t, "    01 "); !bytes.Equal(got, want) {
		t.Errorf("encoded % x\nthe document says % x", got, want)
	}
	guided := *plain
	guided.OutputSchema = &OutputSchema{Schema: []byte(`{"type":"object"}`)}
	if got, want := AppendRequest(nil, &guided), documented(t, "    02 "); !bytes.Equal(got, want) {
		t.Errorf("with a guide: encoded % x\nthe document says % x", got, want)
	}
}

// documented returns the bytes of the example whose first line begins with
// prefix and names the version.
func documented(t *testing.T, prefix string) (want []byte) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/format/engine.md")
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(doc)) {
		if in = in || strings.Contains(line, "version\n") && strings.HasPrefix(line, prefix); !in {
			continue
		}
		if strings.TrimSpace(line) == "" {
			break
		}
		codes, _, _ := strings.Cut(strings.TrimSpace(line), "   ")
		b, err := hex.DecodeString(strings.ReplaceAll(codes, " ", ""))
		if err != nil {
			t.Fatalf("the example's line %q: %v", line, err)
		}
		want = append(want, b...)
	}
	return want
}

// documentedMessages returns the messages in hex, with single spaces, which docs/format/engine.md
// shows one to a line. A line which is indented further continues the message before it.
func documentedMessages(t *testing.T) map[string]bool {
	t.Helper()
	doc, err := os.ReadFile("../../docs/format/engine.md")
	if err != nil {
		t.Fatal(err)
	}
	messages, message := map[string]bool{}, ""
	for line := range strings.Lines(string(doc)) {
		code, indented := strings.CutPrefix(line, "    ")
		if indented && strings.HasPrefix(code, " ") && message != "" {
			delete(messages, message)
			message += " "
		} else {
			message = ""
		}
		if indented {
			message += strings.Join(strings.Fields(code), " ")
			messages[message] = true
		}
	}
	return messages
}

func TestRequestRoundTrip(t *testing.T) {
	for _, want := range []*Request{{}, fullRequest(), {FeaturesAt: Lent{Place: "p", Size: 1}}} {
		target := fullRequest() // old content must not remain
		target.Done = []bool{true, true, true, true}
		if err := DecodeRequest(AppendRequest(nil, want), target); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, target, sameBits); diff != "" {
			t.Error(diff)
		}
	}
}

func TestDeltaRoundTrip(t *testing.T) {
	for _, want := range []*Delta{{}, fullDelta(), refusedDelta()} {
		target := fullDelta()
		if err := DecodeDelta(AppendDelta(nil, want), target); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, target, sameBits); diff != "" {
			t.Error(diff)
		}
	}
}

func tokensGen() *rapid.Generator[[]kv.Token] {
	return rapid.SliceOfN(rapid.Map(rapid.Uint32(), func(v uint32) kv.Token { return kv.Token(v) }), 0, 20)
}

// TestRandomRoundTrip decodes a series of random messages into one target.
func TestRandomRoundTrip(t *testing.T) {
	var req Request
	var delta Delta
	rapid.Check(t, func(t *rapid.T) {
		tokens := tokensGen()
		n := rapid.IntRange(0, 4).Draw(t, "choices")
		i32 := rapid.Map(rapid.Int32(), func(v int32) int { return int(v) })
		want := &Request{
			ID: rapid.String().Draw(t, "id"), Attempt: rapid.Uint32().Draw(t, "attempt"), Model: rapid.String().Draw(t, "model"),
			Prompt: tokens.Draw(t, "prompt"), Choices: i32.Draw(t, "n"),
			Generated: rapid.SliceOfN(tokens, n, n).Draw(t, "generated"),
			Done:      rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "done"),
			Sampling:  Sampling{Temperature: rapid.Float64().Draw(t, "temperature"), Seed: rapid.Uint64().Draw(t, "seed")},
			Stop:      Stop{MaxTokens: i32.Draw(t, "max"), Tokens: tokens.Draw(t, "stop"), IgnoreEOS: rapid.Bool().Draw(t, "eos")},
			Logprobs:  rapid.IntRange(-1, 20).Draw(t, "logprobs"),
		}
		if rapid.Bool().Draw(t, "guided") {
			want.OutputSchema = &OutputSchema{Schema: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "schema")}
		}
		want.Hints = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "hints")
		want.Prefill.Pin = kv.WorkerID(rapid.Uint64Max(uint64(kv.MaxWorkerID)).Draw(t, "pin"))
		for range rapid.IntRange(0, MaxPrefillHolders).Draw(t, "holders") {
			want.Prefill.Holders = append(want.Prefill.Holders, kv.PrefixHolder{
				Worker: kv.WorkerID(rapid.Uint64Max(uint64(kv.MaxWorkerID)).Draw(t, "holder")), Tokens: rapid.IntRange(0, math.MaxInt32).Draw(t, "held"),
			})
		}
		if err := DecodeRequest(AppendRequest(nil, want), &req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &req, sameBits); diff != "" {
			t.Fatal(diff)
		}

		wantDelta := &Delta{Attempt: want.Attempt, Choice: n, Pos: want.Choices, Tokens: want.Prompt, Finish: Finish(n)}
		for _, token := range want.Stop.Tokens {
			l := Logprob{Token: token, Logprob: rapid.Float32().Draw(t, "logprob")}
			for _, alt := range want.Prompt {
				l.Top = append(l.Top, TokenLogprob{Token: alt, Logprob: l.Logprob})
			}
			wantDelta.Logprobs = append(wantDelta.Logprobs, l)
		}
		if err := DecodeDelta(AppendDelta(nil, wantDelta), &delta); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantDelta, &delta, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestLaterVersion adds fields that this version does not know.
func TestLaterVersion(t *testing.T) {
	later := func(b []byte) []byte {
		b = appendUint(b, 40, 1<<60)
		b = appendFixed(b, 41, 7)
		b = appendString(b, 1000, "a")
		return appendString(b, 1000, "b")
	}
	var r Request
	if err := DecodeRequest(later(AppendRequest(nil, fullRequest())), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullRequest(), &r, sameBits); diff != "" {
		t.Error(diff)
	}
	var d Delta
	if err := DecodeDelta(later(AppendDelta(nil, fullDelta())), &d); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullDelta(), &d, sameBits); diff != "" {
		t.Error(diff)
	}
}

func TestMalformed(t *testing.T) {
	var tooMany []byte
	for range MaxChoices + 1 {
		tooMany = appendPacked(tooMany, reqGenerated, nil)
	}
	for name, c := range map[string]struct {
		body []byte
		code fault.Code
	}{
		"empty":              {nil, fault.Invalid},
		"version":            {[]byte{6}, fault.Unimplemented},
		"version too low":    {[]byte{0}, fault.Unimplemented},
		"guide of version 1": {appendString([]byte{1}, reqSchema, "{}"), fault.Invalid},
		"version 2 for none": {[]byte{2}, fault.Invalid},
		"version 4 for none": {[]byte{4}, fault.Invalid},
		"version 5 for none": {[]byte{5}, fault.Invalid},
		"place in version 3": {appendString(appendString([]byte{3}, reqFeatures, "x"), reqPlace, "x"), fault.Invalid},
		"long place":         {appendString([]byte{5}, reqPlace, strings.Repeat("x", maxPlace+1)), fault.Invalid},
		"long hints":         {appendString([]byte{1}, reqHints, strings.Repeat(" ", MaxHints+1)), fault.Invalid},
		"long guide":         {appendString([]byte{2}, reqSchema, strings.Repeat(" ", MaxSchema+1)), fault.Invalid},
		"cut key":            {[]byte{1, 0x80}, fault.Invalid},
		"cut string":         {[]byte{1, reqID<<2 | kindBytes, 5, 'a'}, fault.Invalid},
		"huge length":        {append([]byte{1, reqPrompt<<2 | kindBytes}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), fault.Invalid},
		"overlong uvarint":   {append([]byte{1, reqAttempt<<2 | kindInt}, bytes.Repeat([]byte{0xff}, 11)...), fault.Invalid},
		"wrong kind":         {[]byte{1, reqID<<2 | kindInt, 1}, fault.Invalid},
		"unknown kind":       {[]byte{1, 60<<2 | 3, 1}, fault.Invalid},
		"field zero":         {[]byte{1, 0<<2 | kindInt, 1}, fault.Invalid},
		"descending":         {appendString(appendUint([]byte{1}, reqAttempt, 1), reqID, "x"), fault.Invalid},
		"twice":              {appendUint(appendUint([]byte{1}, reqAttempt, 1), reqAttempt, 1), fault.Invalid},
		"token of 33 bits":   {[]byte{1, reqPrompt<<2 | kindBytes, 5, 0x80, 0x80, 0x80, 0x80, 0x10}, fault.Invalid},
		"cut token":          {[]byte{1, reqPrompt<<2 | kindBytes, 2, 1, 0x80}, fault.Invalid},
		"attempt of 33 bits": {appendUint([]byte{1}, reqAttempt, 1<<32), fault.Invalid},
		"count of 33 bits":   {appendInt([]byte{1}, reqMaxTokens, 1<<31), fault.Invalid},
		"bool of two":        {appendUint([]byte{1}, reqIgnoreEOS, 2), fault.Invalid},
		"done of two":        {appendString([]byte{1}, reqDone, "\x02"), fault.Invalid},
		"long done":          {appendString([]byte{1}, reqDone, strings.Repeat("\x00", MaxChoices+1)), fault.Invalid},
		"too many choices":   {append([]byte{1}, tooMany...), fault.Invalid},
		"short media":        {appendString([]byte{1}, reqMedia, "12345678"), fault.Invalid},
		"long media":         {appendString([]byte{1}, reqMedia, "12345678\x00\x00\x00"), fault.Invalid},
		"pin of 54 bits":     {appendUint([]byte{1}, reqPin, 1<<53), fault.Invalid},
		"cut holder":         {appendString([]byte{1}, reqHolders, "\x01"), fault.Invalid},
		"nine holders":       {appendString([]byte{1}, reqHolders, strings.Repeat("\x01\x02", MaxPrefillHolders+1)), fault.Invalid},
		"holder of 54 bits":  {appendHolders([]byte{1}, reqHolders, []kv.PrefixHolder{{Worker: kv.MaxWorkerID + 1}}), fault.Invalid},
		"holds 2^31 tokens":  {appendHolders([]byte{1}, reqHolders, []kv.PrefixHolder{{Tokens: 1 << 31}}), fault.Invalid},
		"cut bias":           {appendString([]byte{1}, reqBias, "\x01123"), fault.Invalid},
	} {
		if err := DecodeRequest(c.body, new(Request)); err == nil || fault.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	if err := DecodeDelta([]byte{2}, new(Delta)); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("a delta of the version of guides: %v", err)
	}
	for name, body := range map[string][]byte{
		"finish of 9 bits":  appendUint([]byte{1}, deltaFinish, 256),
		"more alternatives": appendString([]byte{1}, deltaLogprobs, "\x011234\x02\x011234"),
		"huge alternatives": appendString([]byte{1}, deltaLogprobs, "\x011234\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
	} {
		if err := DecodeDelta(body, new(Delta)); fault.CodeOf(err) != fault.Invalid || err == nil {
			t.Errorf("%s: %v, want %v", name, err, fault.Invalid)
		}
	}
}

// TestErrorsKeepSecrets checks that an error does not contain the content of a broken message.
func TestErrorsKeepSecrets(t *testing.T) {
	b := AppendRequest(nil, &Request{ID: "secret-id", Model: "secret-model", Prompt: []kv.Token{777777}})
	for cut := range len(b) {
		err := DecodeRequest(b[:cut], new(Request))
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "777777")) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestAllocations(t *testing.T) {
	req, delta := fullRequest(), fullDelta()
	req.Generated, req.Done = nil, nil // a first attempt, the common case
	buf := make([]byte, 0, 1<<10)
	var rt Request
	var dt Delta
	for name, f := range map[string]func(){
		"AppendRequest": func() { buf = AppendRequest(buf[:0], req) },
		"AppendDelta":   func() { buf = AppendDelta(buf[:0], delta) },
		"DecodeRequest": func() {
			if err := DecodeRequest(AppendRequest(buf[:0], req), &rt); err != nil {
				t.Fatal(err)
			}
		},
		"DecodeDelta": func() {
			if err := DecodeDelta(AppendDelta(buf[:0], delta), &dt); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times, want 0", name, n)
		}
	}
}

// TestHostileCounts checks that a decoder's allocations are bounded by the size of its input.
func TestHostileCounts(t *testing.T) {
	// A prompt that claims 2^62 bytes and has none.
	hostile := append([]byte{wireVersion, reqPrompt<<2 | kindBytes}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f)
	const runs = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		_ = DecodeRequest(hostile, new(Request))
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / runs; n > 4096 {
		t.Errorf("an 11-byte message made the decoder allocate %d bytes", n)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendRequest(nil, fullRequest()))
	f.Add(AppendRequest(nil, &Request{}))
	f.Add(AppendRequest(nil, &Request{OutputSchema: &OutputSchema{}}))
	f.Add(AppendRequest(nil, seeing(nil)))
	f.Add([]byte{wireVersion, 60 << 2, 1})
	f.Add(AppendRequest(nil, processed()))
	f.Add(AppendRequest(nil, &Request{Split: fullSplit()}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Request
		if DecodeRequest(b, &r) != nil {
			return
		}
		if n := 5*len(b) + 3*MaxChoices; len(r.Prompt)+len(r.Media)+len(r.Sampling.Bias)+len(r.Generated)+len(r.Done) > n {
			t.Fatalf("%d bytes decode to more than %d elements", len(b), n)
		}
		if err := DecodeRequest(AppendRequest(nil, &r), &again); err != nil {
			t.Fatalf("the encoding of a decoded request is refused: %v", err)
		}
		if diff := cmp.Diff(&r, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodeDelta(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendDelta(nil, fullDelta()))
	f.Add(AppendDelta(nil, &Delta{}))
	f.Add(AppendDelta(nil, refusedDelta()))
	f.Add(AppendDelta(nil, &Delta{Split: fullSplitReport()}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, again Delta
		if DecodeDelta(b, &d) != nil {
			return
		}
		if err := DecodeDelta(AppendDelta(nil, &d), &again); err != nil {
			t.Fatalf("the encoding of a decoded delta is refused: %v", err)
		}
		if diff := cmp.Diff(&d, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func BenchmarkDelta(b *testing.B) {
	d, buf := &Delta{Attempt: 1, Pos: 100, Tokens: []kv.Token{50256}}, []byte(nil)
	b.ReportAllocs()
	for range b.N {
		buf = AppendDelta(buf[:0], d)
		if err := DecodeDelta(buf, d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	// Enough tokens, in random order, to defeat branch prediction.
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]kv.Token, 1<<20)
	for i := range all {
		all[i] = kv.Token(random.Uint32N(128_000) >> random.Uint32N(6))
	}
	r, back, buf := &Request{ID: "r", Attempt: 1, Model: "m", Choices: 1}, new(Request), []byte(nil)
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		at := n * 512 % len(all)
		r.Prompt = all[at : at+512]
		buf = AppendRequest(buf[:0], r)
		if err := DecodeRequest(buf, back); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(buf))/512, "bytes/token")
}

// TestPackedTokens compares tokens of every length with what encoding/binary writes and reads.
func TestPackedTokens(t *testing.T) {
	var tokens []kv.Token
	for bit := range 32 {
		for _, d := range []int64{-1, 0, 1} {
			tokens = append(tokens, kv.Token(min(max(int64(1)<<bit+d, 0), math.MaxUint32)))
		}
	}
	for i := range uint32(1000) {
		x := i * 2654435761
		tokens = append(tokens, kv.Token(x>>(x%29)))
	}
	for n := range len(tokens) {
		some := tokens[len(tokens)-n:]
		var want []byte
		for _, t := range some {
			want = binary.AppendUvarint(want, uint64(t))
		}
		want = append(binary.AppendUvarint(appendKey([]byte("x"), 5, kindBytes), uint64(len(want))), want...)
		got := appendPacked([]byte("x"), 5, some)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d tokens: %x, want %x", n, got, want)
		}
		r := wireReader{rest: got[1:], minField: 1}
		if !r.nextField() || r.field != 5 {
			t.Fatal("no field")
		}
		if back := r.readTokens([]kv.Token{7}); r.err() != nil || !slices.Equal(back[1:], some) || back[0] != 7 {
			t.Fatalf("%d tokens came back as %v: %v", n, back, r.err())
		}
	}
}

// FuzzPackedTokens compares the tokens read from any bytes with encoding/binary.
func FuzzPackedTokens(f *testing.F) {
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0x80, 0, 1, 2, 0x80, 0x80, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		var want []kv.Token
		ok := true
		for rest := b; len(rest) > 0; {
			v, n := binary.Uvarint(rest)
			if n <= 0 || v > math.MaxUint32 {
				ok = false
				break
			}
			want, rest = append(want, kv.Token(v)), rest[n:]
		}
		r := wireReader{kind: kindBytes, rest: append(binary.AppendUvarint(nil, uint64(len(b))), b...)}
		got := r.readTokens(nil)
		if r.failed == ok || ok && !slices.Equal(got, want) {
			t.Fatalf("%x: %v, bad %v, want %v, good %v", b, got, r.failed, want, ok)
		}
	})
}
