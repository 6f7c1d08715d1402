package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"penstock/core/route"
)

// TestPacedSessions: 60 conversations of six turns behind one system prompt, one request at a time, in front of four
// caches which hold all histories together and none alone. In the default mode all workers are used, and at least 75 of
// the 83 % of the tokens which were sent before are cached.
func TestPacedSessions(t *testing.T) {
	const sessions, turns, prefix, first, input = 60, 6, 800, 3000, 400
	mode := string(route.DefaultMode)
	s := start(t, "router-mode="+mode, "engine=sim", "workers=4", "kv-cache-blocks=8192", "sim-speedup=4")
	system := ids(1, prefix)
	used := map[string]int{}
	cached, sent := 0, 0
	for turn := range turns {
		for session := range sessions {
			history := ids(uint64(100+session), first+input*turns)[:first+input*turn]
			a := s.complete("/v1/completions", asking(slices.Concat(system, history), 2))
			if a.status != http.StatusOK {
				t.Fatalf("session %d, turn %d: %+v", session, turn, a)
			}
			used[a.worker]++
			cached, sent = cached+a.cached, sent+a.prompt
		}
	}
	if share := float64(cached) / float64(sent); share < 0.75 || len(used) < 4 {
		t.Errorf("%s of the tokens are cached, and the workers got %v", fmt.Sprintf("%.1f %%", 100*share), used)
	}
}
