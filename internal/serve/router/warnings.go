package router

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// warningsLocked returns the member's last reported warnings, if the report is recent, and this
// router's own warning, if any; never nil. The caller holds the router's mu.
func (m *member) warningsLocked(now kv.Mono, own *engine.Warning) []engine.Warning {
	all := []engine.Warning{}
	if m.reported && now.Sub(m.loadAt) < reportValidFor {
		all = append(all, m.load.Warnings...)
	}
	if own != nil {
		all = append(all, *own)
	}
	return all
}

// Warnings returns the warnings about workers which serve: their own, and this router's. Workers
// without warnings are not in it.
func (r *Router) Warnings() map[kv.WorkerID][]engine.Warning {
	all := map[kv.WorkerID][]engine.Warning{}
	r.eachWarned(func(w kv.Worker, warnings []engine.Warning) { all[w.ID] = append(all[w.ID], warnings...) })
	return all
}

// eachWarned calls f, in order, with each worker that has warnings.
func (r *Router) eachWarned(f func(kv.Worker, []engine.Warning)) {
	trials := r.predictions.accuracyReports()
	type row struct {
		worker   kv.Worker
		warnings []engine.Warning
	}
	var table []row
	r.mu.Lock()
	now := r.now()
	for _, m := range r.mu.members {
		if warnings := m.warningsLocked(now, trials[m.worker].warning); len(warnings) > 0 {
			table = append(table, row{m.worker, warnings})
		}
	}
	r.mu.Unlock()
	for _, t := range table {
		f(t.worker, t.warnings)
	}
}

// warningCodes returns the codes of the warnings about each worker.
func (r *Router) warningCodes() map[kv.Worker][]string {
	codes := map[kv.Worker][]string{}
	r.eachWarned(func(w kv.Worker, warnings []engine.Warning) {
		for _, warning := range warnings {
			codes[w] = append(codes[w], warning.Code)
		}
	})
	return codes
}

// warningRow counts a code's warnings about a worker.
type warningRow struct {
	worker kv.Worker
	code   string
	count  int
}

// warningMetrics are the warnings about workers; they are read on collection.
type warningMetrics struct {
	r    *Router
	desc *prometheus.Desc
}

var _ prometheus.Collector = (*warningMetrics)(nil)

func newWarningMetrics(r *Router) *warningMetrics {
	return &warningMetrics{r, prometheus.NewDesc(obs.Namespace+"_router_worker_warnings",
		"Problems of a worker's engine which still serves, by code: those which the worker reported and those which the router found.", []string{"worker", "dp_rank", "code"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *warningMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect implements prometheus.Collector. Workers choose the codes: a code that occurs twice counts
// twice.
func (m *warningMetrics) Collect(ch chan<- prometheus.Metric) {
	var rows []warningRow
	for w, codes := range m.r.warningCodes() {
		slices.Sort(codes)
		for i, code := range codes {
			if i > 0 && code == codes[i-1] {
				rows[len(rows)-1].count++
				continue
			}
			rows = append(rows, warningRow{w, code, 1})
		}
	}
	slices.SortFunc(rows, func(a, b warningRow) int {
		return cmp.Or(a.worker.Compare(b.worker), strings.Compare(a.code, b.code))
	})
	other := 0
	rows = obs.LimitRows(workerRoom, rows, func(r warningRow) int { return workerLine + 2*len(r.code) }, func(r warningRow) { other += r.count })
	for _, r := range rows {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(r.count),
			strconv.FormatUint(uint64(r.worker.ID), 10), strconv.FormatUint(uint64(r.worker.Rank), 10), r.code)
	}
	if other > 0 {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(other), obs.Other, "", obs.Other)
	}
}
