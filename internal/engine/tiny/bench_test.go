package tiny

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/core/media"
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

// BenchmarkTextBesideEncoder compares the gaps between the tokens of a text stream, in milliseconds, on an idle engine and
// beside encoders which always have pictures to encode.
func BenchmarkTextBesideEncoder(b *testing.B) {
	e := newBuiltin(b, func(c *Config) { c.Vocabulary.Names, c.Blocks = pads, 64 })
	ctx := enginetest.Start(b, e)
	stream := func() (gaps []float64) {
		last := time.Time{}
		if err := e.Generate(ctx, greedy(1, 20, 400), func(d *engine.Delta) error {
			now := time.Now()
			if len(d.Tokens) > 0 && !last.IsZero() {
				gaps = append(gaps, now.Sub(last).Seconds()*1000)
			}
			last = now
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		slices.Sort(gaps)
		return gaps
	}
	report := func(name string, gaps []float64) {
		b.ReportMetric(gaps[len(gaps)/2], name+"-p50-ms")
		b.ReportMetric(gaps[len(gaps)*99/100], name+"-p99-ms")
		b.ReportMetric(gaps[len(gaps)-1], name+"-max-ms")
	}
	for b.Loop() {
		report("idle", stream())
		encoding, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				o := noise(media.Image, 1, 448, 448, 3)
				o.Key = media.Key{} // not kept
				for encoding.Err() == nil {
					if r, err := e.cpu.encoders.encodedRows(encoding, &e.cpu.content, &rowRequest{object: &o, pads: 256}); err == nil {
						e.cpu.encoders.rows.releaseRows(&r)
					}
				}
			})
		}
		report("beside", stream())
		stop()
		running.Wait()
	}
}
