package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestSumIsNaive compares the summed hidden states with the naive decoder, in one piece and beyond the
// arena's end.
func TestSumIsNaive(t *testing.T) {
	for name, cfg := range shapes {
		for _, k := range kernels() {
			t.Run(name+"/"+k.kernelName(), func(t *testing.T) {
				t.Parallel()
				weights := randomWeights(cfg, 7)
				m, err := newModel(t.Context(), cfg, weights, k)
				if err != nil {
					t.Fatal(err)
				}
				tokens := randomTokens(rand.New(rand.NewPCG(3, 8)), 30, cfg.VocabSize)
				want := make([]float64, cfg.HiddenSize)
				for _, hidden := range naiveHidden(cfg, weights, tokens) {
					for d, v := range hidden {
						want[d] += v
					}
				}
				got := make([]float64, cfg.HiddenSize)
				forward(t, m, newTestCache(m, 2, 16, 13, 2), Work{Tokens: tokens, Blocks: table(0, 30, 16), Sum: got})
				for d := range want {
					if diff := math.Abs(got[d] - want[d]); !(diff < 1e-3) {
						t.Fatalf("element %d: got %v, want %v", d, got[d], want[d])
					}
				}
			})
		}
	}
}

// TestSumIdentity expects the same bits whatever else is in the batch, wherever the sequence is cut, and
// whichever logits are requested.
func TestSumIdentity(t *testing.T) {
	eachModel(t, func(t *testing.T, m *Model) {
		rng := rand.New(rand.NewPCG(5, 8))
		tokens, other := randomTokens(rng, 90, m.cfg.VocabSize), randomTokens(rng, 90, m.cfg.VocabSize)
		want := make([]float64, m.cfg.HiddenSize)
		c := newTestCache(m, 12, 16, arenaRows, 1)
		forward(t, m, c, Work{Tokens: tokens, Blocks: table(0, 90, 16), Sum: want})
		for _, rows := range []int{1, 7, arenaRows} {
			c := newTestCache(m, 12, 16, rows, 3)
			for cut := 1; cut < len(tokens); cut += 11 {
				poison(c)
				got, beside := make([]float64, m.cfg.HiddenSize), make([]float64, m.cfg.HiddenSize)
				logits := make([]float32, m.cfg.VocabSize)
				forward(t, m, c,
					Work{Tokens: other[:cut], Blocks: table(6, 90, 16), Sum: beside},
					Work{Tokens: tokens[:cut], Blocks: table(0, 90, 16), Sum: got, Logits: logits})
				forward(t, m, c,
					Work{Tokens: tokens[cut:], Start: cut, Blocks: table(0, 90, 16), Sum: got},
					Work{Tokens: other[cut:], Start: cut, Blocks: table(6, 90, 16), Sum: beside})
				if err := sameSum(got, want); err != nil {
					t.Fatalf("slab of %d, cut at %d: %v", rows, cut, err)
				}
			}
		}
	})
}

func sameSum(got, want []float64) error {
	for d := range want {
		if math.Float64bits(got[d]) != math.Float64bits(want[d]) {
			return fmt.Errorf("element %d is %v, want %v", d, got[d], want[d])
		}
	}
	return nil
}
