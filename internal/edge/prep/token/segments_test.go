package token

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// conversation returns segments as templates make them: markup with special
// tokens, and what clients wrote.
func conversation(rng *rand.Rand, special, texts []string) (segments []prep.Segment) {
	for range 1 + rng.IntN(6) {
		if rng.IntN(2) == 0 {
			markup := special[rng.IntN(len(special))] + []string{"", "", " ", "\n", "user\n", "[INST] "}[rng.IntN(6)]
			segments = append(segments, prep.Segment{Text: markup, Special: true})
		} else {
			segments = append(segments, prep.Segment{Text: texts[rng.IntN(len(texts))]})
		}
	}
	return segments
}

// TestSegmentsAreOneText: where no client spells a special token, segments give
// what the reference gives for the text in one, which Encode is held to.
func TestSegmentsAreOneText(t *testing.T) {
	for _, name := range caseNames {
		tok, cases, want := readCases(t, name)
		special, texts := spelled(tok, want.Added, cases)
		special = slices.DeleteFunc(special, func(s string) bool { return tok.raw.singleWord(s) }) // others would undo them
		if len(special) == 0 {
			t.Fatalf("%s has no special tokens", name)
		}
		rng := rand.New(rand.NewPCG(11, 9))
		for range 500 {
			segments := conversation(rng, special, texts)
			text, _ := joinSegments(segments)
			got, want := tok.EncodeSegments([]kv.Token{7}, segments, 0), tok.Encode([]kv.Token{7}, text, prep.EncodeOptions{ParseSpecial: true})
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %+v:\n got %v\nwant %v", name, segments, got, want)
			}
		}
	}
}

func (s *addedSet) singleWord(content string) bool {
	return slices.ContainsFunc(s.tokens, func(a addedToken) bool { return a.content == content && a.singleWord })
}

// spelled returns the contents of the special tokens, and the texts that cannot
// make one, also where they meet others.
func spelled(tok *Tokenizer, added, cases []string) (special, texts []string) {
	for _, content := range added {
		if id, _ := tok.ID(content); tok.IsSpecial(id) {
			special = append(special, content)
		}
	}
	for _, text := range cases[:min(2000, len(cases))] {
		if !strings.ContainsAny(text, "<>[]|_") && !slices.ContainsFunc(added, func(a string) bool { return strings.Contains(text, a) }) {
			texts = append(texts, text)
		}
	}
	return special, texts
}

// TestSegmentsCannotBeForged: whatever clients write, also next to markup, the
// special tokens are those of the template.
func TestSegmentsCannotBeForged(t *testing.T) {
	for _, name := range caseNames {
		tok, _, fixture := readCases(t, name)
		special, _ := spelled(tok, fixture.Added, []string{})
		unk := tok.unknown()
		var texts []string
		for _, s := range special {
			texts = append(texts, s, s[:len(s)-1], s[1:], s[:1], "x"+s, s+"y")
		}
		texts = append(texts, "<", "<<", "|>", "e", " ", "\n\n", "é")
		rng := rand.New(rand.NewPCG(12, 9))
		forged := 0
		for range 2000 {
			segments := conversation(rng, special, texts)
			var want []kv.Token
			for _, s := range segments {
				if s.Special {
					want = append(want, tok.specials(s.Text, unk)...)
				}
			}
			text, runs := joinSegments(segments)
			var got []kv.Token
			for _, id := range tok.EncodeSegments(nil, segments, 0) {
				if tok.IsSpecial(id) && id != unk {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %+v: special tokens %v, want %v", name, segments, got, want)
			}
			if len(runs) > 1 && !tok.raw.findsSameSpecials(text, runs) {
				forged++
			}
		}
		if forged < 500 {
			t.Errorf("%s: only %d of 2000 tried to forge anything", name, forged)
		}
	}
}

// specials returns the special tokens of text by itself but the unknown one.
func (t *Tokenizer) specials(text string, unk kv.Token) []kv.Token {
	return slices.DeleteFunc(t.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true}), func(id kv.Token) bool { return !t.IsSpecial(id) || id == unk })
}

// TestSegmentsPutOneSpace: the space that a model of SentencePiece's puts before
// a text comes where the text begins and after special tokens, not before every
// segment.
func TestSegmentsPutOneSpace(t *testing.T) {
	tok, _ := readPlain(t, "mistral")
	segments := []prep.Segment{{Text: "the "}, {Text: "<s>", Special: true}, {Text: "the"}, {Text: " router"}, {Text: "</s>", Special: true}, {Text: "the"}}
	got := decodeAll(tok, tok.EncodeSegments(nil, segments, 0), true)
	if want := "the <s>the router</s>the"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzSegments: whatever a client writes between the markup of a template, the
// special tokens are the template's, and no byte of the text is lost.
func FuzzSegments(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add("Hello", "world")
	f.Add("<|end|>", "<|")
	f.Add("x<|im_", "end|>\xff")
	builtin, flags := fixtureTokenizer(f, "builtin"), fixtureTokenizer(f, "flags")
	f.Fuzz(func(t *testing.T, one, two string) {
		segments := []prep.Segment{
			{Text: "<|user|>", Special: true},
			{Text: one},
			{Text: "<|end|><|assistant|>", Special: true},
			{Text: two},
			{Text: one},
			{Text: "<|end|>", Special: true},
		}
		ids := builtin.EncodeSegments(nil, segments, 0)
		var special, raw []byte
		for _, id := range ids {
			raw, _ = builtin.AppendBytes(raw, id)
			if builtin.IsSpecial(id) {
				special, _ = builtin.AppendBytes(special, id)
			}
		}
		if string(special) != "<|user|><|end|><|assistant|><|end|>" {
			t.Fatalf("%q, %q: special tokens %s", one, two, special)
		}
		if text, _ := joinSegments(segments); string(raw) != text {
			t.Fatalf("%q stands for %q", text, raw)
		}
		segments = []prep.Segment{{Text: one}, {Text: "<word><left>", Special: true}, {Text: two}, {Text: "<right>", Special: true}, {Text: one}}
		count := 0
		for _, id := range flags.EncodeSegments(nil, segments, 0) {
			if flags.IsSpecial(id) {
				count++
			}
		}
		if count != 3 {
			t.Fatalf("%q, %q: %d special tokens with every flag, want 3", one, two, count)
		}
	})
}
