package token

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/kv"
)

// idsOf is what a word is remembered with in these tests: a function of the word, of
// one to five ids, some of them too large to be kept by value.
func idsOf(word string) []kv.Token {
	sum := kv.Token(7)
	for i := range len(word) {
		sum = sum*31 + kv.Token(word[i])
	}
	ids := make([]kv.Token, 1+sum%5)
	for i := range ids {
		ids[i] = (sum + kv.Token(i)*977) % (1<<idBits + 1<<10)
	}
	return ids
}

// cacheWords are words of every length around what is kept by value, in a text
// that goes on after them.
func cacheWords(rng *rand.Rand, n int) (texts []string, lengths []int) {
	for range n {
		b := make([]byte, 1+rng.IntN(24))
		for i := range b {
			b[i] = "ab \x00\xff"[rng.IntN(5)]
		}
		texts, lengths = append(texts, string(b)+strings.Repeat("a", rng.IntN(20))), append(lengths, len(b))
	}
	return texts, lengths
}

// TestCacheAgainstFunction: what is found is what was put, whatever follows in the
// text, and what was never put is not found.
func TestCacheAgainstFunction(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	c := new(wordCache)
	put := map[string]bool{}
	found := 0
	for range 20 {
		texts, lengths := cacheWords(rng, 5000)
		for i, text := range texts {
			word := text[:lengths[i]]
			got, ok := c.appendCached([]kv.Token{9}, text, lengths[i])
			if ok && !put[word] {
				t.Fatalf("%q was found and never put", word)
			}
			if want := append([]kv.Token{9}, idsOf(word)...); ok && !slices.Equal(got, want) {
				t.Fatalf("%q: %v, want %v", word, got, want)
			}
			if !ok && len(got) != 1 {
				t.Fatalf("%q: not found, but %v", word, got)
			}
			if ok {
				found++
			} else {
				c.addWord(word, idsOf(word))
				put[word] = true
			}
		}
	}
	if found < 10_000 {
		t.Errorf("only %d of 100000 words were found", found)
	}
}

// TestCacheKeepsFourOfALine: of five words of one line, four are kept, and the last is.
func TestCacheKeepsFourOfALine(t *testing.T) {
	c := new(wordCache)
	lines := map[uint64][]string{}
	for i := 0; ; i++ {
		word := fmt.Sprint("w", i)
		line := newShortKey(word, len(word)).spreadHash() >> lineShift
		lines[line] = append(lines[line], word)
		if len(lines[line]) < 5 {
			continue
		}
		for j, w := range lines[line] {
			c.addWord(w, idsOf(w)[:1])
			kept := 0
			for _, w := range lines[line] {
				if got, ok := c.appendCached(nil, w, len(w)); ok && slices.Equal(got, idsOf(w)[:1]) {
					kept++
				}
			}
			if _, ok := c.appendCached(nil, w, len(w)); !ok || kept != min(j+1, 4) {
				t.Errorf("after %d words %d are kept; the last is: %t", j+1, kept, ok)
			}
		}
		return
	}
}

func TestCacheCopies(t *testing.T) {
	for _, word := range []string{"word", "a word that is not kept by value"} {
		c := new(wordCache)
		ids := []kv.Token{1, 2}
		c.addWord(word, ids)
		ids[0] = 9
		if got, ok := c.appendCached(nil, word, len(word)); !ok || !slices.Equal(got, []kv.Token{1, 2}) {
			t.Errorf("%q: cached %v", word, got)
		}
	}
}

// TestCacheUnderWriters: readers beside writers of the same few lines see a word with
// its own ids or none.
func TestCacheUnderWriters(t *testing.T) {
	c := new(wordCache)
	words := make([]string, 0, 64)
	for i := 0; len(words) < cap(words); i++ {
		if w := fmt.Sprint("w", i); newShortKey(w, len(w)).spreadHash()>>lineShift%4096 == 0 {
			words = append(words, w)
		}
	}
	var found [4]int
	var wg sync.WaitGroup
	for g := range found {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 50_000 {
				w := words[rng.IntN(len(words))]
				got, ok := c.appendCached(nil, w, len(w))
				if !ok {
					c.addWord(w, idsOf(w))
				} else if found[g]++; !slices.Equal(got, idsOf(w)) {
					t.Errorf("%q: %v, want %v", w, got, idsOf(w))
				}
			}
		})
	}
	wg.Wait()
	for g, n := range found {
		if n == 0 {
			t.Errorf("reader %d found nothing", g)
		}
	}
}

// TestCacheLeavesALineInWriting: a line that a writer has not left is neither read nor written.
func TestCacheLeavesALineInWriting(t *testing.T) {
	c := new(wordCache)
	c.addWord("word", []kv.Token{1})
	l := &c.lines[newShortKey("word", 4).spreadHash()>>lineShift]
	l.version.Add(1)
	if got, ok := c.appendCached(nil, "word", 4); ok {
		t.Errorf("read %v in the middle of a change", got)
	}
	c.addWord("word", []kv.Token{2})
	l.version.Add(1)
	if got, ok := c.appendCached(nil, "word", 4); !ok || !slices.Equal(got, []kv.Token{1}) {
		t.Errorf("%v, %t", got, ok)
	}
}
