package engine

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/fixturetest"
)

func chatRequest() *PreprocessRequest {
	return &PreprocessRequest{ID: "req-1", Attempt: 3, Model: "m", Chat: []byte(`{"messages":[{"role":"user","content":"hi"}]}`)}
}

func textRequest() *PreprocessRequest {
	return &PreprocessRequest{ID: "req-1", Attempt: 3, Model: "m", Text: "hi", ParseSpecial: true, AddSpecial: true}
}

func fullPreprocessed() *Preprocessed {
	return &Preprocessed{
		Attempt: 2, Tokens: []kv.Token{0, 1, 127, 128, 300, math.MaxUint32},
		Media: []kv.Media{{Hash: math.MaxUint64, Start: 0, End: 2}, {Hash: 7, Start: 2, End: 5}},
	}
}

// shownPreprocessed returns an answer whose media were resolved.
func shownPreprocessed() *Preprocessed {
	p := fullPreprocessed()
	for i := range p.Media {
		m := &p.Media[i]
		m.Digest[i] = 9
		p.Objects = append(p.Objects, media.Object{
			Kind: media.Image, Key: media.Key{Hash: m.Hash, Digest: m.Digest}, Identity: media.ByPixels, Size: media.Size{Width: 3, Height: 2},
		})
	}
	return p
}

// blindPreprocessed returns an answer whose media were not resolved.
func blindPreprocessed() *Preprocessed {
	return &Preprocessed{Attempt: 2, Tokens: []kv.Token{4}, TextOnly: media.DimensionsUnknown, TextOnlyError: fault.InvalidParam("messages[0].content[1]", "cannot be read")}
}

// TestPreprocessBytes pins the examples of docs/format/engine.md to the code.
func TestPreprocessBytes(t *testing.T) {
	messages := documentedMessages(t)
	for name, got := range map[string][]byte{
		"text":         AppendPreprocessRequest(nil, &PreprocessRequest{ID: "r1", Attempt: 1, Model: "m", Text: "hi", ParseSpecial: true, AddSpecial: true}),
		"conversation": AppendPreprocessRequest(nil, &PreprocessRequest{Attempt: 1, Model: "m", Chat: []byte(`{}`)}),
		"prompt":       AppendPreprocessed(nil, &Preprocessed{Attempt: 1, Tokens: []kv.Token{1, 2, 300}, Media: []kv.Media{{Hash: 258, Start: 1, End: 3}}}),
	} {
		if !messages[fmt.Sprintf("% x", got)] {
			t.Errorf("the %s is % x, which is not what is documented", name, got)
		}
	}
}

func TestPreprocessRoundTrip(t *testing.T) {
	var req PreprocessRequest
	var answer Preprocessed
	rapid.Check(t, func(t *rapid.T) {
		want := &PreprocessRequest{
			ID: rapid.String().Draw(t, "id"), Attempt: rapid.Uint32().Draw(t, "attempt"), Model: rapid.String().Draw(t, "model"),
			Chat: rapid.SliceOf(rapid.Byte()).Draw(t, "chat"), Text: rapid.String().Draw(t, "text"),
			ParseSpecial: rapid.Bool().Draw(t, "parse"), AddSpecial: rapid.Bool().Draw(t, "add"), ResolveMedia: rapid.Bool().Draw(t, "shows"),
		}
		if err := DecodePreprocessRequest(AppendPreprocessRequest(nil, want), &req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &req, sameBits); diff != "" {
			t.Fatal(diff)
		}
		wantAnswer := &Preprocessed{Attempt: want.Attempt}
		switch rapid.IntRange(0, 2).Draw(t, "found out") {
		case 1:
			wantAnswer.Objects = shownPreprocessed().Objects
		case 2:
			blind := blindPreprocessed()
			wantAnswer.TextOnly, wantAnswer.TextOnlyError = blind.TextOnly, blind.TextOnlyError
		}
		for _, v := range rapid.SliceOf(rapid.Uint32()).Draw(t, "tokens") {
			wantAnswer.Tokens = append(wantAnswer.Tokens, kv.Token(v))
		}
		for range rapid.IntRange(0, 3).Draw(t, "media") {
			wantAnswer.Media = append(wantAnswer.Media, kv.Media{
				Hash: rapid.Uint64().Draw(t, "hash"), Start: int(rapid.Int32().Draw(t, "start")), End: int(rapid.Int32().Draw(t, "end")),
			})
		}
		if err := DecodePreprocessed(AppendPreprocessed(nil, wantAnswer), &answer); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantAnswer, &answer, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestPreprocessLaterVersion(t *testing.T) {
	var r PreprocessRequest
	if err := DecodePreprocessRequest(appendString(AppendPreprocessRequest(nil, textRequest()), 40, "new"), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(textRequest(), &r, sameBits); diff != "" {
		t.Error(diff)
	}
	var p Preprocessed
	if err := DecodePreprocessed(appendUint(AppendPreprocessed(nil, fullPreprocessed()), 40, 7), &p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullPreprocessed(), &p, sameBits); diff != "" {
		t.Error(diff)
	}
}

func TestPreprocessMalformed(t *testing.T) {
	for name, body := range map[string][]byte{
		"empty":      nil,
		"cut string": {1, prepText<<2 | kindBytes, 5, 'a'},
		"wrong kind": {1, prepChat<<2 | kindInt, 1},
		"no flag":    {1, prepAddSpecial<<2 | kindInt, 2},
		"descending": appendString(appendString([]byte{1}, prepText, "x"), prepModel, "x"),
	} {
		if err := DecodePreprocessRequest(body, new(PreprocessRequest)); fault.CodeOf(err) != fault.Invalid || err == nil {
			t.Errorf("request, %s: %v, want %v", name, err, fault.Invalid)
		}
	}
	for name, body := range map[string][]byte{
		"empty":       nil,
		"cut token":   {1, preppedTokens<<2 | kindBytes, 2, 1, 0x80},
		"cut media":   {1, preppedMedia<<2 | kindBytes, 3, 1, 2, 3},
		"wrong kind":  {1, preppedTokens<<2 | kindInt, 1},
		"many tokens": appendTokens([]byte{1}, preppedTokens, make([]kv.Token, MaxPreprocessed+1)),
		"why not":     appendString([]byte{1}, preppedWhy, "x"),
		"no reason":   {1, preppedReason<<2 | kindBytes, 0},
		"digests":     appendDigests([]byte{1}, preppedDigests, []kv.Media{{Digest: kv.Digest{1}}}),
		"many media":  appendMedia([]byte{1}, preppedMedia, make([]kv.Media, MaxPreprocessedMedia+1)),
	} {
		if err := DecodePreprocessed(body, new(Preprocessed)); fault.CodeOf(err) != fault.Invalid || err == nil {
			t.Errorf("answer, %s: %v, want %v", name, err, fault.Invalid)
		}
	}
}

func TestPreprocessRequestValidate(t *testing.T) {
	both := chatRequest()
	both.Text = "x"
	special := chatRequest()
	special.AddSpecial = true
	shows := chatRequest()
	shows.ResolveMedia = true
	unnumbered := textRequest()
	unnumbered.Attempt = 0
	for name, c := range map[string]struct {
		req *PreprocessRequest
		ok  bool
	}{
		"chat": {chatRequest(), true}, "text": {textRequest(), true}, "empty text": {&PreprocessRequest{Attempt: 1}, true},
		"shows": {shows, true}, "a text that shows": {&PreprocessRequest{Attempt: 1, Text: "x", ResolveMedia: true}, false},
		"both": {both, false}, "chat with special tokens": {special, false}, "attempt": {unnumbered, false},
	} {
		if err := c.req.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPreprocessedValidate(t *testing.T) {
	three := []kv.Token{1, 2, 9}
	for name, c := range map[string]struct {
		p    Preprocessed
		want fault.Code
		bad  bool
	}{
		"empty":            {p: Preprocessed{}},
		"good":             {p: Preprocessed{Tokens: three, Media: []kv.Media{{Start: 0, End: 1}, {Start: 1, End: 3}}}},
		"most tokens":      {p: Preprocessed{Tokens: make([]kv.Token, MaxPreprocessed)}},
		"many tokens":      {Preprocessed{Tokens: make([]kv.Token, MaxPreprocessed+1)}, fault.Invalid, true},
		"many media":       {Preprocessed{Tokens: three, Media: make([]kv.Media, MaxPreprocessedMedia+1)}, fault.Invalid, true},
		"vocabulary":       {Preprocessed{Tokens: []kv.Token{1, 10}}, fault.Internal, true},
		"media before":     {Preprocessed{Tokens: three, Media: []kv.Media{{Start: -1, End: 1}}}, fault.Internal, true},
		"media beyond":     {Preprocessed{Tokens: three, Media: []kv.Media{{Start: 2, End: 4}}}, fault.Internal, true},
		"media backwards":  {Preprocessed{Tokens: three, Media: []kv.Media{{Start: 2, End: 1}}}, fault.Internal, true},
		"found out":        {p: *shownPreprocessed()},
		"not found out":    {p: *blindPreprocessed()},
		"no reason":        {Preprocessed{Tokens: three, TextOnly: media.OverLimit}, fault.Internal, true},
		"a new reason":     {Preprocessed{Tokens: three, TextOnly: "new", TextOnlyError: fault.InvalidParam("a", "b")}, fault.Internal, true},
		"half found out":   {Preprocessed{Tokens: three, Media: []kv.Media{{End: 1}, {Start: 1, End: 2}}, Objects: make([]media.Object, 1)}, fault.Internal, true},
		"another object":   {Preprocessed{Tokens: three, Media: []kv.Media{{End: 1, Hash: 1}}, Objects: []media.Object{{Key: media.Key{Hash: 2}}}}, fault.Internal, true},
		"another digest":   {Preprocessed{Tokens: three, Media: []kv.Media{{End: 1}}, Objects: []media.Object{{Key: media.Key{Digest: kv.Digest{1}}}}}, fault.Internal, true},
		"media and reason": {Preprocessed{Tokens: three, Media: []kv.Media{{End: 1}}, TextOnly: media.OverLimit, TextOnlyError: fault.InvalidParam("a", "b")}, fault.Internal, true},
		"media descending": {Preprocessed{Tokens: three, Media: []kv.Media{{Start: 1, End: 2}, {Start: 0, End: 1}}}, fault.Internal, true},
	} {
		size := 10
		if c.p.Attempt != 0 {
			size = math.MaxInt
		}
		if err := c.p.Validate(size); (err != nil) != c.bad || c.bad && fault.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPreprocessedFitsAFrame checks that the largest prompt of an engine fits in one frame of the request
// plane.
func TestPreprocessedFitsAFrame(t *testing.T) {
	const frame = 8 << 20 // rpc.MaxFrame
	p := &Preprocessed{
		Attempt: math.MaxUint32, Tokens: slices.Repeat([]kv.Token{math.MaxUint32}, MaxPreprocessed),
		Media:   slices.Repeat([]kv.Media{{Hash: math.MaxUint64, Start: math.MaxInt32, End: math.MaxInt32, Digest: kv.Digest{1}}}, MaxPreprocessedMedia),
		Objects: slices.Repeat(shownPreprocessed().Objects, MaxObjects/2),
	}
	if n := len(AppendPreprocessed(nil, p)); n > frame {
		t.Errorf("%d bytes, and a frame has %d", n, frame)
	}
}

func FuzzDecodePreprocessRequest(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendPreprocessRequest(nil, chatRequest()))
	f.Add(AppendPreprocessRequest(nil, textRequest()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again PreprocessRequest
		if DecodePreprocessRequest(b, &r) != nil {
			return
		}
		if len(r.Chat)+len(r.Text) > len(b) {
			t.Fatalf("%d bytes decode to %d and %d", len(b), len(r.Chat), len(r.Text))
		}
		if err := DecodePreprocessRequest(AppendPreprocessRequest(nil, &r), &again); err != nil {
			t.Fatalf("the encoding of a decoded request is refused: %v", err)
		}
		if diff := cmp.Diff(&r, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodePreprocessed(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(AppendPreprocessed(nil, fullPreprocessed()))
	f.Add(AppendPreprocessed(nil, shownPreprocessed()))
	f.Add(AppendPreprocessed(nil, blindPreprocessed()))
	f.Add(AppendPreprocessed(nil, &Preprocessed{}))
	f.Add(appendBool(appendBytes([]byte{wireVersion}, preppedFeatures, []byte("{}")), preppedMore, true))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Preprocessed
		more, err := decodePreprocessed(b, &p)
		if err != nil {
			return
		}
		if more {
			frame := framesOf(t, &p)[0]
			if _, err := decodePreprocessed(frame, &again); err != nil || !bytes.Equal(p.Features, again.Features) {
				t.Fatalf("%d bytes of a piece, %d again: %v", len(p.Features), len(again.Features), err)
			}
			return
		}
		if len(p.Tokens)+10*len(p.Media) > len(b) {
			t.Fatalf("%d bytes decode to %d tokens and %d media objects", len(b), len(p.Tokens), len(p.Media))
		}
		if err := DecodePreprocessed(AppendPreprocessed(nil, &p), &again); err != nil {
			t.Fatalf("the encoding of a decoded answer is refused: %v", err)
		}
		if diff := cmp.Diff(&p, &again, sameBits); diff != "" {
			t.Fatal(diff)
		}
	})
}

// framesOf returns the frames of an answer.
func framesOf(t *testing.T, p *Preprocessed) (all [][]byte) {
	t.Helper()
	if err := p.SendFrames(func(frame []byte) error {
		all = append(all, bytes.Clone(frame))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestPieces checks that a processor's output comes in pieces before the prompt, and is taken as a whole or
// not at all.
func TestPieces(t *testing.T) {
	features := bytes.Repeat([]byte("0123456789"), maxFeaturesPiece/4)
	want := &Preprocessed{Attempt: 3, Tokens: []kv.Token{1, 2, 3}, Media: []kv.Media{{Hash: 7, Start: 1, End: 2}}, Features: features}
	frames := framesOf(t, want)
	if len(frames) != 4 {
		t.Fatalf("%d frames", len(frames))
	}
	for i, f := range frames {
		if len(f) > maxFeaturesPiece+64 {
			t.Errorf("frame %d has %d bytes", i, len(f))
		}
		if err := DecodePreprocessed(f, new(Preprocessed)); (err == nil) != (i == len(frames)-1) {
			t.Errorf("frame %d alone: %v", i, err)
		}
	}
	var got Preprocessed
	for i, f := range frames {
		if got.Attempt != 0 {
			t.Fatalf("the answer is there after %d frames", i)
		}
		late := framesOf(t, &Preprocessed{Attempt: 2, Features: []byte("late")})
		for _, f := range append(late, f) {
			if err := got.TakeFrame(f, 3, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Error(diff)
	}
	if err := got.TakeFrame(frames[0], 3, 100); fault.CodeOf(err) != fault.Internal {
		t.Errorf("a piece after the answer: %v", err)
	}
	if got = (Preprocessed{Features: make([]byte, MaxFeatures)}); fault.CodeOf(got.TakeFrame(frames[0], 3, 100)) != fault.Internal {
		t.Error("more than may be is taken")
	}
	if p := (Preprocessed{Features: make([]byte, MaxFeatures+1)}); fault.CodeOf(p.Validate(100)) != fault.Internal {
		t.Error("more than may be is handed over")
	}
	piece := appendBytes([]byte{wireVersion}, preppedFeatures, []byte("x"))
	for what, b := range map[string][]byte{
		"a piece that is the last":         piece,
		"a piece of nothing":               appendBool([]byte{wireVersion}, preppedMore, true),
		"an empty piece":                   appendBool(append(appendKey([]byte{wireVersion}, preppedFeatures, kindBytes), 0), preppedMore, true),
		"a piece with the tokens":          appendBool(append(appendTokens([]byte{wireVersion}, preppedTokens, want.Tokens), piece[1:]...), preppedMore, true),
		"a piece that is larger than most": appendBool(appendBytes([]byte{wireVersion}, preppedFeatures, make([]byte, MaxFeatures+1)), preppedMore, true),
	} {
		if _, err := decodePreprocessed(b, new(Preprocessed)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}
