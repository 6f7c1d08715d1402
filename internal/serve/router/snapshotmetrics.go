package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/obs"
)

// snapshotMetrics are the instruments of snapshots.
type snapshotMetrics struct {
	done, failed, used, unreadable     prometheus.Counter
	encodeSeconds, writeSeconds, loads prometheus.Observer
	bytes, blocks                      prometheus.Gauge
}

func newSnapshotMetrics(m *obs.Metrics, r *Router) snapshotMetrics {
	outcomes := m.Counter("router_snapshots_total", "Snapshots of the router's knowledge of caches, by outcome: written, failed, restored or unreadable.", "outcome")
	seconds := m.Histogram("router_snapshot_seconds", "Time that a snapshot took; encode is part of write.", prometheus.ExponentialBuckets(1e-3, 4, 9), "op")
	m.RegisterCollector(&snapshotAge{&r.snapshots, prometheus.NewDesc(obs.Namespace+"_router_snapshot_age_seconds", "Age of the newest snapshot that is known here; absent while there is none.", nil, nil)})
	return snapshotMetrics{
		done: outcomes.WithLabelValues("written"), failed: outcomes.WithLabelValues("failed"),
		used: outcomes.WithLabelValues("restored"), unreadable: outcomes.WithLabelValues("unreadable"),
		encodeSeconds: seconds.WithLabelValues("encode"), writeSeconds: seconds.WithLabelValues("write"), loads: seconds.WithLabelValues("restore"),
		bytes:  m.Gauge("router_snapshot_bytes", "Size of the snapshot that was written or restored last.").WithLabelValues(),
		blocks: m.Gauge("router_snapshot_restored_blocks", "Distinct prefixes in the snapshot that was restored last.").WithLabelValues(),
	}
}

func (m *snapshotMetrics) observeWrite(size int, encode, whole time.Duration) {
	m.done.Inc()
	m.bytes.Set(float64(size))
	m.encodeSeconds.Observe(encode.Seconds())
	m.writeSeconds.Observe(whole.Seconds())
}

func (m *snapshotMetrics) observeRestore(blocks, size int, took time.Duration) {
	m.used.Inc()
	m.blocks.Set(float64(blocks))
	m.bytes.Set(float64(size))
	m.loads.Observe(took.Seconds())
}

// snapshotAge is read on collection.
type snapshotAge struct {
	snapshots *snapshotState
	desc      *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s *snapshotAge) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc }

// Collect implements prometheus.Collector.
func (s *snapshotAge) Collect(ch chan<- prometheus.Metric) {
	if age, ok := s.snapshots.age(); ok {
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, age.Seconds())
	}
}
