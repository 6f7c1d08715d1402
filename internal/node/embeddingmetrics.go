package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/engine/tiny"
	"penstock/internal/obs"
)

// embeddingMetrics reports the media encoders of this process's engines and their embedding cache; it collects
// at each scrape.
type embeddingMetrics struct {
	stats func() tiny.EncoderStats

	jobs, hits, misses, evictions, bytes *prometheus.Desc
}

var _ prometheus.Collector = (*embeddingMetrics)(nil)

func newEmbeddingMetrics(stats func() tiny.EncoderStats) *embeddingMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_"+name, help, labels, nil)
	}
	return &embeddingMetrics{
		stats:     stats,
		jobs:      desc("encode_jobs_total", "Runs of an encoder for an image, video or sound, by outcome: ok, error or cancelled.", "outcome"),
		hits:      desc("embedding_cache_hits_total", "Look-ups of an object's rows that the embedding cache had."),
		misses:    desc("embedding_cache_misses_total", "Look-ups of an object's rows that the embedding cache did not have."),
		evictions: desc("embedding_cache_evictions_total", "Entries that the embedding cache evicted to make room."),
		bytes:     desc("embedding_cache_bytes", "Bytes of the rows in the embedding cache."),
	}
}

// Describe implements prometheus.Collector.
func (m *embeddingMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.jobs, m.hits, m.misses, m.evictions, m.bytes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *embeddingMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.stats()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(m.jobs, s.Encoded, "ok")
	count(m.jobs, s.Failed, "error")
	count(m.jobs, s.Cancelled, "cancelled")
	count(m.hits, s.Cache.Hits)
	count(m.misses, s.Cache.Misses)
	count(m.evictions, s.Cache.Evictions)
	ch <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(s.Cache.Bytes))
}
