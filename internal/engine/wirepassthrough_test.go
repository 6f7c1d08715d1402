package engine

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
)

func fullPassRequest() *PassthroughRequest {
	return &PassthroughRequest{
		ID: "req-1", Attempt: 3, Model: "law", Salt: kv.Salt{LoRA: "law", Namespace: "n"}, Path: "/v1/chat/completions",
		Body: []byte(`{"model":"law","messages":[]}`), Stream: true, Prompt: []kv.Token{0, 127, 128, math.MaxUint32}, Hints: []byte(`{}`),
	}
}

func passPieces() []*PassthroughChunk {
	return []*PassthroughChunk{
		{Attempt: 3, Accepted: true, Status: 200, Type: "text/event-stream"},
		{Attempt: 3, Data: []byte("data: {}\n\n"), Tokens: 2},
		{Attempt: 3, Last: true, PromptTokens: 9, OutputTokens: CachedUnknown, Cached: 0},
	}
}

// TestPassBytes pins the examples of docs/format/engine.md to the code.
func TestPassBytes(t *testing.T) {
	messages := documentedMessages(t)
	for name, got := range map[string][]byte{
		"request":  AppendPassthroughRequest(nil, &PassthroughRequest{ID: "r1", Attempt: 1, Model: "m", Path: "/v1/completions", Body: []byte("{}"), Prompt: []kv.Token{1, 2, 300}}),
		"accepted": AppendPassthroughChunk(nil, &PassthroughChunk{Attempt: 1, Accepted: true, Status: 200, Type: "text/plain"}),
		"data":     AppendPassthroughChunk(nil, &PassthroughChunk{Attempt: 1, Data: []byte("hi"), Tokens: 1}),
		"last":     AppendPassthroughChunk(nil, &PassthroughChunk{Attempt: 1, Last: true, PromptTokens: 3, OutputTokens: 1, Cached: CachedUnknown}),
	} {
		if !messages[fmt.Sprintf("% x", got)] {
			t.Errorf("the %s is % x, which is not what is documented", name, got)
		}
	}
}

func TestPassRoundTrip(t *testing.T) {
	var req PassthroughRequest
	var piece PassthroughChunk
	tokens := rapid.SliceOf(rapid.Custom(func(t *rapid.T) kv.Token { return kv.Token(rapid.Uint32().Draw(t, "token")) }))
	number := rapid.IntRange(math.MinInt32, math.MaxInt32)
	text, data := rapid.String(), rapid.SliceOf(rapid.Byte())
	rapid.Check(t, func(t *rapid.T) {
		want := &PassthroughRequest{
			ID: text.Draw(t, "id"), Attempt: rapid.Uint32().Draw(t, "attempt"), Model: text.Draw(t, "model"),
			Salt: kv.Salt{LoRA: text.Draw(t, "lora"), Namespace: text.Draw(t, "namespace")}, Path: text.Draw(t, "path"),
			Body: data.Draw(t, "body"), Stream: rapid.Bool().Draw(t, "stream"), Prompt: tokens.Draw(t, "prompt"), Hints: data.Draw(t, "hints"),
		}
		if err := DecodePassthroughRequest(AppendPassthroughRequest(nil, want), &req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &req, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		said := &PassthroughChunk{
			Attempt: rapid.Uint32().Draw(t, "attempt"), Accepted: rapid.Bool().Draw(t, "accepted"), Status: number.Draw(t, "status"), Type: text.Draw(t, "type"),
			Data: data.Draw(t, "data"), Tokens: number.Draw(t, "tokens"), Last: rapid.Bool().Draw(t, "last"),
			PromptTokens: number.Draw(t, "prompt"), OutputTokens: number.Draw(t, "output"), Cached: number.Draw(t, "cached"),
		}
		if err := DecodePassthroughChunk(AppendPassthroughChunk(nil, said), &piece); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(said, &piece, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestPassMalformed checks that every truncated message is refused and no complete one is, with or without a
// field of a later version.
func TestPassMalformed(t *testing.T) {
	request := AppendPassthroughRequest(nil, fullPassRequest())
	later := append(bytes.Clone(request), 31<<2|kindBytes, 0)
	if err := DecodePassthroughRequest(later, new(PassthroughRequest)); err != nil {
		t.Errorf("a later field: %v", err)
	}
	if err := DecodePassthroughRequest(append(bytes.Clone(request), request[1:]...), new(PassthroughRequest)); err == nil {
		t.Error("fields twice are taken")
	}
	for _, bad := range [][]byte{nil, {2}, {0}, request[:len(request)-1]} {
		if err := DecodePassthroughRequest(bad, new(PassthroughRequest)); err == nil {
			t.Errorf("% x is taken as a request", bad)
		}
	}
	for _, bad := range [][]byte{nil, {2}, AppendPassthroughChunk(nil, passPieces()[1])[:10]} {
		if err := DecodePassthroughChunk(bad, new(PassthroughChunk)); err == nil {
			t.Errorf("% x is taken as a piece", bad)
		}
	}
}

func TestPassDoesNotAllocate(t *testing.T) {
	piece := passPieces()[1]
	frame := AppendPassthroughChunk(nil, piece)
	var got PassthroughChunk
	got.Data = make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		frame = AppendPassthroughChunk(frame[:0], piece)
		if err := DecodePassthroughChunk(frame, &got); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a piece", n)
	}
}

// TestPassChecks checks the rules for requests and chunks beyond their encoding.
func TestPassChecks(t *testing.T) {
	for _, tt := range []struct {
		change func(*PassthroughRequest)
		param  string
	}{
		{func(*PassthroughRequest) {}, ""},
		{func(r *PassthroughRequest) { r.Attempt = 0 }, "attempt"},
		{func(r *PassthroughRequest) { r.Path = "" }, "path"},
		{func(r *PassthroughRequest) { r.Body = nil }, "body"},
	} {
		r := fullPassRequest()
		tt.change(r)
		param := ""
		if err := r.Validate(); err != nil {
			param = err.(*fault.Error).Param
		}
		if param != tt.param {
			t.Errorf("wrong is %q, want %q", param, tt.param)
		}
	}
	for status, want := range map[int]bool{200: false, 302: false, 400: true, 404: true, 408: false, 422: true, 425: false, 429: false, 499: true, 500: false} {
		if IsClientRefusal(status) != want {
			t.Errorf("%d refuses the request: %v", status, !want)
		}
	}
	for i, tt := range []struct {
		piece    PassthroughChunk
		accepted bool
		ok       bool
	}{
		{*passPieces()[0], false, true},
		{*passPieces()[0], true, false},
		{*passPieces()[1], true, true},
		{*passPieces()[1], false, false},
		{*passPieces()[2], true, true},
		{PassthroughChunk{Accepted: true, Status: 422}, false, true},
		{PassthroughChunk{Accepted: true, Status: 302}, false, false},
		{PassthroughChunk{Accepted: true, Status: 503}, false, false},
		{PassthroughChunk{Accepted: true, Status: 200, Data: []byte("x")}, false, false},
		{PassthroughChunk{Accepted: true, Status: 200, Last: true}, false, false},
		{PassthroughChunk{Tokens: -1}, true, false},
		{PassthroughChunk{PromptTokens: -2}, true, false},
		{PassthroughChunk{OutputTokens: -2}, true, false},
		{PassthroughChunk{Cached: -2}, true, false},
	} {
		o := PassthroughOrder{started: tt.accepted}
		if err := o.AcceptChunk(&tt.piece); (err == nil) != tt.ok {
			t.Errorf("%d: %+v after accepted %v: %v", i, tt.piece, tt.accepted, err)
		}
	}
	var o PassthroughOrder
	for i, p := range append(passPieces(), passPieces()[1]) {
		if err := o.AcceptChunk(p); (err == nil) != (i < 3) {
			t.Errorf("piece %d: %v", i, err)
		}
	}
}

func FuzzDecodePassRequest(f *testing.F) {
	f.Add(AppendPassthroughRequest(nil, fullPassRequest()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again PassthroughRequest
		if DecodePassthroughRequest(b, &r) != nil {
			return
		}
		if len(r.Body)+len(r.Prompt)+len(r.Hints) > len(b) {
			t.Fatalf("%d bytes decode to %d and %d tokens", len(b), len(r.Body), len(r.Prompt))
		}
		if err := DecodePassthroughRequest(AppendPassthroughRequest(nil, &r), &again); err != nil {
			t.Fatalf("the encoding of a decoded request is refused: %v", err)
		}
		if diff := cmp.Diff(&r, &again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodePassPiece(f *testing.F) {
	for _, p := range passPieces() {
		f.Add(AppendPassthroughChunk(nil, p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again PassthroughChunk
		if DecodePassthroughChunk(b, &p) != nil {
			return
		}
		if len(p.Data) > len(b) {
			t.Fatalf("%d bytes decode to %d", len(b), len(p.Data))
		}
		if err := DecodePassthroughChunk(AppendPassthroughChunk(nil, &p), &again); err != nil {
			t.Fatalf("the encoding of a decoded piece is refused: %v", err)
		}
		if diff := cmp.Diff(&p, &again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}
