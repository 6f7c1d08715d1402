package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
)

// TestFit checks that a worker's report can be read for any warnings and adapters of its engine.
func TestFit(t *testing.T) {
	numbers := Load{
		Running: math.MinInt64, Waiting: math.MinInt64, UsedBlocks: math.MinInt64, CachedBlocks: math.MinInt64,
		TotalBlocks: math.MinInt64, PrefillTokens: math.MinInt64, Preemptions: math.MaxUint64,
		Encoding: math.MinInt64, Ready: math.MinInt64, Active: math.MinInt64,
	}
	many := func(n int, text string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint(text, i))
		}
		return all
	}
	for _, tt := range []struct {
		name               string
		adapters           []string
		warning            Warning
		times              int
		adaptersWant, want int // number left
	}{
		{"none", nil, Warning{}, 0, 0, 0},
		{"a few", many(3, "a"), Warning{"c", "d", "r"}, 3, 3, 3},
		{"many adapters", many(1000, "adapter-"), Warning{}, 0, 79, 0},
		{"a name too long, and one that fits", []string{strings.Repeat("x", 2000), "y"}, Warning{}, 0, 1, 0},
		{"long texts", nil, Warning{"c", strings.Repeat("d", 5000), strings.Repeat("r", 5000)}, 9, 0, 5},
		{"a long detail", nil, Warning{"c", strings.Repeat("d", 5000), ""}, 9, 0, 5},
		{"escapes", many(99, "<\x01"), Warning{strings.Repeat("<", 90), strings.Repeat("\x01", 500), strings.Repeat("\u2028", 99)}, 9, 60, 1},
		{"characters", nil, Warning{"c", strings.Repeat("ü", 999), strings.Repeat("😀", 999)}, 1, 0, 1},
	} {
		r := LoadReport{WorkerID: kv.MaxWorkerID, Rank: math.MaxUint32, Epoch: math.MaxUint64, State: StateDraining, KVNext: math.MaxUint64, Load: numbers}
		r.Adapters = slices.Clone(tt.adapters)
		for range tt.times {
			r.Warnings = append(r.Warnings, tt.warning)
		}
		r.FitToLimit()
		if len(r.Adapters) != tt.adaptersWant || len(r.Warnings) != tt.want {
			t.Errorf("%s: %d adapters and %d warnings are left, want %d and %d", tt.name, len(r.Adapters), len(r.Warnings), tt.adaptersWant, tt.want)
		}
		for _, w := range r.Warnings {
			if len(w.Detail)+len(w.Remedy) > maxWarningText || !utf8.ValidString(w.Detail+w.Remedy) {
				t.Errorf("%s: %d bytes of text", tt.name, len(w.Detail)+len(w.Remedy))
			}
		}
		b, err := json.Marshal(Pong{LoadReport: r, InFlight: math.MinInt64})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodePong(b); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
