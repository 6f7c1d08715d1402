package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/embcache"
	"penstock/core/encode"
	"penstock/internal/embregion"
	"penstock/internal/embtier"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// TestEmbeddingMetrics: each metric has its figure.
func TestEmbeddingMetrics(t *testing.T) {
	m := obs.NewMetrics()
	m.RegisterCollector(newEmbeddingMetrics(func() engine.EncoderStats {
		return engine.EncoderStats{Encoded: 1, Failed: 2, Cancelled: 3, Cache: embcache.Stats{Hits: 4, Misses: 5, Evictions: 6, Bytes: 7, HeldBytes: 100, Replacements: 100}}
	}, func() []embtier.Stats {
		return []embtier.Stats{{Tier: embtier.DiskTier, Dropped: 20, TierStats: embcache.TierStats{
			Hits: 11, Misses: 12, Evictions: 13, Bytes: 14, Corrupt: 15, WriteFailure: 5, WritingBytes: 100, Additions: 100,
		}}}
	}, embregion.NewReaders(embregion.ReadersConfig{})))
	want := map[string]float64{
		"penstock_encode_jobs_total ok":                   1,
		"penstock_encode_jobs_total error":                2,
		"penstock_encode_jobs_total cancelled":            3,
		"penstock_embedding_cache_hits_total memory":      4,
		"penstock_embedding_cache_misses_total memory":    5,
		"penstock_embedding_cache_evictions_total memory": 6,
		"penstock_embedding_cache_bytes memory":           7,
		"penstock_embedding_cache_hits_total region":      0,
		"penstock_embedding_cache_misses_total region":    0,
		"penstock_embedding_cache_regions":                0,
		"penstock_embedding_cache_hits_total disk":        11,
		"penstock_embedding_cache_misses_total disk":      12,
		"penstock_embedding_cache_evictions_total disk":   13,
		"penstock_embedding_cache_bytes disk":             14,
		"penstock_embedding_cache_damaged_total disk":     15,
		"penstock_embedding_cache_dropped_total disk":     25,
	}
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		for _, s := range f.GetMetric() {
			name := f.GetName()
			for _, label := range s.GetLabel() {
				name += " " + label.GetValue()
			}
			figure, ok := want[name]
			if !ok {
				continue // of the Go runtime or the process
			}
			if got := s.GetCounter().GetValue() + s.GetGauge().GetValue(); got != figure {
				t.Errorf("%s is %v, want %v", name, got, figure)
			}
			seen++
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d metrics", seen, len(want))
	}
}

// TestEncodeMetrics: sums over the machines, and the load of each encoder.
func TestEncodeMetrics(t *testing.T) {
	m := obs.NewMetrics()
	one := engine.EncodeStats{
		Stats: encode.Stats{
			EncodingRequests: 1, ReadyRequests: 2, ActiveRequests: 3, QueuedObjects: 4, RunningObjects: 5, CompletedObjects: 6,
			CPUBytes: 7, CPUBudget: 8, StagingBytes: 9, StagingBudget: 10, Jobs: 11, Repeats: 12, Runs: 13, EncodeTime: 14e9, EncodedBytes: 15, CacheHits: 16, Evictions: 17,
		},
		Encoders: []encode.EncoderLoad{{Encoder: 1, InFlight: 18, Capacity: 19}},
	}
	one.Failures[encode.Corrupt] = 20
	m.RegisterCollector(newEncodeMetrics(func() []engine.EncodeStats { return []engine.EncodeStats{one, one} }))
	want := map[string]float64{
		"requests encoding": 2, "requests ready": 4, "requests active": 6, "objects queued": 8, "objects running": 10, "objects completed": 12,
		"memory_bytes cpu": 14, "memory_budget_bytes cpu": 16, "memory_bytes staging": 18, "memory_budget_bytes staging": 20,
		"batched_objects_total": 46, "repeats_total": 24, "batches_total": 26, "seconds_total": 28, "bytes_total": 30, "cache_hits_total": 32, "evictions_total": 34,
		"encoder_objects 1 0": 18, "encoder_objects 1 1": 18, "encoder_capacity 1 0": 19, "encoder_capacity 1 1": 19, "failures_total corrupt": 40,
	}
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "penstock_encode_")
		for _, s := range f.GetMetric() {
			of := name
			for _, label := range s.GetLabel() {
				of += " " + label.GetValue()
			}
			if v := s.GetCounter().GetValue() + s.GetGauge().GetValue(); ok && v != 0 {
				got[of] = v
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
