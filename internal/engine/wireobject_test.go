package engine

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

func fullObjects() []media.Object {
	return []media.Object{
		{
			Kind: media.Image, Key: media.BytesKey([]byte("a")), Part: "messages[0].content[1]", Source: "https://a/b", Name: "n", Identity: media.ByBytes,
			Size:   media.Size{Width: 640, Height: 480},
			Tensor: media.Tensor{Shape: []int{1, 2, 3}, Data: []byte{1, 2, 3, 4, 5, 6}},
		},
		{Kind: media.Video, Size: media.Size{Width: 1, Height: 2, Frames: 3, Rate: 1.5}, Tensor: media.Tensor{Shape: []int{3, 2, 1, 3}, Place: "s"}, Identity: media.ByPixels},
		{Kind: media.Audio, Size: media.Size{Samples: 16000}},
		{},
	}
}

// seeing returns a request with objects, with or without a schema.
func seeing(guide *OutputSchema) *Request {
	r := fullRequest()
	r.OutputSchema, r.Objects = guide, fullObjects()
	r.Media = make([]kv.Media, len(r.Objects))
	for i := range r.Media {
		r.Media[i] = kv.Media{Hash: r.Objects[i].Key.Hash, Start: i, End: i + 1, Digest: r.Objects[i].Key.Digest}
	}
	return r
}

// TestObjects checks that objects arrive unchanged, in a version that older readers refuse.
func TestObjects(t *testing.T) {
	for _, want := range []*Request{seeing(nil), seeing(&OutputSchema{Schema: []byte("{}")})} {
		b := AppendRequest(nil, want)
		if b[0] != mediaVersion {
			t.Errorf("the version is %d", b[0])
		}
		got := seeing(&OutputSchema{Schema: []byte("x")}) // old content must not remain
		if err := DecodeRequest(b, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, sameBits); diff != "" {
			t.Error(diff)
		}
		if !bytes.Equal(AppendRequest(nil, got), b) {
			t.Error("the second encoding is another one")
		}
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
		got.Objects = got.Objects[1:]
		if err := got.Validate(); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("three objects in four places: %v", err)
		}
	}
	want := fullPassRequest()
	want.Objects, want.Media = fullObjects(), seeing(nil).Media
	var got PassthroughRequest
	if err := DecodePassthroughRequest(AppendPassthroughRequest(nil, want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, sameBits); diff != "" {
		t.Error(diff)
	}
}

func TestMalformedObjects(t *testing.T) {
	object := func(field []byte) []byte {
		return appendBytes([]byte{mediaVersion}, reqObject, field)
	}
	var many []byte
	for range MaxObjects + 1 {
		many = appendBytes(many, reqObject, []byte{objectKind<<2 | kindInt, 1})
	}
	for name, b := range map[string][]byte{
		"none in its version":   {mediaVersion},
		"empty features":        appendKey([]byte{mediaVersion}, reqFeatures, kindBytes),
		"features in version 1": appendBytes([]byte{wireVersion}, reqFeatures, []byte("{}")),
		"features in version 2": appendBytes([]byte{schemaVersion}, reqFeatures, []byte("{}")),
		"one in version 1":      append([]byte{wireVersion}, object([]byte{objectKind<<2 | kindInt, 1})[1:]...),
		"short digest":          object(appendBytes(nil, objectDigest, make([]byte, 31))),
		"too many":              append([]byte{mediaVersion}, many...),
		"nine dimensions":       object(appendBytes(nil, objectShape, make([]byte, 9))),
		"a large dimension":     object(appendBytes(nil, objectShape, []byte{0x80, 0x80, 0x80, 0x80, 0x08})),
		"data beyond its end":   object([]byte{objectData<<2 | kindBytes, 5, 1}),
		"digests for nothing":   appendBytes([]byte{wireVersion}, reqDigests, make([]byte, 32)),
		"fields out of order":   object([]byte{objectHash<<2 | kindInt, 1, objectKind<<2 | kindInt, 1}),
		"a kind of nine bits":   object(appendUint(nil, objectKind, 256)),
		"a kind that is a text": object(appendString(nil, objectKind, "a")),
	} {
		if err := DecodeRequest(b, new(Request)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// processed returns a request with processed media.
func processed() *Request {
	r := fullRequest()
	r.Media, r.Features = []kv.Media{{Hash: 3, Start: 1, End: 3}}, []byte(`{"kwargs_data":{}}`)
	return r
}

// TestFeatures checks that a processor's output arrives unchanged, in a version that older readers refuse,
// and that only an engine with the ability takes it.
func TestFeatures(t *testing.T) {
	want := processed()
	b := AppendRequest(nil, want)
	if b[0] != mediaVersion {
		t.Errorf("the version is %d", b[0])
	}
	got := seeing(nil)
	got.Features = []byte("old")
	old := got.Features
	if err := DecodeRequest(b, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameBits); diff != "" || string(old) != "old" {
		t.Errorf("%s, and what was there before is %q", diff, old)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Request){
		"too large":          func(r *Request) { r.Features = make([]byte, MaxFeatures+1) },
		"of nothing":         func(r *Request) { r.Media = nil },
		"and objects beside": func(r *Request) { r.Objects = make([]media.Object, 1) },
	} {
		r := processed()
		change(r)
		var f *fault.Error
		if err := r.Validate(); !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != FeaturesParam {
			t.Errorf("%s: %v", what, err)
		}
	}
	card := Card{VocabSize: 1 << 31, ContextLength: 1 << 20, StructuredOutput: true}
	var f *fault.Error
	if err := card.CheckRequest(processed()); !errors.As(err, &f) || f.Code != fault.Unimplemented || f.Param != FeaturesParam {
		t.Errorf("an engine that does not take them: %v", err)
	}
	card.Features = true
	fits := &Request{Prompt: []kv.Token{1, 2, 3}, Media: processed().Media, Features: processed().Features, Choices: 1, Stop: Stop{MaxTokens: 1}, Logprobs: -1}
	if err := card.CheckRequest(fits); err != nil {
		t.Errorf("one that does: %v", err)
	}
}
