package route

import (
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// TestBacklog: a prefill costs its time for each prompt in the shortest queue, by the share of workers with a longer one,
// however long, and for each which another router probably sent; what running requests use somewhere does not count.
func TestBacklog(t *testing.T) {
	for _, c := range []struct {
		name    string
		cands   []scoredCandidate
		unheard float64
		want    []float64
	}{
		{"nothing is queued", []scoredCandidate{{own: 100}, {own: 40}}, 0, []float64{0, 0}},
		{"one waits at one of two", []scoredCandidate{{own: 100, prefills: 1}, {own: 40}}, 0, []float64{50, 20}},
		{"three wait at two", []scoredCandidate{{own: 100, prefills: 1}, {own: 40, prefills: 2}}, 0, []float64{150, 60}},
		{"ten wait at one of two", []scoredCandidate{{own: 100, prefills: 10}, {own: 40}}, 0, []float64{50, 20}},
		{"one of two others is unheard", []scoredCandidate{{own: 100}, {own: 40}}, 1, []float64{50, 20}},
		{"100 blocks are used at one, of which it has 90", []scoredCandidate{{own: 100, prefills: 2}, {own: 40, used: 100, reuse: 90}}, 0, []float64{50 - 16, 20 - 1.6}},
		{"all of it is", []scoredCandidate{{own: 100, prefills: 2}, {own: 10, used: 400, reuse: 400}}, 0, []float64{0, 5}},
		{"a worker reuses more than is used", []scoredCandidate{{own: 100, prefills: 2, reuse: 9}, {own: 10, used: 5, reuse: 100}}, 0, []float64{50, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			active, err := activeseq.New(activeseq.Config{BlockSize: 16})
			if err != nil {
				t.Fatal(err)
			}
			r := mustRouter(t, Config{Mode: Time}, active)
			if err := r.SetWorkers([]Target{{Worker: kv.Worker{ID: 1}, BlockSize: 16}, {Worker: kv.Worker{ID: 2}, BlockSize: 16}}); err != nil {
				t.Fatal(err)
			}
			details := make([]Candidate, len(c.cands))
			for i := range c.cands {
				c.cands[i].target = int32(i)
			}
			r.addBacklog(&requestPolicy{unheard: activeseq.Unheard{Requests: c.unheard}}, c.cands, details)
			for i, want := range c.want {
				if got := c.cands[i].Cost; got < want-1e-9 || got > want+1e-9 || got != details[i].Time.Backlog {
					t.Errorf("worker %d: %g ms are added, and %g shown, want %g", i+1, got, details[i].Time.Backlog, want)
				}
			}
		})
	}
}
