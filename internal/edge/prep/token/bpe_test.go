package token

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// naiveMerge is the definition of byte-pair encoding: of all neighbours that
// merge take the one of the lowest rank, the leftmost first, until there is none.
func naiveMerge(m *bpe, ranks map[[2]kv.Token]mergeResult, word string) []kv.Token {
	var ids []kv.Token
	for i := range len(word) {
		ids = append(ids, m.byteTokens[word[i]])
	}
	for {
		best := -1
		for i := range len(ids) - 1 {
			r, ok := ranks[[2]kv.Token{ids[i], ids[i+1]}]
			if ok && (best < 0 || r.rank < ranks[[2]kv.Token{ids[best], ids[best+1]}].rank) {
				best = i
			}
		}
		if best < 0 {
			return ids
		}
		ids[best] = ranks[[2]kv.Token{ids[best], ids[best+1]}].id
		ids = slices.Delete(ids, best+1, best+2)
	}
}

// randomModel has merges over a few letters in an order that no training would
// give, so that results merge again at lower ranks.
func randomModel(rng *rand.Rand) (*bpe, map[[2]kv.Token]mergeResult) {
	m := &bpe{merger: merger{merges: newPairTable(100)}, cache: new(wordCache)}
	for b := range m.byteTokens {
		m.byteTokens[b] = kv.Token(b)
	}
	entries := map[string]kv.Token{"a": 'a', "b": 'b', "c": 'c'}
	names := []string{"a", "b", "c"}
	ranks := map[[2]kv.Token]mergeResult{}
	order := rng.Perm(100)
	for _, rank := range order {
		left, right := names[rng.IntN(len(names))], names[rng.IntN(len(names))]
		joined := left + right
		if len(joined) > 9 {
			continue
		}
		if _, ok := entries[joined]; !ok {
			entries[joined] = kv.Token(256 + len(entries))
			names = append(names, joined)
		}
		found := mergeResult{uint32(rank), entries[joined]}
		m.merges.addMerge(entries[left], entries[right], found)
		ranks[[2]kv.Token{entries[left], entries[right]}] = found
	}
	var words []lexiconWord
	for _, name := range names {
		words = append(words, lexiconWord{name, entries[name]})
	}
	m.lexicon = newLexicon(&m.merger, words, m.appendBytes)
	return m, ranks
}

// mergeHeap merges a word with a heap, however short it is.
func mergeHeap(m *bpe, word string) []kv.Token {
	return new(mergeScratch).mergeAll(m.merges, m.appendBytes(nil, word))
}

func TestMergeAgainstDefinition(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, ranks := randomModel(rng)
		for range 20 {
			word := randomWord(rng, 1+rng.IntN(shortWord))
			want := naiveMerge(m, ranks, word)
			if got := m.mergeShort(m.appendBytes(nil, word)); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %q merges to %v, want %v", seed, word, got, want)
			}
			if got := mergeHeap(m, word); !slices.Equal(got, want) {
				t.Fatalf("seed %d: with a heap %q merges to %v, want %v", seed, word, got, want)
			}
		}
		word := randomWord(rng, 300)
		if got, want := m.mergeSymbols(m.appendBytes(nil, word)), naiveMerge(m, ranks, word); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q merges to %v, want %v", seed, word, got, want)
		}
	}
}

func randomWord(rng *rand.Rand, n int) string {
	word := make([]byte, n)
	for i := range word {
		word[i] = "aaabbc"[rng.IntN(6)]
	}
	return string(word)
}

// TestMergeMemory bounds the heap for a word by all the candidates there can be:
// one for each neighbour and two for each merge.
func TestMergeMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, _ := randomModel(rng)
	word := randomWord(rng, 30_000)
	s := new(mergeScratch)
	s.mergeAll(m.merges, m.appendBytes(nil, word))
	if cap(s.heap) > 4*len(word) {
		t.Errorf("the heap grew to %d for a word of %d bytes", cap(s.heap), len(word))
	}
}

func TestPairsAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	p := newPairTable(5000)
	want := map[[2]kv.Token]mergeResult{}
	for i := range uint32(5000) {
		left, right := kv.Token(rng.IntN(200)), kv.Token(rng.IntN(200))
		m := mergeResult{i, kv.Token(rng.Uint32())}
		p.addMerge(left, right, m)
		want[[2]kv.Token{left, right}] = m
	}
	for left := range kv.Token(200) {
		for right := range kv.Token(200) {
			w, ok := want[[2]kv.Token{left, right}]
			if !ok {
				w = mergeResult{rank: noMerge}
			}
			got := mergeResult{rank: p.lookupRank(left, right)}
			if got.rank != noMerge {
				got.id = p.mergedID(got.rank)
			}
			if got != w {
				t.Fatalf("%d and %d become %v; want %v", left, right, got, w)
			}
		}
	}
}

// TestConcurrentEncode has encoders of the same words meet in the cache.
func TestConcurrentEncode(t *testing.T) {
	texts := fixtureTexts(t)
	tok := fixtureTokenizer(t, "gpt2")
	var want fixtureResults
	unmarshalFixture(t, "gpt2.results", &want)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var ids []kv.Token
			for i, text := range texts {
				ids = tok.Encode(ids[:0], text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
				if !slices.Equal(ids, want.Default[i]) {
					t.Errorf("text %d: got %v, want %v", i, ids, want.Default[i])
				}
			}
		})
	}
	wg.Wait()
}

func TestEncodeDoesNotAllocate(t *testing.T) {
	const text = "The router knows which worker holds which blocks:\n\tif err != nil { return 12345 }\n\n  café 你好 <|end|>"
	for _, name := range fixtureNames {
		if name == "smollm" {
			continue // puts a space before its words, which copies them
		}
		tok := fixtureTokenizer(t, name)
		ids := make([]kv.Token, 0, 2*len(text))
		for _, opts := range []prep.EncodeOptions{{}, {ParseSpecial: true, AddSpecial: true}} {
			if n := testing.AllocsPerRun(100, func() { ids = tok.Encode(ids[:0], text, opts) }); n != 0 {
				t.Errorf("%s %+v: %v allocations", name, opts, n)
			}
		}
	}
}
