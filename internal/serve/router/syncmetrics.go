package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/activeseq/replica"
	"penstock/internal/obs"
)

// replicaMetrics are read on collection.
type replicaMetrics struct {
	r                             *Router
	routers, requests, lag, event *prometheus.Desc
}

func newReplicaMetrics(r *Router) *replicaMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_router_replica"+name, help, labels, nil)
	}
	return &replicaMetrics{
		r:        r,
		routers:  desc("s", "Other routers that this one hears of."),
		requests: desc("_requests", "Requests of other routers that are counted here."),
		lag:      desc("_lag_seconds", "For how long something of another router has been missing here, the longest."),
		event:    desc("_events_total", "What routers tell each other, by event.", "event"),
	}
}

// Describe implements prometheus.Collector.
func (m *replicaMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.routers
	ch <- m.requests
	ch <- m.lag
	ch <- m.event
}

// Collect implements prometheus.Collector.
func (m *replicaMetrics) Collect(ch chan<- prometheus.Metric) {
	peers, stats, now := m.readPeers()
	requests, lag := 0, time.Duration(0)
	for _, p := range peers {
		requests += p.Requests
		if p.Lacking {
			lag = max(lag, time.Duration(now)-time.Duration(p.Behind))
		}
	}
	ch <- prometheus.MustNewConstMetric(m.routers, prometheus.GaugeValue, float64(len(peers)))
	ch <- prometheus.MustNewConstMetric(m.requests, prometheus.GaugeValue, float64(requests))
	ch <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, lag.Seconds())
	for _, e := range [...]struct {
		name string
		n    uint64
	}{
		{"change", stats.Changes},
		{"batch", stats.Batches},
		{"unsent", stats.Unsent},
		{"resent", stats.Resent},
		{"page", stats.Pages},
		{"question", stats.Asked},
		{"hole", stats.Holes},
		{"mismatch", stats.Mismatches},
		{"healed", stats.Healed},
		{"refused", stats.Refused},
	} {
		ch <- prometheus.MustNewConstMetric(m.event, prometheus.CounterValue, float64(e.n), e.name)
	}
}

func (m *replicaMetrics) readPeers() (peers []replica.PeerInfo, stats replica.Stats, now time.Duration) {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	if m.r.mu.replica == nil {
		return nil, stats, 0
	}
	return m.r.mu.replica.AppendPeers(nil), m.r.mu.replica.Stats(), time.Duration(m.r.now())
}
