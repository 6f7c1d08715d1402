package token

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestMergeWindows: windows of every small size give what the definition gives,
// also for merges in an order that no training would give.
func TestMergeWindows(t *testing.T) {
	settledOften := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m, ranks := randomModel(rng)
		s := new(mergeScratch)
		for range 10 {
			word := randomWord(rng, 20+rng.IntN(150))
			want := naiveMerge(m, ranks, word)
			for _, size := range []int{2, 3, 7, 16, 50} {
				if got := m.mergeWindows(nil, word, s, size); !slices.Equal(got, want) {
					t.Fatalf("seed %d: %q by %d bytes: %v, want %v", seed, word, size, got, want)
				}
			}
			ids, n := s.mergeSettled(nil, word, 16, m)
			if !slices.Equal(ids, want[:len(ids)]) {
				t.Fatalf("seed %d: %q: settled %v of %v", seed, word, ids, want)
			}
			if n >= 8 {
				settledOften++
			}
		}
	}
	if settledOften < 1000 {
		t.Errorf("only %d of 3000 windows were settled by half", settledOften)
	}
}

// TestLongWordMemory: the memory for long words without an end is that of a
// window or a few, whatever they are made of, and the ids are those of merging
// them in one go.
func TestLongWordMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	letters := make([]byte, 8*window)
	for i := range letters {
		letters[i] = byte('a' + rng.IntN(26))
	}
	words := []string{
		string(letters), strings.Repeat("a", 8*window), strings.Repeat("ab", 4*window), strings.Repeat("the", 3*window),
		strings.Repeat("=", 8*window), strings.Repeat(" ", 8*window), strings.Repeat("的", 3*window), strings.Repeat("\xff", 8*window),
	}
	for _, name := range []string{"gpt2", "llama3", "qwen2", "builtin"} {
		m := fixtureTokenizer(t, name).model
		for _, word := range words {
			s, whole := new(mergeScratch), new(mergeScratch)
			got := m.mergeWindows(nil, word, s, window)
			if want := whole.merge([]kv.Token(nil), word, m); !slices.Equal(got, want) {
				t.Errorf("%s: %q...: other ids than in one go", name, word[:9])
			}
			if len(s.symbols) > window || cap(s.symbols) > 2*window {
				t.Errorf("%s: %q...: %d symbols in memory", name, word[:9], cap(s.symbols))
			}
		}
	}
}
