package tiny

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"

	"github.com/zeebo/xxh3"
)

// vocabulary is similar to the embedded tokenizer's: bytes and special tokens masked, 2,048 in all.
func vocabulary() Vocabulary {
	v := Vocabulary{Size: 2048, EOS: []kv.Token{2047}, Mask: []kv.Token{2046, 2047}}
	for i := range 130 {
		v.Mask = append(v.Mask, kv.Token(i))
	}
	return v
}

func newBuiltin(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	cfg := Config{Vocabulary: vocabulary(), Blocks: 1024, Text: pieceText}
	if change != nil {
		change(&cfg)
	}
	e, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// greedy returns a request for n greedy tokens after a prompt that depends on
// seed in every token.
func greedy(seed, prompt, n int) *engine.Request {
	req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true}}
	for i := range prompt {
		req.Prompt = append(req.Prompt, kv.Token(130+randomOutput(uint64(seed), uint64(i))%1900))
	}
	return req
}

func TestBuiltinSpeaks(t *testing.T) {
	e := newBuiltin(t, nil)
	ctx := enginetest.Start(t, e)
	mask := vocabulary().Mask
	var wg sync.WaitGroup
	for seed := range 6 {
		wg.Go(func() {
			req := greedy(seed, 5+seed*8, 200)
			got, err := enginetest.Generate(ctx, e, req)
			if err != nil {
				t.Errorf("prompt %d: %v", seed, err)
				return
			}
			tokens := got[0].Tokens
			if len(tokens) != 200 || slices.ContainsFunc(tokens, func(x kv.Token) bool { return slices.Contains(mask, x) }) {
				t.Errorf("prompt %d: %d tokens, or a masked one among %v", seed, len(tokens), tokens)
			}
			distinct := map[kv.Token]bool{}
			for _, x := range tokens {
				distinct[x] = true
			}
			if len(distinct) < 100 {
				t.Errorf("prompt %d: %d distinct tokens of 200; want at least 100", seed, len(distinct))
			}
		})
	}
	wg.Wait()
}

func TestBuiltinListensToEveryToken(t *testing.T) {
	e := newBuiltin(t, nil)
	ctx := enginetest.Start(t, e)
	const length, output = 40, 24
	want := enginetest.MustGenerate(t, ctx, e, greedy(1, length, output))[0].Tokens
	for at := 0; at < length; at += 6 {
		req := greedy(1, length, output)
		req.Prompt[at] ^= 1
		if got := enginetest.MustGenerate(t, ctx, e, req)[0].Tokens; slices.Equal(got, want) {
			t.Errorf("another token at %d of the prompt: the same answer", at)
		}
	}
}

func TestBuiltinCard(t *testing.T) {
	card := newBuiltin(t, func(c *Config) { c.Blocks = 0 }).Card()
	if card.Name != "penstock-tiny" || card.BlockSize != 16 || card.ContextLength != 8192 || card.VocabSize != 2048 || card.DefaultMaxTokens != 128 {
		t.Errorf("card %+v", card)
	}
	shape := builtinShape(2048)
	if bytes := card.Blocks * shape.BlockBytes(card.BlockSize); bytes != 128<<20 {
		t.Errorf("the cache takes %d bytes by default, want 128 MiB", bytes)
	}
	other := vocabulary()
	other.Mask = other.Mask[1:]
	if again := newBuiltin(t, func(c *Config) { c.Vocabulary = other }).Card(); again.Numerics == card.Numerics {
		t.Error("another mask has the same numerics")
	}
}

// TestWeightsArePortable pins the bits of the built-in weights: they must be equal on every machine, since
// engines of equal numerics must be the same model.
func TestWeightsArePortable(t *testing.T) {
	shape := builtinShape(2048)
	weights := randomWeights(&shape, builtinSeed)
	text, encoders := xxh3.New(), xxh3.New() // the former existed first
	for _, name := range weights.Names() {
		h := text
		if strings.HasPrefix(name, "visual.") || strings.HasPrefix(name, "audio.") {
			h = encoders
		}
		for _, w := range weights[name].Data {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(w)))
		}
	}
	if got, want := text.Sum64(), uint64(0xf38fc2069bf2eedc); got != want {
		t.Errorf("digest of the decoder's weights %#x, want %#x", got, want)
	}
	if got, want := encoders.Sum64(), uint64(0x2fd62bc607998f3d); got != want {
		t.Errorf("digest of the encoders' weights %#x, want %#x", got, want)
	}
}

func TestFillIsNearlyNormal(t *testing.T) {
	const n, deviation = 300_000, 0.25
	x := make([]float32, n)
	fillNormal(x, 99, deviation)
	var mean, variance, beyond float64
	for _, v := range x {
		mean += float64(v) / n
		variance += float64(v) * float64(v) / n
		if math.Abs(float64(v)) > 2*deviation {
			beyond += 1. / n
		}
	}
	// The share beyond two deviations is 4.6 % of a normal distribution, and a
	// little less of four uniform summands.
	if math.Abs(mean) > 0.002 || math.Abs(math.Sqrt(variance)-deviation) > 0.001 || math.Abs(beyond-0.0425) > 0.002 {
		t.Errorf("mean %v, deviation %v, beyond two deviations %v", mean, math.Sqrt(variance), beyond)
	}
}

func BenchmarkWeights(b *testing.B) {
	shape := builtinShape(2048)
	for b.Loop() {
		randomWeights(&shape, builtinSeed)
	}
}
