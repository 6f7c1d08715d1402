package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/fixturetest"
)

func goodCard() Card {
	return Card{
		Name: "penstock-tiny", Aliases: []string{"tiny"}, Engine: "tiny", BlockSize: 16, Blocks: 1024, Ranks: 1,
		ContextLength: 8192, VocabSize: 2048, DefaultMaxTokens: 128, EOS: []kv.Token{1, 2},
		Defaults: Sampling{Temperature: 0.7, TopP: 0.9}, Numerics: "abc", StructuredOutput: true, Tokenizer: TokenizerRef{Kind: "builtin"},
	}
}

func TestCardRoundTrip(t *testing.T) {
	want := goodCard()
	b, err := EncodeCard(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeCard([]byte(strings.Replace(string(b), "{", `{"of_a_later_version":[1],`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !got.HasName("tiny") || !got.HasName("penstock-tiny") || got.HasName("") || got.HasName("other") {
		t.Error("Names does not follow name and aliases")
	}
}

// exchange is what a worker states which exchanges KV blocks.
func exchange() *disagg.Metadata {
	return &disagg.Metadata{
		Epoch: 7, Transports: []disagg.TransportAddress{{Name: "tcp", Address: "10.0.0.5:4000"}}, BlockSize: 16, TokenBytes: 512,
		Layout: "order", Type: "f32", Numerics: "abc",
	}
}

// TestCardExchange: how a worker exchanges KV blocks is on its card, no part of its checksum, and bounded.
func TestCardExchange(t *testing.T) {
	for _, role := range []Role{RoleDecode, RolePrefill} {
		c := goodCard()
		c.Role = role
		before := c.Checksum()
		c.Exchange = exchange()
		b, err := EncodeCard(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeCard(b); err != nil || cmp.Diff(c, got) != "" || got.Checksum() != before {
			t.Errorf("%s: %v %s", role, err, cmp.Diff(c, got))
		}
		if _, unused := c.UnusedRoleWarning(); unused {
			t.Errorf("%s: its role is said to serve nothing", role)
		}
	}
	for name, change := range map[string]func(*Card){
		"aggregated":     func(c *Card) { c.Role = RoleAggregated },
		"no epoch":       func(c *Card) { c.Exchange.Epoch = 0 },
		"no way":         func(c *Card) { c.Exchange.Transports = nil },
		"long":           func(c *Card) { c.Exchange.Layout = strings.Repeat("x", 1<<13) },
		"other numerics": func(c *Card) { c.Numerics = "def" },
		"other encoder":  func(c *Card) { c.Encoder, c.Exchange.Numerics = "e", "abc+f" },
		"no encoder":     func(c *Card) { c.Encoder = "e" },
	} {
		c := goodCard()
		c.Role, c.Exchange = RoleDecode, exchange()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "exchange") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCardReportsEverything breaks every rule at once.
func TestCardReportsEverything(t *testing.T) {
	c := Card{
		Name: "a\nb", Aliases: []string{""}, BlockSize: 1, Blocks: -1, DefaultMaxTokens: -1, VocabSize: -1,
		EOS: []kv.Token{1}, Defaults: Sampling{TopP: math.NaN()}, Role: "planner", Router: true,
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"name", "alias", "block_size", "blocks", "ranks", "context_length", "vocab_size", "default_max_tokens", "eos token 1", "defaults: top_p",
		`not "planner"`, "a router process has no role",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in:\n%v", want, err)
		}
	}
	if _, err := EncodeCard(c); err == nil {
		t.Error("an invalid card was encoded")
	}
}

func TestCardBounds(t *testing.T) {
	c := goodCard()
	for range maxAliases {
		c.Aliases = append(c.Aliases, "alias")
	}
	if err := c.Validate(); err == nil {
		t.Error("too many aliases were accepted")
	}
	c = goodCard()
	c.Numerics = strings.Repeat("x", MaxCardBytes)
	if _, err := EncodeCard(c); err == nil {
		t.Error("an oversize card was encoded")
	}
	if _, err := DecodeCard(make([]byte, MaxCardBytes+1)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("an oversize card: %v", err)
	}
	if _, err := DecodeCard([]byte(`{"name":"m"}`)); err == nil {
		t.Error("a card without the required fields was decoded")
	}
}

func FuzzDecodeCard(f *testing.F) {
	fixturetest.AddCorpus(f)
	b, err := EncodeCard(goodCard())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(strings.Replace(string(b), `"block_size"`, `"role":"decode","block_size"`, 1)))
	f.Add([]byte(`{"name":"m","role":"prefill","block_size":16,"ranks":1,"context_length":9,"vocab_size":9,"numerics":"n","exchange":{"epoch":1,"transports":[{"name":"tcp"}],"block_size":16,"token_bytes":4,"layout":"o","type":"f32","numerics":"n"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCard(b)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("decoded an invalid card: %v", err)
		}
		sealed, err := EncodeCard(c)
		if err != nil {
			return // escapes may make it longer
		}
		again, err := DecodeCard(sealed)
		if err != nil || again.DescribeDifference(&c) != "" {
			t.Fatalf("became another card: %v, %s", err, again.DescribeDifference(&c))
		}
	})
}

func TestRequestValidate(t *testing.T) {
	good := func() *Request {
		r := fullRequest()
		r.Media = r.Media[:1]
		return r
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for param, breakIt := range map[string]func(*Request){
		"attempt":     func(r *Request) { r.Attempt = 0 },
		"prompt":      func(r *Request) { r.Prompt = nil },
		"n":           func(r *Request) { r.Choices = MaxChoices + 1 },
		"generated":   func(r *Request) { r.Generated = r.Generated[:1] },
		"done":        func(r *Request) { r.Done = r.Done[:1] },
		"max_tokens":  func(r *Request) { r.Stop.MaxTokens = 0 },
		"logprobs":    func(r *Request) { r.Logprobs = -2 },
		"min_tokens":  func(r *Request) { r.Stop.MinTokens = 1 << 31 },
		"top_k":       func(r *Request) { r.Sampling.TopK = 1 << 31 },
		"media":       func(r *Request) { r.Media[0].End = len(r.Prompt) + 1 },
		"temperature": func(r *Request) { r.Sampling.Temperature = math.NaN() },
		"top_p":       func(r *Request) { r.Sampling.TopP = math.Inf(1) },
		SchemaParam:   func(r *Request) { r.OutputSchema.Schema = []byte("{") },
		"logit_bias":  func(r *Request) { r.Sampling.Bias[0].Bias = float32(math.Inf(-1)) },
	} {
		r := good()
		breakIt(r)
		err, ok := r.Validate().(*fault.Error)
		if !ok || err.Code != fault.Invalid || err.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
}

func TestGuideValidate(t *testing.T) {
	for name, schema := range map[string]string{
		"empty": "", "not JSON": "{]", "two values": "{}{}", "too long": `"` + strings.Repeat("x", MaxSchema-1) + `"`,
	} {
		r := Request{Attempt: 1, Prompt: []kv.Token{1}, Choices: 1, Stop: Stop{MaxTokens: 1}, OutputSchema: &OutputSchema{Schema: []byte(schema)}}
		err, ok := r.Validate().(*fault.Error)
		if !ok || err.Code != fault.Invalid || err.Param != SchemaParam {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&OutputSchema{Schema: []byte(`"` + strings.Repeat("x", MaxSchema-2) + `"`)}).validate(); err != nil {
		t.Errorf("the longest: %v", err)
	}
	if err, ok := RefuseSchema().(*fault.Error); !ok || err.Code != fault.Unimplemented || err.Param != SchemaParam {
		t.Errorf("refused with %v", RefuseSchema())
	}
}

func TestLoadReport(t *testing.T) {
	want := LoadReport{WorkerID: 7, Rank: 1, Epoch: 12, State: StateReady, Load: Load{Running: 1, TotalBlocks: 64}}
	b, err := EncodeLoadReport(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeLoadReport(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"worker_id":9007199254740992}`, `{"state":"` + strings.Repeat("x", maxLoadReport) + `"}`} {
		if _, err := DecodeLoadReport([]byte(bad)); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
	if got := WorkerKey(kv.Worker{ID: 7, Rank: 1}); got != "7/1" {
		t.Errorf("key %q", got)
	}
}

func FuzzDecodeLoadReport(f *testing.F) {
	fixturetest.AddCorpus(f)
	b, err := EncodeLoadReport(LoadReport{WorkerID: 7, Epoch: 12, State: StateReady, KVNext: 9})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeLoadReport(b)
		if err != nil {
			return
		}
		again, err := EncodeLoadReport(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxLoadReport {
			return // escaping can double the length of a state
		}
		if got, err := DecodeLoadReport(again); err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v became %+v, %v", r, got, err)
		}
	})
}

func FuzzDecodePong(f *testing.F) {
	for _, s := range []string{
		`{"worker_id":7,"dp_rank":0,"epoch":12,"state":"not_ready","kv_next":42,"load":{"running":1,"total_blocks":64},"in_flight":3}`,
		`{"worker_id":9007199254740992}`, `{"later":{"field":[1]}}`, `{`, ``, strings.Repeat(" ", maxLoadReport+1),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePong(b)
		if err != nil {
			if !reflect.DeepEqual(p, Pong{}) {
				t.Errorf("%+v came with %v", p, err)
			}
			return
		}
		if p.WorkerID > kv.MaxWorkerID || len(b) > maxLoadReport {
			t.Errorf("%+v was read from %d bytes", p, len(b))
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodePong(again); err == nil && !reflect.DeepEqual(back, p) {
			t.Errorf("%+v comes back as %+v", p, back)
		}
	})
}

// TestImplausibleCard checks that the error for a card with a million names is short.
func TestImplausibleCard(t *testing.T) {
	names := make([]string, 1_000_000)
	for i := range names {
		names[i] = "\x00"
	}
	c := Card{Aliases: names, Adapters: names, Numerics: strings.Repeat("x", maxNumerics+1), EOS: make([]kv.Token, 1_000_000)}
	err := c.Validate()
	if err == nil || len(err.Error()) > 1<<20 {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
	for _, want := range []string{"1000000 aliases", "1000000 adapters", "numerics must be at most"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say %q", want)
		}
	}
}
