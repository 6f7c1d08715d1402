package worker

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// loadCollector collects the metrics of the engines' load and warnings. It reads them on collection, so
// that freed load shows at once.
type loadCollector struct {
	desc, warnings *prometheus.Desc
	mu             struct {
		sync.Mutex
		of map[kv.WorkerID]func() engine.LoadReport // of the running workers
	}
}

var _ prometheus.Collector = (*loadCollector)(nil)

func newLoadCollector() *loadCollector {
	l := &loadCollector{
		desc:     prometheus.NewDesc(obs.Namespace+"_worker_load", "The engine's load by quantity.", []string{"worker", "quantity"}, nil),
		warnings: prometheus.NewDesc(obs.Namespace+"_worker_warnings", "Things that the engine says are wrong with it though it serves, by code.", []string{"worker", "code"}, nil),
	}
	l.mu.of = map[kv.WorkerID]func() engine.LoadReport{}
	return l
}

// addWorker collects a worker's reports until the returned function is called.
func (l *loadCollector) addWorker(id kv.WorkerID, report func() engine.LoadReport) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.of[id] = report
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.mu.of, id)
	}
}

// Describe implements prometheus.Collector.
func (l *loadCollector) Describe(out chan<- *prometheus.Desc) {
	out <- l.desc
	out <- l.warnings
}

// Collect implements prometheus.Collector.
func (l *loadCollector) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	of := maps.Clone(l.mu.of)
	l.mu.Unlock()
	workers := slices.Sorted(maps.Keys(of))
	const lines, width = 13, len(`penstock_worker_warnings{worker="9007199254740991",code="no_cached_tokens"} 1`)
	var rest []kv.WorkerID
	fit := obs.LimitRows(loadRoom, workers, func(kv.WorkerID) int { return lines * width }, func(id kv.WorkerID) { rest = append(rest, id) })
	for _, id := range fit {
		l.collectWorker(out, formatID(id), of[id]())
	}
	if len(rest) > 0 {
		var sum engine.LoadReport
		for _, id := range rest {
			report := of[id]()
			sum.Load.Add(report.Load)
			sum.Warnings = append(sum.Warnings, report.Warnings...)
		}
		l.collectWorker(out, obs.Other, sum)
	}
}

// collectWorker collects the report of one worker.
func (l *loadCollector) collectWorker(out chan<- prometheus.Metric, worker string, report engine.LoadReport) {
	load := report.Load
	for _, q := range [...]struct {
		name string
		v    int
	}{
		{"running", load.Running},
		{"waiting", load.Waiting},
		{"encoding", load.Encoding},
		{"ready", load.Ready},
		{"active", load.Active},
		{"used_blocks", load.UsedBlocks},
		{"cached_blocks", load.CachedBlocks},
		{"total_blocks", load.TotalBlocks},
		{"prefill_tokens", load.PrefillTokens},
	} {
		out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(q.v), worker, q.name)
	}
	counts := map[string]int{}
	for _, w := range report.Warnings {
		counts[w.Code]++
	}
	for code, n := range counts {
		out <- prometheus.MustNewConstMetric(l.warnings, prometheus.GaugeValue, float64(n), worker, code)
	}
}
