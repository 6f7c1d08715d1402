package report

import (
	"penstock/internal/replay"
)

// direction says which of two values is better.
type direction int

const (
	neitherBetter direction = iota
	lessBetter
	moreBetter
)

// unit is the unit of a figure.
type unit string

const (
	unitCount     unit = ""
	unitRatio     unit = "×"
	unitTime      unit = "ms"
	unitShare     unit = "%"
	unitPerSecond unit = "/s"
	unitSeconds   unit = "s"
)

// figure is one value of a row. valueOf reports whether the row has it: a mean of nothing is no figure.
type figure struct {
	name    string // in the JSON of a comparison
	head    string
	unit    unit
	better  direction
	valueOf func(*replay.Row) (float64, bool)
}

// allFigures returns all figures in display order.
func allFigures() []figure {
	all := []figure{
		{"prefill_workers", "prefill workers", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) {
			return float64(prefillWorkers(r)), r.Disagg != nil
		}},
		{"block_size", "block size", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) { return float64(r.BlockSize), r.BlockSize > 0 }},
		{"blocks_per_worker", "blocks", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) { return float64(r.Blocks), r.Blocks > 0 }},
		{"encode_workers", "encode workers", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) {
			if r.Embeddings == nil {
				return 0, false
			}
			return float64(r.Embeddings.EncodeWorkers), true
		}},
		{"embedding_cache_mib", "embedding MiB", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) {
			if r.Embeddings == nil {
				return 0, false
			}
			return float64(r.Embeddings.CacheBytes) / (1 << 20), true
		}},
		{"requests", "requests", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) { return float64(r.Requests), true }},
		{"errors", "errors", unitCount, lessBetter, func(r *replay.Row) (float64, bool) { return float64(r.Errors), true }},
	}
	for _, d := range rowDistributions() {
		for _, p := range distributionPoints() {
			all = append(all, figure{d.name + "_" + p.name, d.head + " " + p.name, unitTime, lessBetter, func(r *replay.Row) (float64, bool) {
				dist := d.of(r)
				return p.of(dist), dist.Count > 0
			}})
		}
	}
	return append(all,
		figure{"cached_share", "cached", unitShare, moreBetter, func(r *replay.Row) (float64, bool) { return r.CachedShare, r.InputTokens > 0 }},
		figure{"prefill_remote_share", "remote", unitShare, neitherBetter, func(r *replay.Row) (float64, bool) {
			if r.Disagg == nil || r.Disagg.Remote+r.Disagg.Local == 0 {
				return 0, false
			}
			return float64(r.Disagg.Remote) / float64(r.Disagg.Remote+r.Disagg.Local), true
		}},
		figure{"prefill_wait_mean", "prefill queue mean", unitTime, lessBetter, func(r *replay.Row) (float64, bool) {
			if r.Disagg == nil || r.Disagg.QueueWait.Count == 0 {
				return 0, false
			}
			return r.Disagg.QueueWait.Mean, true
		}},
		figure{"kv_moved_mib", "MiB moved", unitCount, neitherBetter, func(r *replay.Row) (float64, bool) {
			if r.Disagg == nil {
				return 0, false
			}
			return float64(r.Disagg.BytesMoved) / (1 << 20), true
		}},
		figure{"encoder_runs", "encoded", unitCount, lessBetter, func(r *replay.Row) (float64, bool) {
			if r.Embeddings == nil {
				return 0, false
			}
			return float64(r.Embeddings.EncoderRuns), true
		}},
		figure{"embedding_hit_share", "embedding hits", unitShare, moreBetter, func(r *replay.Row) (float64, bool) {
			if r.Embeddings == nil || r.Embeddings.Hits+r.Embeddings.Misses == 0 {
				return 0, false
			}
			return r.Embeddings.HitShare, true
		}},
		figure{"share_of_ideal", "of ideal", unitShare, moreBetter, shareOfIdeal},
		figure{"imbalance", "imbalance", unitRatio, lessBetter, func(r *replay.Row) (float64, bool) { return r.Imbalance, r.Imbalance > 0 }},
		figure{"requests_per_s", "requests", unitPerSecond, moreBetter, func(r *replay.Row) (float64, bool) { return r.RequestsPerSecond, r.Requests > 0 }},
		figure{"output_tokens_per_s", "output tokens", unitPerSecond, moreBetter, func(r *replay.Row) (float64, bool) { return r.OutputPerSecond, r.Requests > 0 }},
		figure{"goodput_share", "goodput", unitShare, moreBetter, func(r *replay.Row) (float64, bool) {
			if r.Goodput == nil {
				return 0, false
			}
			return r.Goodput.Share, r.Requests > 0
		}},
		figure{"goodput_per_s", "goodput", unitPerSecond, moreBetter, func(r *replay.Row) (float64, bool) {
			if r.Goodput == nil {
				return 0, false
			}
			return r.Goodput.RequestsPerSecond, r.Requests > 0
		}},
		figure{"duration_s", "duration", unitSeconds, neitherBetter, func(r *replay.Row) (float64, bool) { return r.Duration, r.Requests > 0 }},
	)
}

// shareOfIdeal is the cached share over that of one shared cache of the same size.
func shareOfIdeal(r *replay.Row) (float64, bool) {
	if r.Ideal == nil || r.Ideal.SameCapacity.CachedShare <= 0 || r.InputTokens == 0 {
		return 0, false
	}
	return r.CachedShare / r.Ideal.SameCapacity.CachedShare, true
}

// rowDistribution is one distribution of a row.
type rowDistribution struct {
	name, head, what string
	of               func(*replay.Row) *replay.Distribution
}

func rowDistributions() []rowDistribution {
	return []rowDistribution{
		{"ttft", "TTFT", "time to the first token", func(r *replay.Row) *replay.Distribution { return &r.TTFT }},
		{"itl", "ITL", "time between two tokens", func(r *replay.Row) *replay.Distribution { return &r.ITL }},
		{"tpot", "TPOT", "mean time for each token after the first, by answer", func(r *replay.Row) *replay.Distribution { return &r.TPOT }},
		{"e2e", "E2E", "time of the whole answer", func(r *replay.Row) *replay.Distribution { return &r.E2E }},
		{"ttft_error", "TTFT error", "how far off the router predicted the first token, at the choice of the worker", func(r *replay.Row) *replay.Distribution {
			if r.TTFTError == nil || r.Policy != "time" { // the others do not choose by it
				return &replay.Distribution{}
			}
			return r.TTFTError
		}},
		{"lateness", "lateness", "how much later than due requests were sent", func(r *replay.Row) *replay.Distribution {
			if r.Lateness == nil {
				return &replay.Distribution{}
			}
			return r.Lateness
		}},
	}
}

// distributionPoint is one number of a distribution.
type distributionPoint struct {
	name string
	of   func(*replay.Distribution) float64
}

func distributionPoints() []distributionPoint {
	return []distributionPoint{
		{"mean", func(d *replay.Distribution) float64 { return d.Mean }},
		{"min", func(d *replay.Distribution) float64 { return d.Min }},
		{"p50", func(d *replay.Distribution) float64 { return d.P50 }},
		{"p90", func(d *replay.Distribution) float64 { return d.P90 }},
		{"p95", func(d *replay.Distribution) float64 { return d.P95 }},
		{"p99", func(d *replay.Distribution) float64 { return d.P99 }},
		{"p99.9", func(d *replay.Distribution) float64 { return d.P999 }},
		{"max", func(d *replay.Distribution) float64 { return d.Max }},
	}
}

// pickFigures returns the figures of these names, in this order.
func pickFigures(names ...string) []figure {
	byName := map[string]figure{}
	for _, f := range allFigures() {
		byName[f.name] = f
	}
	picked := make([]figure, len(names))
	for i, name := range names {
		picked[i] = byName[name]
	}
	return picked
}
