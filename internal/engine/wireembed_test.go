package engine

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/fixturetest"
)

func fullEmbedRequest() *EmbedRequest {
	return &EmbedRequest{ID: "req-1", Attempt: 3, Model: "m", Prompt: []kv.Token{0, 1, 127, 128, 300, math.MaxUint32}}
}

func fullEmbedding() *Embedding {
	return &Embedding{Attempt: 2, Vector: []float32{1, -0.5, float32(math.Copysign(0, -1)), float32(math.Inf(1))}}
}

// TestEmbedBytes pins the examples of docs/format/engine.md to the code.
func TestEmbedBytes(t *testing.T) {
	messages := documentedMessages(t)
	for name, got := range map[string][]byte{
		"request":   AppendEmbedRequest(nil, &EmbedRequest{ID: "r1", Attempt: 1, Model: "m", Prompt: []kv.Token{1, 2, 300}}),
		"embedding": AppendEmbedding(nil, &Embedding{Attempt: 1, Vector: []float32{0.6, -0.8}}),
	} {
		if !messages[fmt.Sprintf("% x", got)] {
			t.Errorf("the %s is % x, which is not what is documented", name, got)
		}
	}
}

func TestEmbedRoundTrip(t *testing.T) {
	var req EmbedRequest
	var vec Embedding
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOf(rapid.Map(rapid.Uint32(), func(v uint32) kv.Token { return kv.Token(v) }))
		want := &EmbedRequest{
			ID: rapid.String().Draw(t, "id"), Attempt: rapid.Uint32().Draw(t, "attempt"),
			Model: rapid.String().Draw(t, "model"), Prompt: tokens.Draw(t, "prompt"),
		}
		if err := DecodeEmbedRequest(AppendEmbedRequest(nil, want), &req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &req, sameBits); diff != "" {
			t.Fatal(diff)
		}
		wantVec := &Embedding{Attempt: want.Attempt, Vector: rapid.SliceOf(rapid.Float32()).Draw(t, "vector")}
		if err := DecodeEmbedding(AppendEmbedding(nil, wantVec), &vec); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantVec, &vec, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestEmbedLaterVersion(t *testing.T) {
	var r EmbedRequest
	if err := DecodeEmbedRequest(appendString(AppendEmbedRequest(nil, fullEmbedRequest()), 40, "new"), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullEmbedRequest(), &r, sameBits); diff != "" {
		t.Error(diff)
	}
	var e Embedding
	if err := DecodeEmbedding(appendUint(AppendEmbedding(nil, fullEmbedding()), 40, 7), &e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullEmbedding(), &e, sameBits); diff != "" {
		t.Error(diff)
	}
}

func TestEmbedMalformed(t *testing.T) {
	for name, body := range map[string][]byte{
		"empty":      nil,
		"cut string": {1, embedID<<2 | kindBytes, 5, 'a'},
		"cut token":  {1, embedPrompt<<2 | kindBytes, 2, 1, 0x80},
		"wrong kind": {1, embedPrompt<<2 | kindInt, 1},
		"descending": appendString(appendUint([]byte{1}, embedAttempt, 1), embedID, "x"),
	} {
		if err := DecodeEmbedRequest(body, new(EmbedRequest)); fault.CodeOf(err) != fault.Invalid || err == nil {
			t.Errorf("request, %s: %v, want %v", name, err, fault.Invalid)
		}
	}
	for name, body := range map[string][]byte{
		"empty":       nil,
		"cut number":  appendString([]byte{1}, embeddingVector, "12345"),
		"huge vector": append([]byte{1, embeddingVector<<2 | kindBytes}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f),
		"wrong kind":  {1, embeddingVector<<2 | kindInt, 1},
	} {
		if err := DecodeEmbedding(body, new(Embedding)); fault.CodeOf(err) != fault.Invalid || err == nil {
			t.Errorf("embedding, %s: %v, want %v", name, err, fault.Invalid)
		}
	}
}

func TestEmbedValidate(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*EmbedRequest)
		ok   bool
	}{
		"good":    {func(*EmbedRequest) {}, true},
		"attempt": {func(r *EmbedRequest) { r.Attempt = 0 }, false},
		"input":   {func(r *EmbedRequest) { r.Prompt = nil }, false},
	} {
		r := fullEmbedRequest()
		c.edit(r)
		if err := r.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeEmbedRequest(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendEmbedRequest(nil, fullEmbedRequest()))
	f.Add(AppendEmbedRequest(nil, &EmbedRequest{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again EmbedRequest
		if DecodeEmbedRequest(b, &r) != nil {
			return
		}
		if len(r.Prompt) > len(b) {
			t.Fatalf("%d bytes decode to %d tokens", len(b), len(r.Prompt))
		}
		if err := DecodeEmbedRequest(AppendEmbedRequest(nil, &r), &again); err != nil {
			t.Fatalf("the encoding of a decoded request is refused: %v", err)
		}
		if diff := cmp.Diff(&r, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodeEmbedding(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendEmbedding(nil, fullEmbedding()))
	f.Add(AppendEmbedding(nil, &Embedding{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again Embedding
		if DecodeEmbedding(b, &e) != nil {
			return
		}
		if 4*len(e.Vector) > len(b) {
			t.Fatalf("%d bytes decode to %d numbers", len(b), len(e.Vector))
		}
		if err := DecodeEmbedding(AppendEmbedding(nil, &e), &again); err != nil {
			t.Fatalf("the encoding of a decoded embedding is refused: %v", err)
		}
		if diff := cmp.Diff(&e, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}
