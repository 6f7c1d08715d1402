// Package obs provides observability for operators: the metrics registry, the logger and the
// tracer.
package obs

import (
	"net/http"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Namespace is the prefix of every metric's name.
const Namespace = "penstock"

// Metrics is one process's registry. Services get it by injection and create their own instruments.
// Registering a name twice is a bug and panics.
type Metrics struct {
	reg *prometheus.Registry
}

// NewMetrics returns a registry with the Go runtime's and the process's metrics.
func NewMetrics() *Metrics {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return &Metrics{reg: reg}
}

// liveHeap adds the heap which the last garbage collection found live: it reveals leaks, and the
// default metrics lack it.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// Handler serves the Prometheus text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{Registry: m.reg})
}

// Gatherer returns the registry for reading.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.reg }

// Counter creates a counter named penstock_<name>.
func (m *Metrics) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: Namespace, Name: name, Help: help}, labels)
	m.reg.MustRegister(c)
	return c
}

// Gauge creates a gauge named penstock_<name>.
func (m *Metrics) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: Namespace, Name: name, Help: help}, labels)
	m.reg.MustRegister(g)
	return g
}

// Histogram creates a histogram named penstock_<name> with the given bucket
// bounds, ascending, in the metric's unit.
func (m *Metrics) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: Namespace, Name: name, Help: help, Buckets: buckets}, labels)
	m.reg.MustRegister(h)
	return h
}

// CounterFunc creates a counter named penstock_<name> whose value is f(). f must be safe for
// concurrent use and never decrease.
func (m *Metrics) CounterFunc(name, help string, f func() uint64) {
	m.reg.MustRegister(prometheus.NewCounterFunc(
		prometheus.CounterOpts{Namespace: Namespace, Name: name, Help: help},
		func() float64 { return float64(f()) }))
}

// RegisterCollector registers a custom collector.
func (m *Metrics) RegisterCollector(c prometheus.Collector) { m.reg.MustRegister(c) }

// LimitRows returns the first rows of a collector which fit into room bytes of scraped output, and
// calls rest for each of the others, whose sum becomes one more row under [Other]. size returns the
// bytes of a row. LimitRows modifies rows.
func LimitRows[R any](room int, rows []R, size func(R) int, rest func(R)) []R {
	return slices.DeleteFunc(rows, func(r R) bool {
		if room -= size(r); room >= 0 {
			return false
		}
		rest(r)
		return true
	})
}
