// Package obs is what an operator sees from outside: the metrics registry and
// the logger.
package obs

import (
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Namespace prefixes the name of every metric.
const Namespace = "penstock"

// Metrics is one process's registry. Services take it by injection and create
// their own instruments; a name registered twice is a defect and panics.
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

// liveHeap adds what the last collection found in use: the figure by which a leak
// shows, which the default metrics lack.
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

// CounterFunc creates a counter named penstock_<name> whose value f returns; f is
// safe for concurrent use and never returns less than before.
func (m *Metrics) CounterFunc(name, help string, f func() uint64) {
	m.reg.MustRegister(prometheus.NewCounterFunc(
		prometheus.CounterOpts{Namespace: Namespace, Name: name, Help: help},
		func() float64 { return float64(f()) }))
}

// Collect registers a collector of the caller's own making.
func (m *Metrics) Collect(c prometheus.Collector) { m.reg.MustRegister(c) }
