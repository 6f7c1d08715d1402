package simcluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/core/migrate"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// plain is a model of time that can be reckoned in the head: 10 ms and 0.1 ms a token
// for prefill, 5 ms for decode.
func plain() sim.Timing {
	return sim.Timing{Prefill: sim.Prefill{Pass: 10, Token: 0.1}, Decode: sim.Decode{Base: 5}, Encoder: []sim.EncoderPoint{{Tokens: 50, Millis: 30}}}
}

// TestTimes: the times of requests are those that the model gives their batches.
func TestTimes(t *testing.T) {
	same := []int64{1, 2}
	for _, tt := range []struct {
		name     string
		cfg      Config
		requests []replay.Request
		want     string // of each request: first and last token, cached
	}{
		{
			"alone: 10 + 10 + 5, then 5 each",
			Config{},
			[]replay.Request{{Input: 100, Output: 3}},
			"25ms 35ms 0",
		},
		{
			"at half the speed",
			Config{Speeds: []float64{0.5}},
			[]replay.Request{{Input: 100, Output: 3}},
			"50ms 70ms 0",
		},
		{
			"three times as slow from 30 ms on: the second step begins then",
			Config{SlowDowns: []SlowDown{{Worker: 1, At: 30 * time.Millisecond, Factor: 3}}},
			[]replay.Request{{Input: 100, Output: 3}},
			"25ms 45ms 0",
		},
		{
			"1 ms there and 1 ms back",
			Config{Delay: time.Millisecond},
			[]replay.Request{{Input: 100, Output: 3}},
			"27ms 37ms 0",
		},
		{
			"in chunks of 64 and 36: 10 + 6.4, then 10 + 3.6 + 5",
			Config{TokenBudget: 64, MaxSeqs: 4},
			[]replay.Request{{Input: 100, Output: 1}},
			"35ms 35ms 0",
		},
		{
			"the second one is prefilled beside the first one's decode: 10 + 5 + 5",
			Config{},
			[]replay.Request{{Input: 100, Output: 3}, {Input: 50, Output: 2}},
			"25ms 50ms 0; 45ms 50ms 0",
		},
		{
			"again: all but 4 of 100 tokens are cached",
			Config{},
			[]replay.Request{{Input: 100, Output: 1, Blocks: same, BlockTokens: 64}, {At: time.Second, Input: 100, Output: 1, Blocks: same, BlockTokens: 64}},
			"25ms 25ms 0; 1.0154s 1.0154s 96",
		},
		{
			"an image of 50 tokens: 30 more",
			Config{},
			[]replay.Request{{Input: 100, Output: 1, Media: []replay.Media{{ID: "a", Tokens: 50}}}},
			"55ms 55ms 0",
		},
		{
			"the next turn comes 2 s after the answer",
			Config{},
			[]replay.Request{{Input: 100, Output: 3, Session: "a"}, {At: time.Millisecond, Input: 100, Output: 1, Session: "a", Delay: 2 * time.Second}},
			"25ms 35ms 0; 2.06s 2.06s 0",
		},
		{
			"in a hurry: half the time",
			Config{Timing: sim.Timing{Speedup: 2}},
			[]replay.Request{{Input: 100, Output: 3}},
			"12.5ms 17.5ms 0",
		},
	} {
		speedup := tt.cfg.Timing.Speedup
		tt.cfg.Timing = plain()
		tt.cfg.Timing.Speedup = speedup
		for i := range tt.requests {
			tt.requests[i].Index = i
		}
		j := run(t, tt.cfg, tt.requests)
		got := make([]string, len(tt.requests))
		for _, s := range j.samples {
			got[s.Index] = fmt.Sprint(s.First, " ", s.Last, " ", s.Cached)
		}
		if all := strings.Join(got, "; "); all != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, all, tt.want)
		}
	}
}

// TestStall: a worker that is silent for too long is given up.
func TestStall(t *testing.T) {
	timing := plain()
	timing.Prefill.Pass = 3000
	j := run(t, Config{Workers: 2, Timing: timing, StallTimeout: time.Second, Migration: migrate.Config{MaxFailures: 2}}, []replay.Request{{Input: 100, Output: 3}})
	// It is accepted at once; then there is nothing for a second, at each of two workers, and
	// after half a second and more at the first one again.
	s := j.samples[0]
	if s.Error != "unavailable" || s.Output != 0 || s.Done < 3*time.Second+500*time.Millisecond || s.Done > 5*time.Second {
		t.Errorf("%+v", s)
	}
}
