package simcluster

import (
	"testing"
	"time"

	"penstock/core/splitmix"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// TestSystemPromptDoesNotHerd: all prompts begin with the same 20 blocks and go on with 20
// of their own. They do not all go to the worker that had the beginning first, whichever of
// several routers sends them: all eight get work, and once each has the beginning none
// computes it again. (Sixteen that tell each other nothing leave half of the workers
// without any: router-replica-sync is for that.)
func TestSystemPromptDoesNotHerd(t *testing.T) {
	const workers, shared = 8, 20
	all := make([]replay.Request, 1200)
	fresh := int64(1000)
	for i := range all {
		r := replay.Request{Index: i, At: time.Duration(i) * 20 * time.Millisecond, BlockTokens: 16, Input: 40 * 16, Output: 50}
		for b := range 40 {
			id := int64(b + 1)
			if b >= shared {
				id, fresh = fresh, fresh+1
			}
			r.Blocks = append(r.Blocks, id)
		}
		all[i] = r
	}
	for name, cfg := range map[string]Config{
		"one router":                  {Routers: 1},
		"two routers":                 {Routers: 2, Delay: time.Millisecond, EventDelay: 10 * time.Millisecond, Sync: true},
		"two that say nothing":        {Routers: 2, Delay: time.Millisecond, EventDelay: 10 * time.Millisecond},
		"sixteen":                     {Routers: 16, Delay: time.Millisecond, EventDelay: 10 * time.Millisecond, Sync: true},
		"one that tracks the outputs": {Routers: 1, TrackOutput: true},
	} {
		cfg.Workers, cfg.Blocks = workers, 4000
		served, cached := map[uint64]int{}, 0
		for _, s := range run(t, cfg, all).samples {
			if s.Error != "" {
				t.Fatalf("%s: %+v", name, s)
			}
			served[s.Worker]++
			cached += s.Cached
		}
		most, least := 0, len(all)
		for _, n := range served {
			most, least = max(most, n), min(least, n)
		}
		if len(served) != workers || most > len(all)/workers*5/4 || least < len(all)/workers*3/4 {
			t.Errorf("%s: requests by worker are %v", name, served)
		}
		if want := (len(all) - 10*workers) * shared * 16; cached < want {
			t.Errorf("%s: %d tokens were cached, want %d", name, cached, want)
		}
	}
}

// TestBurstsKeepConversations: the next turns of 24 of 240 conversations come at one instant, several of them to some
// workers and none to others. Most stay where their histories are, because more turns follow at once.
func TestBurstsKeepConversations(t *testing.T) {
	const workers, sessions, turns, size, block = 8, 240, 8, 24, 16
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	draw := splitmix.Source(1)
	var all []replay.Request
	for turn := range turns {
		order := make([]int, sessions)
		for i := range order {
			at := draw.Below(i + 1)
			order[i], order[at] = order[at], i
		}
		for _, s := range order {
			r := replay.Request{Index: len(all), At: time.Duration(len(all)/size) * 1500 * time.Millisecond, BlockTokens: block, Output: 40}
			for b := range 40 + 20*turn {
				r.Blocks = append(r.Blocks, int64(1+1000*s+b))
			}
			r.Input = len(r.Blocks) * block
			all = append(all, r)
		}
	}
	cached, repeated := 0, 0
	for _, s := range run(t, Config{Workers: workers, Timing: timing}, all).samples {
		cached += s.Cached
		if turn := s.Index / sessions; turn > 0 {
			repeated += (40 + 20*(turn-1)) * block
		}
	}
	if share := float64(cached) / float64(repeated); share < 0.95 {
		t.Errorf("%.3f of what was sent before is cached, want at least 0.95", share)
	}
}
