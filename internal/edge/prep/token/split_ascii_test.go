package token

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// naivePlainWord is asciiWord by the character.
func naivePlainWord(text string) int {
	rest := strings.TrimPrefix(text, " ")
	word := len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }))
	if word == 0 || word < len(rest) && rest[word] >= 0x80 {
		return 0
	}
	return len(text) - len(rest) + word
}

// TestPlainWord: at every place of random texts, a plain word is one, and what is found for a
// pattern is its first match.
func TestPlainWord(t *testing.T) {
	patterns := map[string]splitter{}
	finds := map[string]int{}
	for _, p := range []string{PatternGPT2, PatternLlama3, PatternCL100K, PatternQwen2, PatternQwen35, PatternO200K, PatternTekken} {
		patterns[p], _ = Splitter(p)
	}
	fragments := []string{
		"a", "Z", "z", "A", "@", "[", "`", "{", "word", "Longer", "camelCase", "CAPITALS", "abcdefg", "abcdefgh", " ", " ", "\n", "\x00", "1", ".", "'s", "'", "ſ", "é", "e\u0301", "世", "\xff", "\x7f",
	}
	rng := rand.New(rand.NewPCG(4, 4))
	for range 20_000 {
		var b strings.Builder
		for range 1 + rng.IntN(8) {
			b.WriteString(fragments[rng.IntN(len(fragments))])
		}
		for text := b.String(); text != ""; text = text[1:] {
			n := asciiWord(text)
			if want := naivePlainWord(text); n != want {
				t.Fatalf("%q: a plain word of %d bytes, want %d", text, n, want)
			}
			for p, next := range patterns {
				if n := asciiWordFinder(p)(text); n > 0 {
					if finds[p]++; next(text) != n {
						t.Fatalf("%q: a plain word of %d bytes, and of %d by %s", text, n, next(text), p)
					}
				}
			}
		}
	}
	for p := range patterns {
		if finds[p] < 10_000 {
			t.Errorf("only %d plain words by %s", finds[p], p)
		}
	}
}

func TestLetterRun(t *testing.T) {
	for b := range 256 {
		for at := range 8 {
			text := []byte("aZmQzAbY")
			text[at] = byte(b)
			want := 8
			if !isLatinLetter(byte(b)) {
				want = at
			}
			if got := letterRun(loadUint64(string(text))); got != want {
				t.Errorf("byte %#x at %d: a run of %d, want %d", b, at, got, want)
			}
		}
	}
}
