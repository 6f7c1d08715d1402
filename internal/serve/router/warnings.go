package router

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// warnings returns what the member last said is wrong with its engine, if that is not too
// old, and what this router finds wrong, if anything; never nil. The caller holds the
// router's mu.
func (m *member) warnings(now kv.Mono, own *engine.Warning) []engine.Warning {
	all := []engine.Warning{}
	if m.reported && now.Sub(m.loadAt) < fresh {
		all = append(all, m.load.Warnings...)
	}
	if own != nil {
		all = append(all, *own)
	}
	return all
}

// Warnings returns what is wrong with the engines of workers though they serve, as far as
// they say so or the router notices; workers of which nothing is wrong are not in it.
func (r *Router) Warnings() map[kv.WorkerID][]engine.Warning {
	all := map[kv.WorkerID][]engine.Warning{}
	r.eachWarned(func(w kv.Worker, warnings []engine.Warning) { all[w.ID] = append(all[w.ID], warnings...) })
	return all
}

// eachWarned calls f, in order, with each worker that something is wrong with.
func (r *Router) eachWarned(f func(kv.Worker, []engine.Warning)) {
	trials := r.predict.trials()
	type row struct {
		worker   kv.Worker
		warnings []engine.Warning
	}
	var table []row
	r.mu.Lock()
	now := r.now()
	for _, m := range r.mu.members {
		if warnings := m.warnings(now, trials[m.worker].warning); len(warnings) > 0 {
			table = append(table, row{m.worker, warnings})
		}
	}
	r.mu.Unlock()
	for _, t := range table {
		f(t.worker, t.warnings)
	}
}

// warned returns the codes of the warnings about each worker.
func (r *Router) warned() map[kv.Worker][]string {
	codes := map[kv.Worker][]string{}
	r.eachWarned(func(w kv.Worker, warnings []engine.Warning) {
		for _, warning := range warnings {
			codes[w] = append(codes[w], warning.Code)
		}
	})
	return codes
}

// warningMetrics are the warnings about workers; they are collected when somebody looks.
type warningMetrics struct {
	r    *Router
	desc *prometheus.Desc
}

var _ prometheus.Collector = (*warningMetrics)(nil)

func newWarningMetrics(r *Router) *warningMetrics {
	return &warningMetrics{r, prometheus.NewDesc(obs.Namespace+"_router_worker_warnings",
		"Things that are wrong with a worker's engine though it serves, by code: as it reported, and as the router finds.", []string{"worker", "dp_rank", "code"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *warningMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect implements prometheus.Collector. Codes are the workers' words: a code that comes
// twice counts twice.
func (m *warningMetrics) Collect(ch chan<- prometheus.Metric) {
	for w, codes := range m.r.warned() {
		counts := map[string]int{}
		for _, code := range codes {
			counts[code]++
		}
		for code, n := range counts {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(n),
				strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10), code)
		}
	}
}
