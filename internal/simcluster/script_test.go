package simcluster

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/route"
)

// TestScripts runs clusters and compares what they tell with the files under
// testdata: the same bytes on every machine.
func TestScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/runs.txt", func(t *testing.T, d *datadriven.TestData) string {
		requests, workers, blocks, every := 10, 2, 100, 200
		var mode string
		var crash, percent int
		cfg := Config{}
		d.MaybeScanArgs(t, "requests", &requests)
		d.MaybeScanArgs(t, "workers", &workers)
		d.MaybeScanArgs(t, "blocks", &blocks)
		d.MaybeScanArgs(t, "every", &every)
		d.MaybeScanArgs(t, "mode", &mode)
		d.MaybeScanArgs(t, "crash", &crash)
		d.MaybeScanArgs(t, "faults", &percent)
		d.MaybeScanArgs(t, "seed", &cfg.Seed)
		d.MaybeScanArgs(t, "jitter", &cfg.Timing.Jitter)
		share := float64(percent) / 100
		cfg.Workers, cfg.Blocks, cfg.Route.Mode = workers, blocks, route.Mode(mode)
		cfg.EventDelay, cfg.Delay = 5*time.Millisecond, time.Millisecond
		cfg.Faults = Faults{
			RecordsLost: share, RecordsRepeated: share, RecordsLate: share, MaxLateness: time.Second,
			ResyncsLost: share, LoadsLost: share, PingsLost: share, CallsBroken: share, Slow: share,
			CrashEvery: time.Duration(crash) * time.Second, MaxDowntime: 2 * time.Second,
		}
		s := shape{requests: requests, every: time.Duration(every) * time.Millisecond, roots: 3, blocks: 6, blockTokens: 64, output: 20, sessions: 2}
		j := run(t, cfg, s.make(cfg.Seed))

		var out strings.Builder
		for _, s := range j.samples {
			fmt.Fprintf(&out, "%3d: sent %v, first %v, done %v, %d of %d cached, %d out, worker %d %s\n",
				s.Index, s.Sent, s.First, s.Done, s.Cached, s.Input, s.Output, s.Worker, s.Error)
		}
		h := fnv.New64a()
		h.Write([]byte(j.String()))
		fmt.Fprintf(&out, "%d gaps, digest %016x\n", j.gaps, h.Sum64())
		return out.String()
	})
}
