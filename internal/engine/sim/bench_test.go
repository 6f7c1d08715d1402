package sim

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/internal/engine/enginetest"
)

// BenchmarkDecode generates 64 tokens in each of several concurrent sequences, by an engine whose passes take
// almost no time: the rest is its own work.
func BenchmarkDecode(b *testing.B) {
	for _, sequences := range []int{1, 32, 256} {
		b.Run(fmt.Sprint("batch", sequences), func(b *testing.B) {
			e := small(b, func(c *Config) {
				c.Timing.Speedup, c.MaxSeqs, c.TokenBudget, c.Blocks, c.BlockSize = 1e6, 256, 8192, 65_536, 16
			})
			ctx := enginetest.Start(b, e)
			const length = 64
			for b.Loop() {
				var wg sync.WaitGroup
				for i := range sequences {
					wg.Go(func() {
						if _, err := enginetest.Generate(ctx, e, request(i, 16, length)); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(length*sequences*b.N), "ns/token")
		})
	}
}

// TestComputeDoesNotAllocate checks that neither drawing nor waiting allocates.
func TestComputeDoesNotAllocate(t *testing.T) {
	s, err := newScript(&Config{Vocabulary: Vocabulary{Size: 96}}, 320)
	if err != nil {
		t.Fatal(err)
	}
	c := s.newStates(request(1, 20, 1000), nil)[0].(*scriptedChoice)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.nextToken(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
	for _, kind := range []Clock{ClockTimers, ClockPrecise} {
		clock := passClock{kind: kind}
		clock.openSleeper(t.Context())
		if n := testing.AllocsPerRun(100, func() {
			if err := clock.waitForPass(t.Context(), 10*time.Microsecond, false); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("clock %d: %v allocations per pass", kind, n)
		}
		clock.closeSleeper()
	}
}
