package simcluster

import (
	"testing"
	"time"

	"penstock/internal/replay"
)

// TestSystemPromptDoesNotHerd: all prompts begin with the same 20 blocks and go on with 20
// of their own. They do not all go to the worker that had the beginning first, whoever of
// several routers sends them: all eight get work, and once each has the beginning nobody
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
