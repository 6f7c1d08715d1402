package token

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// cutTokenizers are all whose texts are cut at seams: one for every pattern, as
// far as words go, and the fixtures'.
func cutTokenizers(tb testing.TB) map[string]*Tokenizer {
	tb.Helper()
	all := map[string]*Tokenizer{}
	for _, name := range []string{"gpt2", "llama3", "qwen2", "builtin"} {
		all[name] = fixtureTokenizer(tb, name)
	}
	split := func(pattern string) object {
		return object{"type": "Split", "behavior": "Isolated", "invert": false, "pattern": object{"Regex": pattern}}
	}
	for name, stages := range map[string][]any{
		"cl100k":      {split(PatternCL100K)},
		"qwen35":      {split(PatternQwen35)},
		"o200k":       {split(PatternO200K)},
		"tekken":      {split(PatternTekken)},
		"deepseek":    {split(patternNumbers3), split(patternHan), split(patternDeepSeek)},
		"punctuation": {object{"type": "Digits"}, object{"type": "Punctuation", "behavior": "Contiguous"}, split(PatternGPT2)},
	} {
		stages = append(stages, object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})
		tok, err := Parse(changed(tb, func(o object) {
			o["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": stages}
			o["normalizer"] = object{"type": "NFC"}
		}), nil)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		all[name] = tok
	}
	for name, tok := range all {
		if tok.chunks == nil {
			tb.Fatalf("%s has no seams", name)
		}
	}
	return all
}

// seamFragments are what meets at seams.
var seamFragments = []string{
	"a", "B", "é", "e\u0301", "世", "\u1161", "한", "1", "12", ".", "/", "'s", "'l", "'", "\u0301", "\x00", "\xff", "<|end|>", "<|user|>", "<|im_end|>",
	" ", " ", " ", "\n", "\n", "\n", "\r", "\t", "\u00a0", " the", "\nNext", " x y", "_", "😀", "\u200d", "<think>",
}

// TestSeams: at every seam of random texts, the ids of the two sides are those
// of the whole.
func TestSeams(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var texts []string
	for range 3000 {
		var b strings.Builder
		for range 2 + rng.IntN(8) {
			b.WriteString(seamFragments[rng.IntN(len(seamFragments))])
		}
		texts = append(texts, b.String())
	}
	texts = append(texts, fixtureTexts(t)...)
	for name, tok := range cutTokenizers(t) {
		seams := 0
		for _, text := range texts {
			for _, special := range []bool{false, true} {
				whole := tok.appendPlain(nil, text, special)
				for i := tok.chunks.classes.nextSeam(text, 0); i < len(text); i = tok.chunks.classes.nextSeam(text, i+1) {
					seams++
					parts := tok.appendPlain(tok.appendPlain(nil, text[:i], special), text[i:], special)
					if !slices.Equal(parts, whole) {
						t.Errorf("%s: %q | %q: %v, want %v", name, text[:i], text[i:], parts, whole)
					}
				}
			}
		}
		if seams < 1000 {
			t.Errorf("%s: only %d seams", name, seams)
		}
	}
}

// TestGrowingConversation: with chunks remembered, concurrently and under a
// budget that makes them go, ids are those without.
func TestGrowingConversation(t *testing.T) {
	texts := fixtureTexts(t)
	for name, tok := range cutTokenizers(t) {
		for _, budget := range []int{chunkBudget, 64 << 10} {
			tok.chunks = newChunkCache(tok.chunks.classes, budget)
			var wg sync.WaitGroup
			for seed := range uint64(3) {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, 7))
					text := ""
					var got []kv.Token
					for range 12 {
						for range 1 + rng.IntN(40) {
							text += texts[rng.IntN(len(texts))] + "\n"
						}
						special := rng.IntN(2) == 0
						got = tok.Encode(got[:0], text, prep.EncodeOptions{ParseSpecial: special})
						if !slices.Equal(got, tok.appendPlain(nil, text, special)) {
							t.Errorf("%s, seed %d, budget %d: a text of %d bytes has other ids", name, seed, budget, len(text))
						}
					}
				})
			}
			wg.Wait()
			stats := tok.Stats()
			if stats.Held > budget || stats.Held == 0 || stats.Hits == 0 || stats.Misses == 0 {
				t.Errorf("%s, budget %d: %+v", name, budget, stats)
			}
		}
	}
}

// TestChunksAreReused: of a text that grows, all but the last chunk.
func TestChunksAreReused(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	text := strings.Repeat("The router knows which worker holds which blocks. ", 200)
	tok.Encode(nil, text, prep.EncodeOptions{})
	first := tok.Stats()
	tok.Encode(nil, text+"And more.", prep.EncodeOptions{})
	second := tok.Stats()
	if again := second.Encoded - first.Encoded; again > 2*chunkSize {
		t.Errorf("%d bytes were encoded again: %+v, then %+v", again, first, second)
	}
	if reused := second.Reused - first.Reused; int(reused) < len(text)-2*chunkSize {
		t.Errorf("%d of %d bytes were reused", reused, len(text))
	}
}

func TestChunksByText(t *testing.T) {
	c := newChunkCache(newClasses(), 1<<20)
	plain, special := chunkKeyOf("one", false), chunkKeyOf("one", true)
	c.shardOf(plain).addChunk(plain, "one", []kv.Token{1})
	if got, ok := c.appendCached(nil, plain, "two"); ok {
		t.Errorf("a chunk was found by its hash alone: %v", got)
	}
	if got, ok := c.appendCached(nil, special, "one"); ok {
		t.Errorf("a chunk encoded without special tokens was found for one with them: %v", got)
	}
	if got, ok := c.appendCached([]kv.Token{7}, plain, "one"); !ok || !slices.Equal(got, []kv.Token{7, 1}) {
		t.Errorf("%v, %t", got, ok)
	}
	c.shardOf(plain).addChunk(plain, "two", []kv.Token{2})
	if got, ok := c.appendCached(nil, plain, "two"); !ok || !slices.Equal(got, []kv.Token{2}) {
		t.Errorf("another text of the same key did not take its place: %v, %t", got, ok)
	}
}

func TestChunksForgetTheOldest(t *testing.T) {
	text := func(i int) string { return fmt.Sprint("text ", i) }
	one := len(text(1)) + 4 + chunkOverhead
	s := &newChunkCache(newClasses(), 3*chunkShards*one).shards[0]
	for i := range 3 {
		s.addChunk(chunkKey(i), text(i), []kv.Token{kv.Token(i)})
	}
	s.appendCached(nil, 0, text(0))
	s.addChunk(3, text(3), []kv.Token{3})
	for i, want := range []bool{true, false, true, true} {
		if ids, ok := s.appendCached(nil, chunkKey(i), text(i)); ok != want || ok && ids[0] != kv.Token(i) {
			t.Errorf("chunk %d: %v, want %t", i, ids, want)
		}
	}
}

// TestChunksAgainstMap: what is found is what was remembered last under its key, memory
// is what the chunks take, and neither the table nor the slabs hold what was forgotten.
func TestChunksAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	s := &newChunkCache(newClasses(), chunkShards*40*(chunkOverhead+40)).shards[0]
	last := map[chunkKey]string{}
	idsOf := func(text string) (ids []kv.Token) {
		for i := range len(text) / 4 {
			ids = append(ids, kv.Token(text[4*i]))
		}
		return ids
	}
	found := 0
	for range 20_000 {
		key := chunkKey(rng.IntN(100))
		text := fmt.Sprint(key%90, strings.Repeat("x", rng.IntN(3)*7)) // some keys are of several texts
		if got, ok := s.appendCached(nil, key, text); ok {
			if found++; last[key] != text || !slices.Equal(got, idsOf(text)) {
				t.Fatalf("key %d: %v for %q; the last text was %q", key, got, text, last[key])
			}
		} else {
			s.addChunk(key, text, idsOf(text))
			last[key] = text
		}
		held, keys := 0, map[chunkKey]bool{}
		for _, slab := range s.mu.slabs {
			held += slab.byteSize()
			for _, key := range slab.keys {
				keys[key] = true
			}
		}
		if held != s.mu.held || held > s.mu.budget || len(keys) != len(s.mu.places) {
			t.Fatalf("%d bytes are held, %d counted, of %d; %d keys in slabs, %d in the table", held, s.mu.held, s.mu.budget, len(keys), len(s.mu.places))
		}
	}
	if found < 2000 {
		t.Errorf("only %d chunks were found", found)
	}
}

// TestChunksDoNotAllocate: neither does what is remembered once the budget is used up.
func TestChunksDoNotAllocate(t *testing.T) {
	s := &newChunkCache(newClasses(), chunkShards*64<<10).shards[0]
	text, ids := strings.Repeat("some text ", 50), make([]kv.Token, 120)
	key := chunkKey(0)
	for range 1000 {
		key++
		s.addChunk(key, text, ids)
	}
	dst := make([]kv.Token, 0, len(ids))
	if n := testing.AllocsPerRun(1000, func() {
		if _, ok := s.appendCached(dst, key, text); !ok {
			t.Fatal("forgotten")
		}
		key++
		s.addChunk(key, text, ids)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNoSeams: tokenizers that look over seams are not cut.
func TestNoSeams(t *testing.T) {
	tokens := func(content string) func(object) {
		return func(o object) { o["added_tokens"] = []any{object{"id": 5000, "content": content}} }
	}
	for name, change := range map[string]func(object){
		"letter in front":  tokens("word>"),
		"letter at end":    tokens("<word"),
		"space":            tokens(" "),
		"space and letter": tokens(" w>"),
		"space inside":     tokens("<two words>"),
		"line inside":      tokens("<two\nlines>"),
		"line and letter":  tokens("\nw>"),
		"single word":      func(o object) { o["added_tokens"] = []any{object{"id": 5000, "content": "<w>", "single_word": true}} },
		"space put before": func(o object) { o["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true} },
		"no words": func(o object) {
			o["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
		},
	} {
		tok, err := Parse(changed(t, func(o object) {
			change(o)
			o["post_processor"] = nil // it names tokens that are not there any more
		}), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if tok.chunks != nil {
			t.Errorf("%s: texts are cut", name)
		}
		text := strings.Repeat("one two\nthree ", 100)
		if ids := tok.Encode(nil, text, prep.EncodeOptions{}); !slices.Equal(ids, tok.appendPlain(nil, text, false)) || tok.Stats() != (Stats{}) {
			t.Errorf("%s: %d ids, %+v", name, len(ids), tok.Stats())
		}
	}
	if tok := fixtureTokenizer(t, "flags"); tok.chunks != nil {
		t.Error("flags: texts are cut")
	}
}
