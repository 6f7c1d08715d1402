package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kvfeed"
	"penstock/internal/obs"
)

// feedMetrics reads the state of the event feeds on collection. Counts cover all feeds since the start.
type feedMetrics struct {
	r                                 *Router
	lag, feeds, missing, gaps, healed *prometheus.Desc
	orphans                           *prometheus.Desc
}

var _ prometheus.Collector = (*feedMetrics)(nil)

func newFeedMetrics(r *Router) *feedMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_"+name, help, labels, nil)
	}
	return &feedMetrics{
		r:       r,
		lag:     desc("feed_lag_seconds", "For how long the event feed furthest behind its worker has been so."),
		feeds:   desc("feed_workers", "Event feeds by state.", "state"),
		missing: desc("feed_missing_events", "Events that are known to be missing, of all feeds."),
		gaps:    desc("feed_gaps_total", "Losses in workers' event feeds."),
		healed:  desc("feed_repairs_total", "Ends of what losses began, by how they ended.", "outcome"),
		orphans: desc("index_orphans_total", "Stores of blocks whose parent the worker was not known to hold."),
	}
}

// Describe implements prometheus.Collector.
func (s *feedMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{s.lag, s.feeds, s.missing, s.gaps, s.healed, s.orphans} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *feedMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	sum := s.r.cache.summarizeFeeds()
	gauge(s.lag, sum.lag.Seconds())
	gauge(s.missing, float64(sum.missing))
	for state := kvfeed.Resyncing; state <= kvfeed.Live; state++ {
		gauge(s.feeds, float64(sum.states[state]), state.String())
	}
	gauge(s.feeds, float64(sum.waiting), feedWaiting)
	counter(s.gaps, sum.totals.Gaps)
	counter(s.healed, sum.totals.Repaired, "repaired")
	counter(s.healed, sum.totals.Described, "described")
	counter(s.healed, sum.totals.GivenUp, "given_up")
	counter(s.orphans, sum.counts.Orphans)
}
