package engine

import (
	"encoding/hex"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

func fullBlocks() *BlockHandoff {
	return &BlockHandoff{
		Worker: kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, Epoch: 1 << 63, Start: 64, End: 128,
		Layout:     KVLayout{BlockSize: 16, BlockBytes: 8192, Type: media.BFloat16, Numerics: "n"},
		Descriptor: []byte{9, 8, 7},
	}
}

func fullHandoff() *Handoff {
	return &Handoff{Opaque: []byte(`{"remote_request_id":"x"}`), Blocks: fullBlocks()}
}

func inlineRows() *media.EncoderRows {
	return &media.EncoderRows{
		Shape: []int{2, 3}, Type: media.BFloat16, Grid: [3]int{1, 2, 4}, Encoder: "e",
		Digest: []byte{1, 2}, Data: []byte("twelve bytes"),
	}
}

func handleRows() *media.EncoderRows {
	return &media.EncoderRows{Shape: []int{3, 2, 3}, Type: media.Float32, Handle: []byte{5}}
}

// legRequest returns a request of a decode leg with a handoff and encoded objects.
func legRequest() *Request {
	r := seeing(&OutputSchema{Schema: []byte("{}")})
	r.Objects[0].Rows, r.Objects[1].Rows = inlineRows(), handleRows()
	r.Leg, r.Handoff = LegDecode, fullHandoff()
	return r
}

func fullEncode() *EncodeRequest {
	return &EncodeRequest{ID: "r1", Attempt: 2, Model: "m", Namespace: "tenant", Encoder: "e", Inline: true, Objects: fullObjects()}
}

func fullEncoded() *Encoded {
	return &Encoded{Attempt: 2, Object: 1, Cached: true, Rows: *inlineRows()}
}

func fullPrefill() *PrefillRequest {
	return &PrefillRequest{
		ID: "r1", Attempt: 2, Model: "m", Decode: kv.Worker{ID: 7, Rank: 1}, Epoch: 3, Addr: "127.0.0.1:7001",
		Handle: []byte{1}, Tokens: 300, Held: 16, Budget: 2000, Into: *fullBlocks(),
	}
}

func fullPrefilled() *Prefilled {
	return &Prefilled{Attempt: 2, Computed: 284, Cached: 16, Blocks: 18, Bytes: 1 << 40, Done: true, Digest: []byte{1, 2}}
}

func fullPull() *PullRequest {
	return &PullRequest{ID: "r1", Attempt: 2, Epoch: 3, Handle: []byte{1}, From: *fullBlocks()}
}

func fullPulled() *Pulled {
	return &Pulled{Attempt: 2, Budget: 2000, Data: []byte{3}, Last: true, Total: 1 << 40}
}

func fullFetch() *FetchRequest {
	return &FetchRequest{ID: "r1", Attempt: 2, Handle: []byte{1}, Into: []byte{2}}
}

func fullFetched() *Fetched {
	return &Fetched{Attempt: 2, Data: []byte{3}, Last: true, Total: 1 << 40, Digest: []byte{1, 2}}
}

// legMessages returns the messages of legVersion with their codecs, for the tests of all messages.
func legMessages() map[string]message {
	delta := &Delta{Attempt: 1, Finish: FinishLength, Handoff: fullHandoff()}
	cachedOnly := &EncodeRequest{ID: "r1", Attempt: 1, Model: "m", Objects: fullObjects()[:1], CachedOnly: true}
	loaded := &Encoded{Attempt: 1, Rows: *handleRows(), Load: 3}
	giveUp := func(p *Prefilled) {
		p.Epoch, p.By, p.ByEpoch, p.GaveUp = 3, kv.Worker{ID: 9, Rank: 1}, 1<<63, GaveUpIncompatible
	}
	progress := changed(fullPrefilled(), giveUp)
	claimed := changed(fullPrefilled(), func(p *Prefilled) { giveUp(p); p.Claim, p.Handle = 1<<63+5, []byte{1} })
	timed := changed(fullPrefilled(), func(p *Prefilled) { p.Epoch, p.SendDelay = 3, 1500 })
	pulled := changed(fullPulled(), func(p *Pulled) { p.Claim = 1<<63 + 5 })
	ordered := changed(fullPrefill(), func(r *PrefillRequest) { r.Into.Layout.Order = "k-v" })
	handedOff := &Encoded{Attempt: 1, Object: 2, Cached: true, Load: 1, Handoff: []byte(`{"ab":{"item_indices":[0]}}`)}
	return map[string]message{
		"request-leg": {
			legRequest(), func(b []byte) (any, error) { got := new(Request); return got, DecodeRequest(b, got) },
			func() []byte { return AppendRequest(nil, legRequest()) },
		},
		"delta-handoff": {
			delta, func(b []byte) (any, error) { got := new(Delta); return got, DecodeDelta(b, got) },
			func() []byte { return AppendDelta(nil, delta) },
		},
		"encode": {
			fullEncode(), func(b []byte) (any, error) { got := new(EncodeRequest); return got, DecodeEncodeRequest(b, got) },
			func() []byte { return AppendEncodeRequest(nil, fullEncode()) },
		},
		"encoded": {
			fullEncoded(), func(b []byte) (any, error) { got := new(Encoded); return got, DecodeEncoded(b, got) },
			func() []byte { return AppendEncoded(nil, fullEncoded()) },
		},
		"encode-cached": {
			cachedOnly, func(b []byte) (any, error) { got := new(EncodeRequest); return got, DecodeEncodeRequest(b, got) },
			func() []byte { return AppendEncodeRequest(nil, cachedOnly) },
		},
		"encoded-load": {
			loaded, func(b []byte) (any, error) { got := new(Encoded); return got, DecodeEncoded(b, got) },
			func() []byte { return AppendEncoded(nil, loaded) },
		},
		"encoded-handoff": {
			handedOff, func(b []byte) (any, error) { got := new(Encoded); return got, DecodeEncoded(b, got) },
			func() []byte { return AppendEncoded(nil, handedOff) },
		},
		"prefill-order": {
			ordered, func(b []byte) (any, error) { got := new(PrefillRequest); return got, DecodePrefillRequest(b, got) },
			func() []byte { return AppendPrefillRequest(nil, ordered) },
		},
		"prefill": {
			fullPrefill(), func(b []byte) (any, error) { got := new(PrefillRequest); return got, DecodePrefillRequest(b, got) },
			func() []byte { return AppendPrefillRequest(nil, fullPrefill()) },
		},
		"prefilled": {
			fullPrefilled(), func(b []byte) (any, error) { got := new(Prefilled); return got, DecodePrefilled(b, got) },
			func() []byte { return AppendPrefilled(nil, fullPrefilled()) },
		},
		"progress": {
			progress, func(b []byte) (any, error) { got := new(Prefilled); return got, DecodePrefilled(b, got) },
			func() []byte { return AppendPrefilled(nil, progress) },
		},
		"progress-claim": {
			claimed, func(b []byte) (any, error) { got := new(Prefilled); return got, DecodePrefilled(b, got) },
			func() []byte { return AppendPrefilled(nil, claimed) },
		},
		"prefilled-delay": {
			timed, func(b []byte) (any, error) { got := new(Prefilled); return got, DecodePrefilled(b, got) },
			func() []byte { return AppendPrefilled(nil, timed) },
		},
		"pull": {
			fullPull(), func(b []byte) (any, error) { got := new(PullRequest); return got, DecodePullRequest(b, got) },
			func() []byte { return AppendPullRequest(nil, fullPull()) },
		},
		"pulled": {
			fullPulled(), func(b []byte) (any, error) { got := new(Pulled); return got, DecodePulled(b, got) },
			func() []byte { return AppendPulled(nil, fullPulled()) },
		},
		"pulled-claim": {
			pulled, func(b []byte) (any, error) { got := new(Pulled); return got, DecodePulled(b, got) },
			func() []byte { return AppendPulled(nil, pulled) },
		},
		"fetch": {
			fullFetch(), func(b []byte) (any, error) { got := new(FetchRequest); return got, DecodeFetchRequest(b, got) },
			func() []byte { return AppendFetchRequest(nil, fullFetch()) },
		},
		"fetched": {
			fullFetched(), func(b []byte) (any, error) { got := new(Fetched); return got, DecodeFetched(b, got) },
			func() []byte { return AppendFetched(nil, fullFetched()) },
		},
	}
}

// TestLegVersion checks that older readers refuse every message that they would misunderstand, and that a request
// without a leg keeps its version.
func TestLegVersion(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"a leg":     func(r *Request) { r.Leg = LegPrefill },
		"a handoff": func(r *Request) { r.Handoff = fullHandoff() },
		"rows":      func(r *Request) { r.Media, r.Objects = make([]kv.Media, 1), []media.Object{{Rows: handleRows()}} },
	} {
		r := fullRequest()
		change(r)
		b := AppendRequest(nil, r)
		if b[0] != legVersion {
			t.Errorf("%s: version %d", name, b[0])
		}
		if _, err := newReader("request", b, mediaVersion); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("%s: a reader of version %d says %v", name, mediaVersion, err)
		}
		for version := byte(wireVersion); version < legVersion; version++ {
			b[0] = version
			if err := DecodeRequest(b, new(Request)); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%s in version %d: %v", name, version, err)
			}
		}
	}
	if b := AppendRequest(nil, seeing(nil)); b[0] != mediaVersion {
		t.Errorf("objects without rows have version %d", b[0])
	}
}

func TestMalformedLegMessages(t *testing.T) {
	field := func(number uint64, content []byte) []byte { return appendLenBytes([]byte{legVersion}, number, content) }
	rows := func(change func(*media.EncoderRows)) []byte {
		r := inlineRows()
		change(r)
		c := wireCodec{dst: []byte{legVersion}}
		c.codeRows(4, r)
		return c.dst
	}
	grid := func(dimensions ...int) []byte {
		c, inner := wireCodec{dst: []byte{legVersion}}, func(c *wireCodec) { c.codeShape(3, &dimensions) }
		c.codeMessage(4, inner)
		return c.dst
	}
	for name, b := range map[string][]byte{
		"nothing of its version":   {legVersion},
		"a leg of two bytes":       appendUint([]byte{legVersion}, 30, 256),
		"an empty opaque handoff":  field(31, appendLenBytes(nil, 1, nil)),
		"a worker beyond 2^53":     field(31, appendLenBytes(nil, 2, appendUint(nil, 1, 1<<53))),
		"a handoff beyond its end": {legVersion, 31<<2 | kindBytes, 5},
		"a large descriptor":       field(31, appendLenBytes(nil, 2, appendBytes(nil, 10, make([]byte, MaxDescriptor+1)))),
		"large numerics":           field(31, appendLenBytes(nil, 2, appendString(nil, 9, strings.Repeat("n", maxNumerics+1)))),
	} {
		if err := DecodeRequest(b, new(Request)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("request, %s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{
		"no rows":            {legVersion, 1 << 2, 1},
		"data and a handle":  rows(func(r *media.EncoderRows) { r.Handle = []byte{1} }),
		"neither":            rows(func(r *media.EncoderRows) { r.Data = nil }),
		"too few data":       rows(func(r *media.EncoderRows) { r.Data = r.Data[1:] }),
		"no type":            rows(func(r *media.EncoderRows) { r.Type = 0 }),
		"an unknown type":    rows(func(r *media.EncoderRows) { r.Type = 9 }),
		"no shape":           rows(func(r *media.EncoderRows) { r.Shape = nil }),
		"a dimension of 0":   rows(func(r *media.EncoderRows) { r.Shape = []int{0, 6} }),
		"more than fit":      rows(func(r *media.EncoderRows) { r.Shape, r.Data, r.Handle = []int{1 << 20, 1 << 20}, nil, []byte{1} }),
		"a grid of two":      grid(1, 2),
		"a grid of four":     grid(1, 2, 3, 4),
		"a long digest":      rows(func(r *media.EncoderRows) { r.Digest = make([]byte, maxDigest+1) }),
		"a large handle":     rows(func(r *media.EncoderRows) { r.Data, r.Handle = nil, make([]byte, MaxHandle+1) }),
		"a long fingerprint": rows(func(r *media.EncoderRows) { r.Encoder = strings.Repeat("e", maxEncoder+1) }),
		"object 256":         appendInt([]byte{legVersion}, 2, MaxObjects),
		"object -1":          appendInt([]byte{legVersion}, 2, -1),
		"a load of -1":       appendInt(rows(func(*media.EncoderRows) {}), 5, -1),
		"rows and a handoff": appendString(rows(func(*media.EncoderRows) {}), 6, "{}"),
		"an empty handoff":   field(6, nil),
		"a large handoff":    field(6, make([]byte, MaxOpaque+1)),
	} {
		if err := DecodeEncoded(b, new(Encoded)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("encoded, %s: %v", name, err)
		}
	}
	if err := DecodeFetched(appendBytes([]byte{legVersion}, 2, make([]byte, MaxPiece+1)), new(Fetched)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a large piece: %v", err)
	}
	if err := DecodePulled(appendBytes([]byte{legVersion}, 3, make([]byte, MaxPiece+1)), new(Pulled)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a large piece of a prompt: %v", err)
	}
	if err := DecodePulled(appendInt([]byte{legVersion}, 2, -1), new(Pulled)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a negative budget: %v", err)
	}
	// A rejected length must not be allocated: the field claims 256 MiB and has none of them.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := DecodeFetchRequest([]byte{legVersion, 3<<2 | kindBytes, 0xff, 0xff, 0xff, 0x7f}, new(FetchRequest))
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err == nil || n > 1<<20 {
		t.Errorf("%d bytes allocated for a length that is not there: %v", n, err)
	}
}

func TestValidateLegs(t *testing.T) {
	valid := legRequest()
	if err := valid.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Request){
		"an unknown leg":        func(r *Request) { r.Leg = lastLeg + 1 },
		"an empty handoff":      func(r *Request) { r.Handoff = &Handoff{} },
		"a large handoff":       func(r *Request) { r.Handoff.Opaque = make([]byte, MaxOpaque+1) },
		"no tokens":             func(r *Request) { r.Handoff.Blocks.End = r.Handoff.Blocks.Start },
		"a negative start":      func(r *Request) { r.Handoff.Blocks.Start = -1 },
		"blocks of no tokens":   func(r *Request) { r.Handoff.Blocks.Layout.BlockSize = 0 },
		"blocks of no bytes":    func(r *Request) { r.Handoff.Blocks.Layout.BlockBytes = 0 },
		"blocks without a type": func(r *Request) { r.Handoff.Blocks.Layout.Type = 0 },
		"a large descriptor":    func(r *Request) { r.Handoff.Blocks.Descriptor = make([]byte, MaxDescriptor+1) },
		"a worker beyond 2^53":  func(r *Request) { r.Handoff.Blocks.Worker.ID = kv.MaxWorkerID + 1 },
	} {
		r := legRequest()
		change(r)
		if err := r.Validate(); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	type validator interface{ Validate() error }
	for name, tc := range map[string]struct {
		message validator
		valid   bool
	}{
		"encode":                     {fullEncode(), true},
		"encode nothing":             {&EncodeRequest{Attempt: 1}, false},
		"encode too much":            {&EncodeRequest{Attempt: 1, Objects: make([]media.Object, MaxObjects+1)}, false},
		"encode, attempt 0":          {&EncodeRequest{Objects: fullObjects()}, false},
		"prefill":                    {fullPrefill(), true},
		"prefill, attempt 0":         {&PrefillRequest{}, false},
		"prefill what is held":       {changed(fullPrefill(), func(r *PrefillRequest) { r.Held = r.Tokens }), false},
		"prefill without an address": {changed(fullPrefill(), func(r *PrefillRequest) { r.Addr = "" }), false},
		"prefill without a handle":   {changed(fullPrefill(), func(r *PrefillRequest) { r.Handle = nil }), false},
		"prefill in negative time":   {changed(fullPrefill(), func(r *PrefillRequest) { r.Budget = -1 }), false},
		"prefill in a long order":    {changed(fullPrefill(), func(r *PrefillRequest) { r.Into.Layout.Order = strings.Repeat("o", maxOrder+1) }), false},
		"prefill into nothing":       {changed(fullPrefill(), func(r *PrefillRequest) { r.Into = BlockHandoff{} }), false},
		"pull":                       {fullPull(), true},
		"pull, attempt 0":            {changed(fullPull(), func(r *PullRequest) { r.Attempt = 0 }), false},
		"pull without a handle":      {changed(fullPull(), func(r *PullRequest) { r.Handle = nil }), false},
		"pull without a source":      {changed(fullPull(), func(r *PullRequest) { r.From = BlockHandoff{} }), false},
		"fetch":                      {fullFetch(), true},
		"fetch, attempt 0":           {changed(fullFetch(), func(r *FetchRequest) { r.Attempt = 0 }), false},
		"fetch without a handle":     {changed(fullFetch(), func(r *FetchRequest) { r.Handle = nil }), false},
		"fetch into too much":        {changed(fullFetch(), func(r *FetchRequest) { r.Into = make([]byte, MaxDescriptor+1) }), false},
	} {
		if err := tc.message.Validate(); (err == nil) != tc.valid || err != nil && fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func changed[T any](v *T, change func(*T)) *T {
	change(v)
	return v
}

// TestLegMessageBytes pins the examples of docs/format/engine.md to the code.
func TestLegMessageBytes(t *testing.T) {
	all := documentedMessages(t)
	for name, b := range map[string][]byte{
		"handoff":                AppendDelta(nil, &Delta{Attempt: 1, Finish: FinishLength, Handoff: &Handoff{Opaque: []byte(`{"a":1}`)}}),
		"encode":                 AppendEncodeRequest(nil, &EncodeRequest{ID: "r1", Attempt: 1, Model: "m", Objects: []media.Object{{Kind: media.Image}}}),
		"encoded":                AppendEncoded(nil, &Encoded{Attempt: 1, Rows: media.EncoderRows{Shape: []int{1, 2}, Type: media.Float16, Data: []byte{1, 2, 3, 4}}}),
		"encoded with a handoff": AppendEncoded(nil, &Encoded{Attempt: 1, Handoff: []byte(`{"a":{}}`)}),
		"prefill": AppendPrefillRequest(nil, &PrefillRequest{
			ID: "r1", Attempt: 1, Model: "m", Decode: kv.Worker{ID: 7}, Epoch: 3, Addr: "a:1", Handle: []byte{5}, Tokens: 3,
			Into: BlockHandoff{Worker: kv.Worker{ID: 7}, Epoch: 3, End: 3, Layout: KVLayout{BlockSize: 16, BlockBytes: 64, Type: media.Float32}},
		}),
		"prefilled": AppendPrefilled(nil, &Prefilled{Attempt: 1, Blocks: 1, Bytes: 64, Done: true, Epoch: 3, By: kv.Worker{ID: 9}, ByEpoch: 4}),
		"pull": AppendPullRequest(nil, &PullRequest{
			ID: "r1", Attempt: 1, Epoch: 3, Handle: []byte{5},
			From: BlockHandoff{Worker: kv.Worker{ID: 9}, Epoch: 4, End: 3, Layout: KVLayout{BlockSize: 16, BlockBytes: 64, Type: media.Float32}},
		}),
		"pulled":  AppendPulled(nil, &Pulled{Attempt: 1, Budget: 2000, Data: []byte("hi"), Last: true, Total: 2}),
		"fetch":   AppendFetchRequest(nil, &FetchRequest{ID: "r1", Attempt: 1, Handle: []byte{5}}),
		"fetched": AppendFetched(nil, &Fetched{Attempt: 1, Data: []byte("hi"), Last: true, Total: 2}),
	} {
		digits := hex.EncodeToString(b)
		var spaced []string
		for i := 0; i < len(digits); i += 2 {
			spaced = append(spaced, digits[i:i+2])
		}
		if code := strings.Join(spaced, " "); !all[code] {
			t.Errorf("docs/format/engine.md does not show %s: %s", name, code)
		}
	}
}

// FuzzDecodeLegMessages holds that what any decoder of these messages accepts is written and read again as it is.
func FuzzDecodeLegMessages(f *testing.F) {
	for _, m := range legMessages() {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkReencoding(t, b, DecodeRequest, AppendRequest)
		checkReencoding(t, b, DecodeDelta, AppendDelta)
		checkReencoding(t, b, DecodeEncodeRequest, AppendEncodeRequest)
		checkReencoding(t, b, DecodeEncoded, AppendEncoded)
		checkReencoding(t, b, DecodePrefillRequest, AppendPrefillRequest)
		checkReencoding(t, b, DecodePrefilled, AppendPrefilled)
		checkReencoding(t, b, DecodePullRequest, AppendPullRequest)
		checkReencoding(t, b, DecodePulled, AppendPulled)
		checkReencoding(t, b, DecodeFetchRequest, AppendFetchRequest)
		checkReencoding(t, b, DecodeFetched, AppendFetched)
	})
}

func checkReencoding[T any](t *testing.T, b []byte, decode func([]byte, *T) error, encode func([]byte, *T) []byte) {
	t.Helper()
	var v, again T
	if decode(b, &v) != nil {
		return
	}
	if err := decode(encode(nil, &v), &again); err != nil {
		t.Fatalf("the encoding of a decoded %T is refused: %v", v, err)
	}
	if diff := cmp.Diff(&v, &again, sameBits); diff != "" {
		t.Fatal(diff)
	}
}
