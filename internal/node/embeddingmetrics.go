package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/embregion"
	"penstock/internal/embtier"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// embeddingMetrics reports the media encoders of this process's engines and their embedding cache; it collects
// at each scrape.
type embeddingMetrics struct {
	stats func() engine.EncoderStats
	tiers func() []embtier.Stats
	// regions are mapped from other workers; nil if none are read.
	regions *embregion.Readers

	jobs, hits, misses, evictions, bytes, dropped, damaged, mapped *prometheus.Desc
}

var _ prometheus.Collector = (*embeddingMetrics)(nil)

// memoryTier is the label of memory among the tiers of the embedding cache, and regionTier of other workers' memory.
const (
	memoryTier = "memory"
	regionTier = "region"
)

// newEmbeddingMetrics returns the metrics of encoders, of the tiers below memory, of which there may be none, and of the
// regions of other workers, nil if none are read.
func newEmbeddingMetrics(stats func() engine.EncoderStats, tiers func() []embtier.Stats, regions *embregion.Readers) *embeddingMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_"+name, help, labels, nil)
	}
	return &embeddingMetrics{
		stats:     stats,
		tiers:     tiers,
		regions:   regions,
		jobs:      desc("encode_jobs_total", "Runs of an encoder for an image, video or sound, by outcome: ok, error or cancelled.", "outcome"),
		hits:      desc("embedding_cache_hits_total", "Look-ups of an object's rows that a tier of the embedding cache had: memory, region (of another worker of the host), disk or object_store.", "tier"),
		misses:    desc("embedding_cache_misses_total", "Look-ups of an object's rows that a tier of the embedding cache did not have; the next tier is asked then.", "tier"),
		evictions: desc("embedding_cache_evictions_total", "Entries that a tier of the embedding cache evicted to make room.", "tier"),
		bytes:     desc("embedding_cache_bytes", "Bytes of the entries in a tier of the embedding cache.", "tier"),
		mapped:    desc("embedding_cache_regions", "Embedding caches of other workers of this host whose memory is read."),
		dropped:   desc("embedding_cache_dropped_total", "Entries evicted above that a tier of the embedding cache did not take: too many waited to be written, or it failed.", "tier"),
		damaged:   desc("embedding_cache_damaged_total", "Entries in a tier of the embedding cache that were not as they had been written, and were removed.", "tier"),
	}
}

// Describe implements prometheus.Collector.
func (m *embeddingMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.jobs, m.hits, m.misses, m.evictions, m.bytes, m.dropped, m.damaged, m.mapped} {
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
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	count(m.hits, s.Cache.Hits, memoryTier)
	count(m.misses, s.Cache.Misses, memoryTier)
	count(m.evictions, s.Cache.Evictions, memoryTier)
	gauge(m.bytes, float64(s.Cache.Bytes), memoryTier)
	if m.regions != nil {
		r := m.regions.Stats()
		count(m.hits, r.Hits, regionTier)
		count(m.misses, r.Misses, regionTier)
		gauge(m.mapped, float64(r.Regions))
	}
	for _, t := range m.tiers() {
		count(m.hits, t.Hits, t.Tier)
		count(m.misses, t.Misses, t.Tier)
		count(m.evictions, t.Evictions, t.Tier)
		count(m.dropped, t.Dropped+t.WriteFailure, t.Tier)
		count(m.damaged, t.Corrupt, t.Tier)
		gauge(m.bytes, float64(t.Bytes), t.Tier)
	}
}
