package tiny

import (
	"fmt"
	"sync"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// BenchmarkPrefill computes prompts of 1,024 tokens that are not cached.
func BenchmarkPrefill(b *testing.B) {
	e := newBuiltin(b, func(c *Config) { c.Blocks = 2048 })
	ctx := enginetest.Start(b, e)
	const length = 1024
	seed := 0
	for b.Loop() {
		enginetest.MustGenerate(b, ctx, e, greedy(seed, length, 1))
		seed++
	}
	b.ReportMetric(float64(length*b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkDecode generates 64 tokens in each of several sequences at once,
// after prompts of one block.
func BenchmarkDecode(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprint("batch", batch), func(b *testing.B) {
			e := newBuiltin(b, nil)
			ctx := enginetest.Start(b, e)
			const length = 64
			for b.Loop() {
				var wg sync.WaitGroup
				for i := range batch {
					wg.Go(func() {
						req := greedy(i, 16, length)
						req.Sampling = engine.Sampling{Temperature: 1, Seed: uint64(i)}
						if _, err := enginetest.Generate(ctx, e, req); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(length*batch*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkStart makes the built-in model and draws the first token.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		e := newBuiltin(b, nil)
		ctx := enginetest.Start(b, e)
		enginetest.MustGenerate(b, ctx, e, greedy(1, 16, 1))
	}
}
