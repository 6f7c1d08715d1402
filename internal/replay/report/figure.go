package report

import (
	"penstock/internal/replay"
)

// direction says which of two values is better.
type direction int

const (
	neither direction = iota
	less
	more
)

// unit is the unit of a figure.
type unit string

const (
	number    unit = ""
	ratio     unit = "×"
	time      unit = "ms"
	share     unit = "%"
	perSecond unit = "/s"
	seconds   unit = "s"
)

// figure is one value of a row. valueOf reports whether the row has it: a mean of nothing is no figure.
type figure struct {
	name   string // in the JSON of a comparison
	head   string
	unit   unit
	better direction
	of     func(*replay.Row) (float64, bool)
}

// allFigures returns all figures in display order.
func figures() []figure {
	all := []figure{
		{"block_size", "block size", number, neither, func(r *replay.Row) (float64, bool) { return float64(r.BlockSize), r.BlockSize > 0 }},
		{"blocks_per_worker", "blocks", number, neither, func(r *replay.Row) (float64, bool) { return float64(r.Blocks), r.Blocks > 0 }},
		{"requests", "requests", number, neither, func(r *replay.Row) (float64, bool) { return float64(r.Requests), true }},
		{"errors", "errors", number, less, func(r *replay.Row) (float64, bool) { return float64(r.Errors), true }},
	}
	for _, d := range distributions() {
		for _, p := range points() {
			all = append(all, figure{d.name + "_" + p.name, d.head + " " + p.name, time, less, func(r *replay.Row) (float64, bool) {
				dist := d.of(r)
				return p.of(dist), dist.Count > 0
			}})
		}
	}
	return append(all,
		figure{"cached_share", "cached", share, more, func(r *replay.Row) (float64, bool) { return r.CachedShare, r.InputTokens > 0 }},
		figure{"share_of_ideal", "of ideal", share, more, ofIdeal},
		figure{"imbalance", "imbalance", ratio, less, func(r *replay.Row) (float64, bool) { return r.Imbalance, r.Imbalance > 0 }},
		figure{"requests_per_s", "requests", perSecond, more, func(r *replay.Row) (float64, bool) { return r.RequestsPerSecond, r.Requests > 0 }},
		figure{"output_tokens_per_s", "output tokens", perSecond, more, func(r *replay.Row) (float64, bool) { return r.OutputPerSecond, r.Requests > 0 }},
		figure{"goodput_share", "goodput", share, more, func(r *replay.Row) (float64, bool) {
			if r.Goodput == nil {
				return 0, false
			}
			return r.Goodput.Share, r.Requests > 0
		}},
		figure{"goodput_per_s", "goodput", perSecond, more, func(r *replay.Row) (float64, bool) {
			if r.Goodput == nil {
				return 0, false
			}
			return r.Goodput.RequestsPerSecond, r.Requests > 0
		}},
		figure{"duration_s", "duration", seconds, neither, func(r *replay.Row) (float64, bool) { return r.Duration, r.Requests > 0 }},
	)
}

// shareOfIdeal is the cached share over that of one shared cache of the same size.
func ofIdeal(r *replay.Row) (float64, bool) {
	if r.Ideal == nil || r.Ideal.SameCapacity.CachedShare <= 0 || r.InputTokens == 0 {
		return 0, false
	}
	return r.CachedShare / r.Ideal.SameCapacity.CachedShare, true
}

// rowDistribution is one distribution of a row.
type distribution struct {
	name, head, what string
	of               func(*replay.Row) *replay.Distribution
}

func distributions() []distribution {
	return []distribution{
		{"ttft", "TTFT", "time to the first token", func(r *replay.Row) *replay.Distribution { return &r.TTFT }},
		{"itl", "ITL", "time between two tokens", func(r *replay.Row) *replay.Distribution { return &r.ITL }},
		{"tpot", "TPOT", "mean time for each token after the first, by answer", func(r *replay.Row) *replay.Distribution { return &r.TPOT }},
		{"e2e", "E2E", "time of the whole answer", func(r *replay.Row) *replay.Distribution { return &r.E2E }},
		{"lateness", "lateness", "how much later than due requests were sent", func(r *replay.Row) *replay.Distribution {
			if r.Lateness == nil {
				return &replay.Distribution{}
			}
			return r.Lateness
		}},
	}
}

// distributionPoint is one number of a distribution.
type point struct {
	name string
	of   func(*replay.Distribution) float64
}

func points() []point {
	return []point{
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
func pick(names ...string) []figure {
	byName := map[string]figure{}
	for _, f := range figures() {
		byName[f.name] = f
	}
	picked := make([]figure, len(names))
	for i, name := range names {
		picked[i] = byName[name]
	}
	return picked
}
