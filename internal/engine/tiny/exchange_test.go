package tiny

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/patch"
)

// longNetwork is the network of seeing, for prompts of some thousand tokens.
func longNetwork(t testing.TB) func(change func(*Config)) *Engine {
	t.Helper()
	return colouredNetwork(t, builtinColours())
}

// colouredNetwork is longNetwork whose pictures are normalized with these colours.
func colouredNetwork(t testing.TB, colours patch.Colours) func(change func(*Config)) *Engine {
	t.Helper()
	shape := smallShape()
	shape.MaxPositions = 3000
	shape.MRope = [3]int{2, 1, 1}
	shape.Vision = model.Vision{Depth: 2, Dim: 16, Heads: 2, Intermediate: 24, Patch: 14, Merge: 2, Temporal: 2}
	shape.Audio = model.Audio{Frame: 160, Dim: 16}
	m, err := model.New(t.Context(), shape, randomWeights(&shape, 1))
	if err != nil {
		t.Fatal(err)
	}
	return func(change func(*Config)) *Engine {
		cfg := seeingConfig(change)
		e, err := newEngine(cfg, &network{
			model: m, eos: []kv.Token{7, 8}, mask: []kv.Token{0, 1, 2, 8, 90, 91, 92}, encoders: newMediaEncoders(&cfg, m, builtinFamily(t), colours),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { expectIdle(t, e.cpu.encoders) })
		return e
	}
}

// longPrompts are requests of up to 2,500 tokens: greedy and sampled, texts and such with pictures.
func longPrompts(t testing.TB, n int) (all []*engine.Request) {
	rng := rand.New(rand.NewPCG(7, 1))
	samplings := []engine.Sampling{{}, {Temperature: 1, Seed: 5}, {Temperature: 0.8, TopK: 30, TopP: 0.9, RepetitionPenalty: 1.2, Seed: 6}}
	for i := range n {
		family := i/4*2 + i%2 // two share a prefix, also one with a picture
		req := within(80, greedy(family, 2+rng.IntN(2450), 6))
		req.Prompt[len(req.Prompt)-1] = kv.Token(10 + i)
		req.ID, req.Logprobs, req.Sampling, req.Choices = fmt.Sprint("request-", i), 2, samplings[i%3], 1+i%4/3
		if i%2 == 1 {
			show(t, req, min(2, len(req.Prompt)-1), noise(media.Image, uint64(family), 28*2, 28*3, 3))
			show(t, req, len(req.Prompt)*2/3, noise(media.Image, uint64(100+i), 28*2, 28*2, 3))
		}
		all = append(all, req)
	}
	return all
}

// TestPrefillElsewhere: a prompt which one engine computes and another one continues gives the same tokens and the same
// log-probabilities as one engine alone, for all block sizes, and the second engine computes at most a block of it.
func TestPrefillElsewhere(t *testing.T) {
	open := longNetwork(t)
	requests := longPrompts(t, 8)
	alone1 := open(func(c *Config) { c.Reuse, c.BlockSize, c.Blocks = paged.Off, 16, 400 })
	want, _ := alone(t, enginetest.Start(t, alone1), alone1, requests)
	sizes := []int{16, 64, 128}
	for _, from := range sizes {
		for _, to := range sizes {
			t.Run(fmt.Sprintf("%d to %d", from, to), func(t *testing.T) {
				prefill := open(func(c *Config) { c.BlockSize, c.Blocks = from, 6400/from })
				decode, spy, ctx := spied(t, open(func(c *Config) { c.BlockSize, c.Blocks = to, 12800/to }))
				enginetest.Start(t, prefill)
				total, held := 0, 0
				for i, req := range requests {
					computed, encoded := spy.computed.Load(), decode.EncoderStats().Encoded
					got, m, err := enginetest.GenerateApart(ctx, prefill, decode, req)
					if err != nil {
						t.Fatalf("%s: %v", req.ID, err)
					}
					for c := range got {
						got[c].Cached = 0
					}
					same(t, req.ID, want[i:i+1], [][]enginetest.Choice{got})
					output := 0
					for _, c := range got {
						output += len(c.Tokens) - 1
					}
					// Another choice computes its part of the last block itself.
					most := int64(req.Choices*to + output)
					if n := spy.computed.Load() - computed; n > most {
						t.Errorf("%s: the decode engine computed %d of %d tokens, and at most %d are expected", req.ID, n, len(req.Prompt), most)
					}
					blocks := 0
					if m.Held < m.End {
						blocks = (m.End+from-1)/from - m.Held/from
					}
					if m.Bytes != blocks*prefill.BlockLayout().BlockBytes {
						t.Errorf("%s: %d bytes for the tokens %d to %d", req.ID, m.Bytes, m.Held, m.End)
					}
					if last := len(req.Media) - 1; last >= 0 && req.Media[last].End <= m.End && decode.EncoderStats().Encoded != encoded {
						t.Errorf("%s: the decode engine encoded a picture whose tokens it does not compute", req.ID)
					}
					total, held = total+m.End-m.Held, held+m.Held
				}
				if total < 5000 || held < 200 {
					t.Errorf("the test tested little: %d tokens were moved, %d were held", total, held)
				}
			})
		}
	}
}
