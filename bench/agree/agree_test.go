package main

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/replay"
)

// TestAfterProbe: the draws of the server's router, past the one for the probe, are
// the draws of replay's.
func TestAfterProbe(t *testing.T) {
	draws := func(seed uint64, n int) (out []kv.WorkerID) {
		active, err := activeseq.New(activeseq.Config{BlockSize: 16})
		if err != nil {
			t.Fatal(err)
		}
		r, err := route.New(route.Config{Mode: route.Random, Seed: seed}, active)
		if err != nil {
			t.Fatal(err)
		}
		var targets []route.Target
		for id := range kv.WorkerID(64) {
			targets = append(targets, route.Target{Worker: kv.Worker{ID: id + 1}, BlockSize: 16, State: route.Ready})
		}
		if err := r.SetWorkers(targets); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			d, err := r.Pick(0, &route.Query{Key: activeseq.AttemptKey{ID: strconv.Itoa(i), Attempt: 1}, PromptTokens: 8})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, d.Worker.ID)
		}
		return out
	}
	server, virtual := draws(seedAfterProbe, 101), draws(1, 100)
	for i := range virtual {
		if server[i+1] != virtual[i] {
			t.Fatalf("draw %d: %d, want %d", i, server[i+1], virtual[i])
		}
	}
}

// TestFormula: two prompts, worked out by hand.
func TestFormula(t *testing.T) {
	for _, tt := range []struct {
		prompt int
		want   float64
	}{
		{1000, 37.897755},  // 63 blocks
		{8193, 191.814722}, // 8192 and 1 tokens, 513 blocks
	} {
		if first, _ := expectedTimes(tt.prompt); math.Abs(first-tt.want) > 1e-6 {
			t.Errorf("%d: %.6f, want %.6f", tt.prompt, first, tt.want)
		}
	}
}

func TestApart(t *testing.T) {
	row := func(ttft, share float64, errors int) *replay.Row {
		return &replay.Row{TTFT: replay.Distribution{Mean: ttft}, CachedShare: share, Errors: errors}
	}
	base := row(100, 0.5, 0)
	for _, tt := range []struct {
		row  *replay.Row
		want string // "" is close enough
	}{
		{row(109.9, 0.519, 0), ""},
		{row(90.1, 0.481, 0), ""},
		{row(110.1, 0.5, 0), "1.101 times"},
		{row(89.9, 0.5, 0), "0.899 times"},
		{row(100, 0.521, 0), "2.10 points"},
		{row(100, 0.479, 0), "-2.10 points"},
		{row(100, 0.5, 1), "1 errors"},
		{row(math.NaN(), 0.5, 0), "NaN times"},
	} {
		err := checkDistance("kv", 8, base, tt.row)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.row.TTFT, err, tt.want)
		}
	}
}
