package worker

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// TestLoadIsAskedForWhenLookedAt: the metric is the current load of the running workers.
func TestLoadIsAskedForWhenLookedAt(t *testing.T) {
	m := obs.NewMetrics()
	l := newLoadCollector()
	m.RegisterCollector(l)
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
	end := l.addWorker(7, func() engine.LoadReport { return engine.LoadReport{Load: load} })
	for _, load = range []engine.Load{
		{Running: 1, Waiting: 2, UsedBlocks: 3, CachedBlocks: 4, TotalBlocks: 5, PrefillTokens: 6, Encoding: 7, Ready: 8, Active: 9},
		{TotalBlocks: 5},
	} {
		want := map[string]float64{
			"running 7 ": float64(load.Running), "waiting 7 ": float64(load.Waiting), "used_blocks 7 ": float64(load.UsedBlocks),
			"cached_blocks 7 ": float64(load.CachedBlocks), "total_blocks 7 ": float64(load.TotalBlocks), "prefill_tokens 7 ": float64(load.PrefillTokens),
			"encoding 7 ": float64(load.Encoding), "ready 7 ": float64(load.Ready), "active 7 ": float64(load.Active),
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

// TestSeriesOfWorkers: the series of any number of workers stay within metricsRoom, and are removed
// with them.
func TestSeriesOfWorkers(t *testing.T) {
	all := obs.NewMetrics()
	m := NewMetrics(all)
	page := func() string {
		rec := httptest.NewRecorder()
		all.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return rec.Body.String()
	}
	const first, n = kv.WorkerID(1) << 52, 1000
	var ends []func()
	warnings := []engine.Warning{{Code: engine.WarnMispredict}}
	for id := first; id < first+n; id++ {
		w := m.addWorker(id)
		w.observeCall(1, 1, 1, time.Second, nil)
		ends = append(ends, m.loads.addWorker(id, func() engine.LoadReport {
			return engine.LoadReport{Load: engine.Load{TotalBlocks: 3}, Warnings: warnings}
		}))
	}
	if size := len(page()); size > metricsRoom+loadRoom+50<<10 {
		t.Errorf("of %d workers %d bytes are scraped", n, size)
	}
	blocks, calls := 0, 0
	for line := range strings.Lines(page()) {
		var v int
		_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
		switch {
		case strings.HasPrefix(line, "penstock_worker_load{") && strings.Contains(line, "total_blocks"):
			blocks += v
		case strings.HasPrefix(line, "penstock_worker_requests_total"):
			calls += v
		}
	}
	if blocks != 3*n || calls != n {
		t.Errorf("%d blocks and %d calls are shown, want %d and %d", blocks, calls, 3*n, n)
	}
	for i, end := range ends {
		end()
		m.removeWorker(first + kv.WorkerID(i))
	}
	for line := range strings.Lines(page()) {
		if strings.Contains(line, `worker="`) && !strings.Contains(line, `worker="other"`) {
			t.Fatalf("of workers that have ended is left %s", line)
		}
	}
}
