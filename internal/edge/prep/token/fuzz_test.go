package token

import (
	"maps"
	"slices"
	"testing"
	"unicode/utf8"

	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// FuzzRoundTrip: whatever valid text goes in comes out again, unless a normalizer
// changes it or a space is put before it; and invalid text does no harm.
func FuzzRoundTrip(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, text := range fixtureTexts(f)[:200] {
		f.Add(text)
	}
	f.Add("\xff\xc3(")
	var tokenizers []*Tokenizer
	for _, name := range []string{"builtin", "gpt2", "llama3"} {
		tokenizers = append(tokenizers, fixtureTokenizer(f, name))
	}
	normalizing := fixtureTokenizer(f, "flags")
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range tokenizers {
			for _, opts := range []prep.EncodeOptions{{}, {ParseSpecial: true}} {
				ids := tok.Encode(nil, text, opts)
				var raw []byte
				for _, id := range ids {
					raw = append(raw, appendOf(tok, id)...)
				}
				if string(raw) != text {
					t.Fatalf("bytes of %q are %q", text, raw)
				}
				if got := decodeAll(tok, ids, true); utf8.ValidString(text) && got != text || !utf8.ValidString(got) {
					t.Fatalf("%q decodes to %q", text, got)
				}
				if again := tok.Encode(nil, text, opts); !slices.Equal(again, ids) {
					t.Fatalf("%q: %v, then %v", text, ids, again)
				}
			}
		}
		normalizing.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
	})
}

// FuzzSplit: words are never empty and, put together, are the text.
func FuzzSplit(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, text := range fixtureTexts(f)[:200] {
		f.Add(text)
	}
	c := newClasses()
	splitters := []splitter{c.nextGPT2, c.nextLlama3, c.nextQwen2, c.nextDigit, c.nextNumber, nextWhole}
	later := laterSplitters(f)
	for _, name := range slices.Sorted(maps.Keys(later)) {
		splitters = append(splitters, later[name])
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, next := range splitters {
			for rest := text; rest != ""; {
				n := next(rest)
				if n < 1 || n > len(rest) {
					t.Fatalf("splitter %d: %d bytes of %q", i, n, rest)
				}
				rest = rest[n:]
			}
		}
	})
}
