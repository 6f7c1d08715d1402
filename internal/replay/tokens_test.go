package replay

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// digest returns a hash of token ids that a golden can hold.
func digest(tokens []kv.Token) uint64 {
	h := fnv.New64a()
	for _, t := range tokens {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(t)))
	}
	return h.Sum64()
}

// TestGoldenTokens holds the ids themselves: results of other machines and of
// earlier versions stay comparable only as long as the prompts are the same.
func TestGoldenTokens(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Request
		v    Vocabulary
		len  int
		want uint64
	}{
		{"blocks", Request{Input: 1300, Blocks: []int64{0, 7, 1 << 40}, BlockTokens: 512}, Vocabulary{}, 1300, 0xc6bebb286289281c},
		{"short blocks", Request{Index: 3, Input: 40, Blocks: []int64{5, -6}, BlockTokens: 16}, Vocabulary{}, 40, 0x8a303cb356cf1496},
		{"unique", Request{Index: 41, Input: 257}, Vocabulary{}, 257, 0x1ab69aaf2c1a7840},
		{"seed", Request{Index: 41, Input: 257}, Vocabulary{Seed: 9}, 257, 0xc39e74ed996e5756},
		{"vocabulary", Request{Index: 41, Input: 257}, Vocabulary{Low: 10, High: 100_000}, 257, 0x42cfc64439a27c55},
		{"text", Request{Text: "What a word is truth, and what is it not?"}, Vocabulary{}, 11, 0x67b083d0645890ad},
		{"messages", Request{Tools: []byte(`[{}]`), Messages: []byte(`[{"role":"user"}]`)}, Vocabulary{}, 6, 0xc20bb772b3f2708e},
		{"media", Request{Input: 90, Media: []Media{{ID: "a", Tokens: 30}, {ID: "b", Tokens: 40}}}, Vocabulary{}, 90, 0x8095d137d963b9b0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := AppendTokens(nil, &c.r, c.v)
			if n := CountPromptTokens(&c.r); len(got) != c.len || n != c.len {
				t.Errorf("%d tokens, said to be %d, want %d", len(got), n, c.len)
			}
			if d := digest(got); d != c.want {
				t.Errorf("digest is %#x, want %#x", d, c.want)
			}
			low, high := c.v.Low, c.v.High
			if high == 0 {
				low, high = 256, 1280
			}
			for i, id := range got {
				if id < low || id >= high {
					t.Fatalf("token %d is %d, out of [%d, %d)", i, id, low, high)
				}
			}
		})
	}
}

// naiveTokens is AppendTokens for Blocks and unique prompts, token by token, from
// the definition: the i-th id of a piece is half of the i/2-th output of a SplitMix64
// generator.
func naiveTokens(r *Request, v Vocabulary) []kv.Token {
	at := func(piece, name uint64, i int) kv.Token {
		g := splitmix.Source(splitmix.Mix(splitmix.Mix(name) ^ splitmix.Mix(v.Seed*splitmix.Step+piece)))
		var x uint64
		for range i/2 + 1 {
			x = g.Next()
		}
		if i%2 == 0 {
			x >>= 32
		}
		return v.Low + kv.Token(uint64(uint32(x))*uint64(v.High-v.Low)>>32)
	}
	var out []kv.Token
	for i := range r.Input {
		block := 0
		if len(r.Blocks) > 0 {
			block = i / r.BlockTokens
		}
		switch covered := len(r.Blocks) * r.BlockTokens; {
		case i < covered:
			out = append(out, at(pieceBlock, uint64(r.Blocks[block]), i%r.BlockTokens))
		default:
			out = append(out, at(pieceUnique, uint64(r.Index), i-covered))
		}
	}
	return out
}

func TestTokensAreThoseOfTheDefinition(t *testing.T) {
	g := newRandomSource(1, 1)
	for round := range 200 {
		v := Vocabulary{Low: kv.Token(g.Below(1000)), Seed: uint64(g.Below(3))}
		v.High = v.Low + 1 + kv.Token(g.Below(1<<20))
		r := Request{Index: round, Input: g.Below(200), BlockTokens: 1 + g.Below(40)}
		for range g.Below(6) {
			r.Blocks = append(r.Blocks, int64(g.Below(4))-1)
		}
		if got, want := AppendTokens(nil, &r, v), naiveTokens(&r, v); !slices.Equal(got, want) {
			t.Fatalf("%+v under %+v:\n%v, want\n%v", r, v, got, want)
		}
	}
}

func TestPromptsShareWhatTheirNamesSay(t *testing.T) {
	prompt := func(r Request) []kv.Token { return AppendTokens(nil, &r, Vocabulary{}) }
	common := func(a, b []kv.Token) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	a := prompt(Request{Index: 1, Input: 1100, Blocks: []int64{1, 2, 3}, BlockTokens: 512})
	b := prompt(Request{Index: 2, Input: 1500, Blocks: []int64{1, 2, 4}, BlockTokens: 512})
	if n := common(a, b); n != 1024 {
		t.Errorf("two equal blocks of 512 share %d tokens", n)
	}
	if c := prompt(Request{Input: 1050, Blocks: []int64{1, 2, 3}, BlockTokens: 512}); !slices.Equal(c, a[:1050]) {
		t.Error("a prompt cut short is not a prefix of the whole")
	}
	if n := common(prompt(Request{Index: 1, Input: 64}), prompt(Request{Index: 2, Input: 64})); n > 2 {
		t.Errorf("unique prompts share %d tokens", n)
	}
	if n := common(prompt(Request{Input: 64}), prompt(Request{Input: 64, Blocks: []int64{0}, BlockTokens: 64})); n > 2 {
		t.Errorf("a unique prompt shares %d tokens with a block", n)
	}
	for _, r := range []Request{{Model: "m"}, {Salt: "m"}, {Model: "m", Salt: "m"}} {
		r.Input, r.Blocks, r.BlockTokens = 1024, []int64{1, 2}, 512
		if n := common(a, prompt(r)); n > 2 {
			t.Errorf("under model %q and salt %q a prompt shares %d tokens", r.Model, r.Salt, n)
		}
	}
	x, y := prompt(Request{Text: "one two three four"}), prompt(Request{Text: "one two three and four"})
	if n := common(x, y); n != 3 { // "one two thre" is equal, "e fo" is not "e an"
		t.Errorf("texts with 14 equal bytes share %d tokens", n)
	}
	p := prompt(Request{Index: 1, Input: 80, Media: []Media{{ID: "p", Tokens: 50}}})
	q := prompt(Request{Index: 2, Input: 80, Media: []Media{{ID: "p", Tokens: 50}}})
	if n := common(p, q); n < 50 || n > 52 {
		t.Errorf("prompts that show the same image of 50 tokens first share %d", n)
	}
}

func TestTextSharesWhatTokensShare(t *testing.T) {
	list := commonWords()
	if len(list) != 256 || len(slices.Compact(slices.Sorted(slices.Values(list)))) != 256 {
		t.Fatalf("%d words, of which some twice", len(list))
	}
	a := AppendText(nil, &Request{Input: 100, Blocks: []int64{1, 2}, BlockTokens: 64}, 0)
	b := AppendText(nil, &Request{Input: 128, Blocks: []int64{1, 3}, BlockTokens: 64}, 0)
	if n := len(strings.Fields(string(a))); n != 100 {
		t.Errorf("a prompt of 100 tokens has %d words", n)
	}
	shared := AppendText(nil, &Request{Input: 64, Blocks: []int64{1}, BlockTokens: 64}, 0)
	if !bytes.HasPrefix(a, shared) || !bytes.HasPrefix(b, shared) {
		t.Error("prompts with the same first block begin differently")
	}
	if bytes.Equal(shared, AppendText(nil, &Request{Input: 64, Blocks: []int64{1}, BlockTokens: 64}, 1)) {
		t.Error("another seed gives the same text")
	}
	if got := AppendText(nil, &Request{Text: "Hello", Input: 9}, 0); string(got) != "Hello" {
		t.Errorf("a prompt that is a text becomes %q", got)
	}
}

func TestAppendTokensAllocatesNothing(t *testing.T) {
	r := Request{Input: 1000, Blocks: []int64{1, 2}, BlockTokens: 512}
	text := Request{Text: strings.Repeat("word ", 100)}
	dst := make([]kv.Token, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		dst = AppendTokens(dst[:0], &r, Vocabulary{})
		dst = AppendTokens(dst[:0], &text, Vocabulary{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppendTokens(b *testing.B) {
	r := Request{Input: 64 * 512, BlockTokens: 512}
	for i := range 64 {
		r.Blocks = append(r.Blocks, int64(i))
	}
	var dst []kv.Token
	for b.Loop() {
		dst = AppendTokens(dst[:0], &r, Vocabulary{})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(r.Input), "ns/token")
}
