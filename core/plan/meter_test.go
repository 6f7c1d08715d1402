package plan

import (
	"slices"
	"testing"

	"penstock/core/kv"
)

// TestMeter: counts become arrivals and means; means stay while no request ends, and nothing is assumed of requests before
// one has ended.
func TestMeter(t *testing.T) {
	var m Meter
	if got, reason := m.MeasureTraffic(&IntervalCounts{At: 1}); reason != "" || got.Arrivals != 0 || got.At != 1 {
		t.Fatalf("without requests: %+v, %q", got, reason)
	}
	if got, reason := m.MeasureTraffic(&IntervalCounts{At: 2, FirstTokens: 3}); got != nil || reason == "" {
		t.Fatalf("requests, none ended: %+v, %q", got, reason)
	}
	counts := IntervalCounts{
		At: 3, FirstTokens: 10, Failed: 2, FirstTokenSeconds: 4, Gaps: 100, GapSeconds: 2,
		Ended: 8, PromptTokens: 8000, CachedTokens: 2000, OutputTokens: 1600,
	}
	counts.Waiting[Prefill], counts.Waiting[Decode], counts.Running[Decode] = 4, 1, 7
	got, reason := m.MeasureTraffic(&counts)
	if reason != "" {
		t.Fatal(reason)
	}
	want := Traffic{
		At: 3, Arrivals: 17, InputTokens: 1000, OutputTokens: 200, CachedShare: 0.25, InputSpread: 1, OutputSpread: 1,
		TTFT: 400, ITL: 20, Queued: counts.Waiting, Running: counts.Running,
	}
	if *got != want {
		t.Errorf("traffic %+v\nwant    %+v", *got, want)
	}
	// Five waiting requests got their first token, and no other came.
	got, _ = m.MeasureTraffic(&IntervalCounts{At: 4, FirstTokens: 5})
	if got.Arrivals != 0 || got.InputTokens != 1000 || got.CachedShare != 0.25 || got.TTFT != 0 {
		t.Errorf("a queue which empties: %+v", *got)
	}
	if problem := got.findProblem(); problem != "" {
		t.Error(problem)
	}
}

// TestMeterAfterGap: what waits more after a gap came in all of it, and frozen metrics measure nothing.
func TestMeterAfterGap(t *testing.T) {
	var m Meter
	for i, tt := range []struct {
		at                       kv.Mono
		intervals, waiting, want float64
	}{
		{1, 0, 10, 8},
		{2, 1, 13, 11},
		{6, 4, 25, 11},      // three an interval
		{6, 1, 28, 11},      // frozen
		{8, 2, 31, 11},      // three an interval since the metrics were measured
		{9, 0.5, 31.5, 8.5}, // a short interval: growth in a short time is no rate
		{10, 1, 0, 0},       // a queue which empties
	} {
		counts := IntervalCounts{At: tt.at, Intervals: tt.intervals, FirstTokens: 8, Ended: 8, PromptTokens: 800}
		counts.Waiting[Aggregated] = tt.waiting
		if got, reason := m.MeasureTraffic(&counts); reason != "" || got.Arrivals != tt.want {
			t.Errorf("counts %d: %+v, %q, want %g arrivals", i, got, reason, tt.want)
		}
	}
}

// TestOrderLeaving: workers which do not serve leave first, then the ones with the least to lose.
func TestOrderLeaving(t *testing.T) {
	all := []LeaveCandidate{
		{Worker: 1, Serving: true, Running: 10, CachedBlocks: 100}, // 0.5 + 0.125
		{Worker: 2, Serving: true, Running: 2, CachedBlocks: 600},  // 0.1 + 0.75
		{Worker: 3, Serving: true, Running: 8, CachedBlocks: 100},  // 0.4 + 0.125
		{Worker: 4},
		{Worker: 5, Serving: true},
		{Worker: 6, Serving: true},
		{Worker: 7},
	}
	OrderLeaving(all)
	var ids []kv.WorkerID
	for _, w := range all {
		ids = append(ids, w.Worker)
	}
	if want := []kv.WorkerID{7, 4, 6, 5, 3, 1, 2}; !slices.Equal(ids, want) {
		t.Errorf("workers leave in the order %v, want %v", ids, want)
	}
}
