package worker

import (
	"fmt"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/obs"
)

// TestLoadIsAskedForWhenLookedAt: the metric is the load of the moment, of the
// workers that run.
func TestLoadIsAskedForWhenLookedAt(t *testing.T) {
	m := obs.NewMetrics()
	l := newLoads()
	m.Collect(l)
	series := func() map[string]float64 {
		families, err := m.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]float64{}
		for _, f := range families {
			if f.GetName() != "penstock_worker_load" {
				continue
			}
			for _, s := range f.GetMetric() {
				name := ""
				for _, label := range s.GetLabel() { // by name
					name += label.GetValue() + " "
				}
				seen[name] = s.GetGauge().GetValue()
			}
		}
		return seen
	}
	var load engine.Load
	end := l.watch(7, func() engine.LoadReport { return engine.LoadReport{Load: load} })
	for _, load = range []engine.Load{
		{Running: 1, Waiting: 2, UsedBlocks: 3, CachedBlocks: 4, TotalBlocks: 5, PrefillTokens: 6},
		{TotalBlocks: 5},
	} {
		want := map[string]float64{
			"running 7 ": float64(load.Running), "waiting 7 ": float64(load.Waiting), "used_blocks 7 ": float64(load.UsedBlocks),
			"cached_blocks 7 ": float64(load.CachedBlocks), "total_blocks 7 ": float64(load.TotalBlocks), "prefill_tokens 7 ": float64(load.PrefillTokens),
		}
		if got := series(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	end()
	if got := series(); len(got) != 0 {
		t.Errorf("%v of a worker that has ended", got)
	}
}
