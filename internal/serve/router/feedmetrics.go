package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/feed"
	"penstock/internal/obs"
)

// feedMetrics reads the state of the event feeds on collection. Counts cover all feeds since the start.
type feedState struct {
	r                                 *Router
	lag, feeds, missing, gaps, healed *prometheus.Desc
	orphans                           *prometheus.Desc
}

var _ prometheus.Collector = (*feedState)(nil)

func newFeedState(r *Router) *feedState {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_"+name, help, labels, nil)
	}
	return &feedState{
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
func (s *feedState) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{s.lag, s.feeds, s.missing, s.gaps, s.healed, s.orphans} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *feedState) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	sum := s.r.cache.summary()
	gauge(s.lag, sum.lag.Seconds())
	gauge(s.missing, float64(sum.missing))
	for state := feed.Doubt; state <= feed.Live; state++ {
		gauge(s.feeds, float64(sum.states[state]), state.String())
	}
	gauge(s.feeds, float64(sum.waiting), feedWaiting)
	counter(s.gaps, sum.totals.Gaps)
	counter(s.healed, sum.totals.Repaired, "repaired")
	counter(s.healed, sum.totals.Described, "described")
	counter(s.healed, sum.totals.GivenUp, "given_up")
	counter(s.orphans, sum.counts.Orphans)
}
