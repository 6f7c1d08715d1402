package grammar

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock/core/fault"
)

// randomVocab returns n token texts: every byte, the empty text, and pieces of JSON.
func randomVocab(rng *rand.Rand, n int) [][]byte {
	var texts [][]byte
	for b := range 256 {
		texts = append(texts, []byte{byte(b)})
	}
	pieces := []string{`{"`, `":`, `",`, `"}`, `],`, `[[`, `]}`, `true`, `null`, `é`, `日`, `\u00`, `d83d`, `12`, `-1`, `.5`, `e+`, "a", "b", "left", "the", "ab", `\n`, " ", "\xe6\x97"}
	for len(texts) < n {
		var b []byte
		for range 1 + rng.IntN(4) {
			b = append(b, pieces[rng.IntN(len(pieces))]...)
		}
		texts = append(texts, b)
	}
	texts[n/2] = nil
	texts[n/2+1] = bytes.Repeat([]byte("a"), maxContentRunes+1)
	texts[n/2+2] = bytes.Repeat([]byte("日"), maxContentRunes)
	return texts
}

func vocabOf(texts [][]byte) *Vocab {
	return NewVocab(len(texts), func(id int) []byte { return texts[id] })
}

func maskOf(t testing.TB, m *MaskCache, s *State) []uint64 {
	mask, err := m.TokenMask(s)
	if err != nil {
		t.Fatal(err)
	}
	return mask
}

// TestMasks compares masks with one trial per token, in the states of random texts, with masks of other
// states cached.
func TestMasks(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	texts := randomVocab(rng, 900)
	vocab := vocabOf(texts)
	for range 60 {
		schema := withDefs(randomSchema(rng, 3))
		s := compiled(t, schema).NewState()
		masks := NewMaskCache(vocab)
		for range 4 {
			s.Reset()
			for range 25 {
				mask := maskOf(t, masks, s)
				var can []int
				for id, text := range texts {
					want := len(text) > 0 && s.clone().Write(text)
					if got := mask[id/64]>>(id%64)&1 == 1; got != want {
						t.Fatalf("%s: token %q allowed %v, may come %v", schema, text, got, want)
					}
					if want {
						can = append(can, id)
					}
				}
				if len(can) == 0 {
					if !s.IsComplete() {
						t.Fatalf("%s: dead end", schema)
					}
					break
				}
				s.Write(texts[can[rng.IntN(len(can))]])
			}
		}
	}
}

// TestCounting: masks cached for one number of characters or items are not used where another number allows
// something else.
func TestCounting(t *testing.T) {
	texts := [][]byte{[]byte(`"`), []byte("a"), []byte("aaaa"), []byte(`aa"`), []byte("["), []byte("]"), []byte(","), []byte("1"), []byte("1,1,1")}
	texts = append(texts, bytes.Repeat([]byte("日"), 8), bytes.Repeat([]byte("a"), maxContentRunes+2))
	masks := NewMaskCache(vocabOf(texts))
	s := compiled(t, `{"type":"string","minLength":40,"maxLength":160}`).NewState()
	s.Next('"')
	for n := range 161 {
		mask := maskOf(t, masks, s)[0]
		for id, text := range texts {
			if want := s.clone().Write(text); want != (mask>>id&1 == 1) {
				t.Fatalf("after %d characters %q may come: %v", n, text, want)
			}
		}
		if s.Next('a') != (n < 160) {
			t.Fatalf("character %d", n+1)
		}
	}
	if n := len(masks.cached); n < 100 || n > 145 {
		t.Errorf("%d masks are remembered", n)
	}
	masks = NewMaskCache(vocabOf(texts))
	s = compiled(t, `{"type":"array","items":{"const":1},"maxItems":9}`).NewState()
	s.Write([]byte("["))
	for n := range 9 {
		mask := maskOf(t, masks, s)[0]
		for id, text := range texts {
			if want := s.clone().Write(text); want != (mask>>id&1 == 1) {
				t.Fatalf("after %d items %q may come: %v", n, text, want)
			}
		}
		s.Write([]byte("1,"))
	}
}

// TestPartOfCharacter: without all continuation bytes no token ends within a
// character.
func TestPartOfCharacter(t *testing.T) {
	texts := [][]byte{[]byte("\xe6"), []byte("a\xe6\x97"), []byte("\xa5"), []byte("日"), []byte(`"`)}
	s := compiled(t, `{"type":"string"}`).NewState()
	s.Next('"')
	if mask := maskOf(t, NewMaskCache(vocabOf(texts)), s)[0]; mask != 1<<3|1<<4 {
		t.Errorf("allows %05b", mask)
	}
	for b := 0x80; b < 0xC0; b++ {
		texts = append(texts, []byte{byte(b)})
	}
	if mask := maskOf(t, NewMaskCache(vocabOf(texts)), s)[0]; mask&31 != 1<<0|1<<1|1<<3|1<<4 {
		t.Errorf("with continuations allows %05b", mask&31)
	}
}

// TestMasksAreBounded: states which do not recur do not fill the memory.
func TestMasksAreBounded(t *testing.T) {
	masks := NewMaskCache(vocabOf([][]byte{[]byte("1"), []byte(",")}))
	masks.maxCached = 50
	s := compiled(t, `{"type":"array","items":{"const":1},"maxItems":100000}`).NewState()
	s.Next('[')
	for range 500 {
		maskOf(t, masks, s)
		s.Write([]byte("1,"))
	}
	if n := len(masks.cached); n > 50 {
		t.Errorf("%d masks are kept", n)
	}
}

// TestMaskFrames: frames opened in one branch of the trie are dropped in the next.
func TestMaskFrames(t *testing.T) {
	s := compiled(t, `{"type":"array"}`).NewState()
	var texts [][]byte
	for i := range 1000 {
		texts = append(texts, fmt.Appendf(nil, "[%d,[", i))
	}
	maskOf(t, NewMaskCache(vocabOf(texts)), s)
	if n := cap(s.frames); n > 200 {
		t.Errorf("%d frames at once", n)
	}
}

// brackets returns every run of up to 9 brackets and commas.
func brackets() [][]byte {
	texts := [][]byte{nil}
	for at := 0; len(texts[at]) < 9; at++ {
		for _, b := range []byte("[],") {
			texts = append(texts, append(bytes.Clone(texts[at]), b))
		}
	}
	return texts
}

// TestAmbiguity: a mask which would take too long is refused, and leaves the state unchanged.
func TestAmbiguity(t *testing.T) {
	s := compiled(t, ladder()).NewState()
	s.Write([]byte(strings.Repeat("[", 20)))
	before := len(s.frames)
	_, err := NewMaskCache(vocabOf(brackets())).TokenMask(s)
	if fault.CodeOf(err) != fault.Invalid || err == nil {
		t.Fatalf("error %v, want %v", err, fault.Invalid)
	}
	if len(s.frames) != before || !s.Write([]byte(strings.Repeat("[", 10)+"null"+strings.Repeat("]", 30))) || !s.IsComplete() {
		t.Error("the state cannot go on")
	}
}

func TestAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	vocab := vocabOf(randomVocab(rng, 2000))
	s := compiled(t, `{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","maxLength":20},"b":{"anyOf":[{"type":"number"},{"type":"array"}]}},"required":["a"]}}`).NewState()
	masks := NewMaskCache(vocab)
	text := []byte(`[{"a":"xyz","b":[[1],{"k":-1.5}]},{"a":"","b":7}]`)
	scratch := make([]uint64, masks.words)
	run := func() {
		s.Reset()
		for _, b := range text {
			if maskOf(t, masks, s); !s.Next(b) {
				t.Fatal("refused")
			}
			if err := masks.walkTrie(s, scratch); err != nil { // of a state that is not known
				t.Fatal(err)
			}
		}
		if !s.IsComplete() {
			t.Fatal("not complete")
		}
	}
	run()
	if n := testing.AllocsPerRun(20, run); n != 0 {
		t.Errorf("a text allocates %v times, want 0", n)
	}
}

// benchTexts returns n different texts like those of a byte-level vocabulary.
func benchTexts(n int) [][]byte {
	rng := rand.New(rand.NewPCG(9, 9))
	texts := randomVocab(rng, 512)
	seen := map[string]bool{}
	for len(texts) < n {
		b := bytes.Repeat([]byte(" "), rng.IntN(2))
		for range 1 + rng.IntN(9) {
			b = append(b, "etaoinshrdlcumwfgypbvkjxqzETAOIN0123456789_-.,:\"{}[]"[min(rng.IntN(52), rng.IntN(52))])
		}
		if !seen[string(b)] {
			seen[string(b)] = true
			texts = append(texts, b)
		}
	}
	return texts[:n]
}

// BenchmarkMask computes the mask of an uncached state; "known" reads it from the cache.
func BenchmarkMask(b *testing.B) {
	schema := `{"type":"object","properties":{"name":{"type":"string"},"code":{"type":"string","maxLength":8},"when":{"type":"string","format":"date-time"},"n":{"type":"integer"}},"required":["name","code","when","n"]}`
	for _, size := range []int{1730, 128_000} {
		vocab := vocabOf(benchTexts(size))
		for _, c := range []struct{ name, at string }{
			{"start", ``},
			{"key", `{"na`},
			{"string", `{"name":"so`},
			{"short", `{"name":"so","code":"ab`},
			{"pattern", `{"name":"so","code":"ab","when":"2024-`},
			{"integer", `{"name":"so","code":"ab","when":"2024-01-01T00:00:00Z","n":12`},
		} {
			s := compiled(b, schema).NewState()
			if !s.Write([]byte(c.at)) {
				b.Fatal(c.at)
			}
			masks := NewMaskCache(vocab)
			mask := make([]uint64, masks.words)
			b.Run(fmt.Sprintf("%d/%s", size, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := masks.walkTrie(s, mask); err != nil {
						b.Fatal(err)
					}
				}
			})
			if c.name == "string" {
				b.Run(fmt.Sprintf("%d/known", size), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						maskOf(b, masks, s)
					}
				})
			}
		}
	}
}

func BenchmarkNext(b *testing.B) {
	s := compiled(b, `{"type":"array","items":{"type":"object"}}`).NewState()
	text := []byte(`[` + strings.Repeat(`{"name":"a string of some length","n":[1,2.5,true]},`, 20) + `{}]`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s.Reset()
		if !s.Write(text) {
			b.Fatal("refused")
		}
	}
}

func BenchmarkVocab(b *testing.B) {
	texts := benchTexts(128_000)
	for b.Loop() {
		vocabOf(texts)
	}
}
