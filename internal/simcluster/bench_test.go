package simcluster

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"penstock/core/route"
	"penstock/internal/replay"
)

// totalsRecorder keeps totals alone.
type totalsRecorder struct{ input, cached, errors int }

func (n *totalsRecorder) RecordSample(s *replay.Sample) {
	n.input += s.Input
	n.cached += s.Cached
	if s.Error != "" {
		n.errors++
	}
}

func (n *totalsRecorder) RecordGap(time.Duration, int) {}

// TestTokensDoNotAllocate: in steady state a token costs no memory but that of its
// sequence and, once in a block, of an event.
func TestTokensDoNotAllocate(t *testing.T) {
	var all []replay.Request
	for i := range 16 {
		all = append(all, replay.Request{Index: i, Input: 1000, Output: 6000})
	}
	c, err := newCluster(Config{Workers: 2, BlockSize: 1024, Blocks: 1000}, &requests{all: all}, &totalsRecorder{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := func() int {
		n := 0
		for i := range c.tasks.all {
			n += c.tasks.all[i].generated
		}
		return n
	}
	until := func(n int) {
		for tokens() < n {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
	}
	until(16_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := tokens()
	until(48_000)
	runtime.ReadMemStats(&after)
	if n, made := tokens()-began, after.Mallocs-before.Mallocs; made > uint64(n)/50 {
		t.Errorf("%d allocations for %d tokens", made, n)
	}
}

// BenchmarkRun serves a workload like a conversational trace over 64 workers of 1 Mi
// tokens: prompts of 15 thousand tokens in the mean, half of which others had, four requests
// a second.
func BenchmarkRun(b *testing.B) {
	all := shape{requests: 2000, every: 250 * time.Millisecond, roots: 40, blocks: 24, blockTokens: 512, output: 150}.make(1)
	for _, size := range []int{16, 512} {
		for _, mode := range []route.Mode{route.KV, route.Random} {
			b.Run(fmt.Sprintf("block=%d/mode=%s", size, mode), func(b *testing.B) {
				b.ReportAllocs()
				var n totalsRecorder
				for b.Loop() {
					n = totalsRecorder{}
					cfg := Config{Workers: 64, BlockSize: size, Blocks: 1 << 20 / size, Route: route.Config{Mode: mode}}
					if err := Run(b.Context(), cfg, &requests{all: all}, &n); err != nil || n.errors > 0 {
						b.Fatal(err, n.errors)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n.input/16), "ns/16-tokens")
				b.ReportMetric(float64(n.cached)/float64(n.input), "cached-share")
			})
		}
	}
}
