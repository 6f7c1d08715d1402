package model

import (
	"math"
	"math/rand/v2"
	"testing"

	"penstock/core/kv"
)

// randomWeights makes weights of standard deviation 1/sqrt(inputs), norms around one and small biases.
func randomWeights(cfg Config, seed uint64) Map {
	rng := rand.New(rand.NewPCG(seed, 1))
	weights := make(Map)
	for _, s := range cfg.Specs() {
		n, scale, mean := 1, 1.0, 0.0
		for _, d := range s.Shape {
			n *= d
		}
		if len(s.Shape) == 2 {
			scale = 1 / math.Sqrt(float64(s.Shape[1]))
		} else {
			scale, mean = 0.1, 1
		}
		t := Tensor{Shape: s.Shape, Data: make([]float32, n)}
		for i := range t.Data {
			t.Data[i] = float32(mean + scale*rng.NormFloat64())
		}
		weights[s.Name] = t
	}
	return weights
}

func randomModel(tb testing.TB, cfg Config, k kernel) *Model {
	tb.Helper()
	m, err := newModel(tb.Context(), cfg, randomWeights(cfg, 7), k)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func randomTokens(rng *rand.Rand, n, vocab int) []kv.Token {
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = kv.Token(rng.IntN(vocab))
	}
	return tokens
}

// table returns the block numbers first, first+1, … that hold n positions.
func table(first, n, blockSize int) []int32 {
	blocks := make([]int32, (n+blockSize-1)/blockSize)
	for i := range blocks {
		blocks[i] = int32(first + i)
	}
	return blocks
}

// newTestCache is newCache with a worker pool that works in parallel on small models too.
func newTestCache(m *Model, blocks, blockSize, rows, workers int) *Cache {
	c := m.newCache(blocks, blockSize, rows, workers)
	c.arena.pool.worth = 1
	return c
}
