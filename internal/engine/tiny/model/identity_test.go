package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

// The tests in this file check the package's guarantee: logits that are equal to the bit. Each compares with
// everyLogits, which computes a sequence alone and a token at a time.

// eachModel runs test for every shape and kernel.
func eachModel(t *testing.T, test func(t *testing.T, m *Model)) {
	for _, name := range []string{"grouped", "odd", "single"} {
		for _, k := range kernels() {
			t.Run(name+"/"+k.kernelName(), func(t *testing.T) {
				t.Parallel()
				test(t, randomModel(t, shapes[name], k))
			})
		}
	}
}

// poison fills a cache with NaN, which exposes a read of an offset that was not written.
func poison(c *Cache) {
	nan := float32(math.NaN())
	for l := range c.keys {
		for i := range c.keys[l] {
			c.keys[l][i], c.values[l][i] = nan, nan
		}
	}
}

func sameBits(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return fmt.Errorf("element %d is %v (%#x), want %v (%#x)",
				i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
	return nil
}

// TestChunks cuts a prompt in two at every position.
func TestChunks(t *testing.T) {
	eachModel(t, func(t *testing.T, m *Model) {
		tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 100, m.cfg.VocabSize)
		want := everyLogits(t, m, tokens)
		blocks := table(0, len(tokens), 16)
		c := newTestCache(m, len(blocks), 16, arenaRows, 2)
		logits := make([]float32, m.cfg.VocabSize)
		for cut := range tokens {
			poison(c)
			if cut > 0 {
				forward(t, m, c, Work{Tokens: tokens[:cut], Blocks: blocks, Logits: logits})
				if err := sameBits(logits, want[cut-1]); err != nil {
					t.Fatalf("first %d: %v", cut, err)
				}
			}
			forward(t, m, c, Work{Tokens: tokens[cut:], Start: cut, Blocks: blocks, Logits: logits})
			if err := sameBits(logits, want[len(tokens)-1]); err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
	})
}

// TestLongPrompt exceeds the arena's rows and several panels of keys, cut by the arena alone.
func TestLongPrompt(t *testing.T) {
	eachModel(t, func(t *testing.T, m *Model) {
		tokens := randomTokens(rand.New(rand.NewPCG(2, 2)), 600, m.cfg.VocabSize)
		want := everyLogits(t, m, tokens)
		for _, workers := range []int{1, 3} {
			c := newTestCache(m, 38, 16, arenaRows, workers)
			poison(c)
			logits := make([]float32, m.cfg.VocabSize)
			forward(t, m, c, Work{Tokens: tokens, Blocks: table(0, 600, 16), Logits: logits})
			if err := sameBits(logits, want[599]); err != nil {
				t.Fatalf("%d workers: %v", workers, err)
			}
		}
	})
}

// player is one sequence of TestBatches.
type player struct {
	tokens []kv.Token
	want   [][]float32
	blocks []int32
	done   int // tokens in the cache
}

// TestBatches runs random schedules: sequences of random lengths, some of which start with blocks that others
// computed, advance by chunks of random lengths, in batches of random members in random order, over blocks
// with random numbers, of different sizes, through arenas and worker pools of different sizes. At the end of
// each chunk the logits must equal the sequence's alone.
func TestBatches(t *testing.T) {
	eachModel(t, func(t *testing.T, m *Model) {
		for seed := range uint64(12) {
			if err := playSchedule(t, m, rand.New(rand.NewPCG(seed, 9))); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

func playSchedule(t *testing.T, m *Model, rng *rand.Rand) error {
	t.Helper()
	const pool = 512
	blockSize := []int{2, 5, 16, 32}[rng.IntN(4)]
	c := newTestCache(m, pool, blockSize, 1+rng.IntN(150), 1+rng.IntN(4))
	poison(c)
	free := rng.Perm(pool)
	prefix := randomTokens(rng, 40, m.cfg.VocabSize)
	players := make([]player, 6)
	for i := range players {
		p := &players[i]
		p.tokens = randomTokens(rng, 1+rng.IntN(120), m.cfg.VocabSize)
		if i%2 == 1 {
			p.tokens = append(slices.Clone(prefix), p.tokens...)
		}
		p.want = everyLogits(t, m, p.tokens)
		for range (len(p.tokens) + blockSize - 1) / blockSize {
			p.blocks = append(p.blocks, int32(free[0]))
			free = free[1:]
		}
	}
	var full []int32 // blocks of the prefix, once a player has computed it
	for {
		var work []Work
		var moved []*player
		for _, i := range rng.Perm(len(players)) {
			p := &players[i]
			if p.done == len(p.tokens) || rng.IntN(3) == 0 {
				continue
			}
			if p.done == 0 && i%2 == 1 { // attach the available blocks, leaving a token to compute
				copy(p.blocks, full)
				p.done = len(full) * blockSize
			}
			n := 1 + rng.IntN(len(p.tokens)-p.done)
			work = append(work, Work{
				Tokens: p.tokens[p.done:][:n], Start: p.done, Blocks: p.blocks, Logits: make([]float32, m.cfg.VocabSize),
			})
			moved = append(moved, p)
		}
		if len(work) == 0 {
			if slices.ContainsFunc(players, func(p player) bool { return p.done < len(p.tokens) }) {
				continue
			}
			return nil
		}
		forward(t, m, c, work...)
		for i, p := range moved {
			p.done += len(work[i].Tokens)
			if err := sameBits(work[i].Logits, p.want[p.done-1]); err != nil {
				return fmt.Errorf("blocks of %d, position %d of a sequence of %d: %w", blockSize, p.done-1, len(p.tokens), err)
			}
			if done := min(p.done, len(prefix)) / blockSize; slices.Equal(p.tokens[:min(len(prefix), len(p.tokens))], prefix) && done > len(full) {
				full = slices.Clone(p.blocks[:done])
			}
		}
	}
}

// TestNoLogits checks that requesting logits changes nothing but their cost.
func TestNoLogits(t *testing.T) {
	eachModel(t, func(t *testing.T, m *Model) {
		tokens := randomTokens(rand.New(rand.NewPCG(4, 4)), 20, m.cfg.VocabSize)
		want := everyLogits(t, m, tokens)
		c := newTestCache(m, 2, 16, arenaRows, 2)
		forward(t, m, c, Work{Tokens: tokens[:19], Blocks: table(0, 20, 16)})
		logits := make([]float32, m.cfg.VocabSize)
		forward(t, m, c, Work{Tokens: tokens[19:], Start: 19, Blocks: table(0, 20, 16), Logits: logits})
		if err := sameBits(logits, want[19]); err != nil {
			t.Fatal(err)
		}
	})
}
