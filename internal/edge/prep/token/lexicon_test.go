package token

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// TestLexiconAgainstDefinition: the search gives what merging gives, also for
// merges in an order that no training would give, and comes to no position twice.
func TestLexiconAgainstDefinition(t *testing.T) {
	backwards := 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m, ranks := randomModel(rng)
		for range 10 {
			word := randomWord(rng, 1+rng.IntN(150))
			want := naiveMerge(m, ranks, word)
			s := new(lexiconScratch)
			if got := m.lexicon.searchTokens([]kv.Token{7}, word, s); !slices.Equal(got[1:], want) || got[0] != 7 {
				t.Fatalf("seed %d: %q: %v, want %v", seed, word, got, want)
			}
			if s.lookups > len(word) {
				t.Fatalf("seed %d: %q: %d positions of %d", seed, word, s.lookups, len(word))
			}
			if s.lookups > len(want) {
				backwards++
			}
		}
	}
	if backwards < 300 {
		t.Errorf("only %d of 6000 searches took anything back", backwards)
	}
}

// FuzzLexicon: the same, of models and words that are looked for.
func FuzzLexicon(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(uint64(1), "abcabcabc")
	f.Add(uint64(2), "aaaaaaaaaaaaaaaaaaab")
	f.Fuzz(func(t *testing.T, seed uint64, text string) {
		m, ranks := randomModel(rand.New(rand.NewPCG(seed, 10)))
		word := []byte(text[:min(len(text), 500)])
		for i := range word {
			word[i] = 'a' + word[i]%3
		}
		want := naiveMerge(m, ranks, string(word))
		s := new(lexiconScratch)
		if got := m.lexicon.searchTokens(nil, string(word), s); !slices.Equal(got, want) || s.lookups > len(word) {
			t.Fatalf("seed %d: %q: %v, want %v; %d positions", seed, word, got, want, s.lookups)
		}
		if got := m.mergeSymbols(m.appendBytes(nil, string(word))); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q merges to %v, want %v", seed, word, got, want)
		}
	})
}

// TestLongestEntry: against trying all.
func TestLongestEntry(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	for range 300 {
		m, _ := randomModel(rng)
		l := m.lexicon
		text := randomWord(rng, 1+rng.IntN(12)) + []string{"", "\x00", "\xff"}[rng.IntN(3)]
		longest := ""
		for i := range l.ids {
			if e := l.entryText(int32(i)); strings.HasPrefix(text, e) && len(e) > len(longest) {
				longest = e
			}
		}
		if got := l.longestEntry(text); l.entryText(got) != longest {
			t.Errorf("%q: %q, want %q", text, l.entryText(got), longest)
		}
	}
}

// longWords are words that only a hostile client sends, of n bytes or a few less.
func longWords(n int) map[string]string {
	rng := rand.New(rand.NewPCG(8, 8))
	letters, two := make([]byte, n), make([]byte, n)
	for i := range letters {
		letters[i] = byte('a' + rng.IntN(26))
		two[i] = "ab"[rng.IntN(2)]
	}
	words := map[string]string{"letters": string(letters), "two letters": string(two)}
	for name, s := range map[string]string{
		"a": "a", "ab": "ab", "the": "the", "signs": "=", "spaces": " ", "tabs": "\t", "lines": "\n", "Chinese": "的", "Chinese word": "中文字符",
		"marks": "▁", "accents": "\u0301", "digits": "1", "emoji": "👩‍👩‍👧‍👦", "broken": "\xff",
	} {
		words[name] = strings.Repeat(s, n/len(s))
	}
	return words
}

// TestLongWords: the models of the fixtures give for long words what merging them
// in one go gives.
func TestLongWords(t *testing.T) {
	words := longWords(3 * longWord)
	for _, name := range caseNames {
		tok, _, _ := readCases(t, name)
		for kind, text := range words {
			if tok.charLevel == nil {
				if got, want := tok.model.lexicon.appendWord(nil, text), mergeHeap(tok.model, text); !slices.Equal(got, want) {
					t.Errorf("%s: %s: other ids than in one go", name, kind)
				}
				continue
			}
			m := charModel(tok)
			if m == nil || !utf8.ValidString(text) {
				continue
			}
			text = "x" + strings.ReplaceAll(text, " ", spaceMark) + "\u0600\u0600y"
			got, want := m.appendLong(nil, text), m.merger.mergeSymbols(m.appendSymbols(nil, text))
			if !slices.Equal(got, want) {
				t.Errorf("%s: %s: other ids than in one go", name, kind)
			}
		}
	}
}

// charModel returns the byte-pair encoding of characters that tok has, nil if it
// has none.
func charModel(tok *Tokenizer) *charBPE {
	switch model := tok.charLevel.model.(type) {
	case *cachedModel:
		m, _ := model.model.(*charBPE)
		return m
	case *spaceMarkSplitter:
		return model.words.model.(*charBPE)
	}
	return nil
}

// TestHostileMemory bounds what encoding a long text takes beside its ids, in
// bytes allocated for each byte of text, garbage included: nothing to speak of
// where no normalizer rewrites the text. A text that normalizing makes longer
// counts as long as it gets.
func TestHostileMemory(t *testing.T) {
	const size, scratch = 128 << 10, 256 << 10
	words := longWords(size)
	words["ligatures"] = strings.Repeat("ﷺ", size/3)
	words["mixed marks"] = strings.Repeat("\u0301\u0316", size/4)
	words["short words"] = strings.Repeat("a b ", size/4)
	for name, budget := range map[string]float64{
		"gpt2": 0.1, "llama3": 0.1, "gpt4o": 0.1, "deepseek": 0.1, "qwen2": 16,
		"llama": 8, "gemma": 8, "mistral": 8, "t5": 16, "xlmr": 30, "bert": 16, "marks": 20,
	} {
		tok, _, _ := readCases(t, name)
		ids := make([]kv.Token, 0, 16*size)
		for kind, text := range words {
			tok.Encode(ids, "a b", prep.EncodeOptions{}) // what is made once
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			tok.Encode(ids, text, prep.EncodeOptions{ParseSpecial: true})
			runtime.ReadMemStats(&after)
			taken := float64(after.TotalAlloc - before.TotalAlloc)
			if length := max(len(text), len(tok.normalize(text))); taken > scratch+budget*float64(length) {
				t.Errorf("%s: %s: %v bytes for %d, more than %v for each", name, kind, taken, length, budget)
			}
		}
	}
}
