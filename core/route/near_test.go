package route

import (
	"math"
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// TestNearPrefillWorker: a worker near the likely prefill worker is preferred by a share of the blocks which it lacks,
// as time in mode Time, and the cost of others is the same.
func TestNearPrefillWorker(t *testing.T) {
	for _, mode := range []Mode{Time, KV} {
		r := mustRouter(t, Config{Mode: mode}, mustTable(t, size))
		if err := r.SetWorkers([]Target{
			{Worker: kv.Worker{ID: 1}, BlockSize: size, State: Ready, Blocks: 1000}, {Worker: kv.Worker{ID: 2}, BlockSize: size, State: Ready, Blocks: 1000},
		}); err != nil {
			t.Fatal(err)
		}
		q := &Query{Key: activeseq.AttemptKey{ID: "a", Attempt: 1}, PromptTokens: 100 * size}
		q.Overlaps = []kv.Overlap{{Worker: kv.Worker{ID: 1}, Blocks: [kv.Tiers]int{20}}, {Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{20}}}
		for i := range 100 {
			q.Chain = append(q.Chain, kv.SeqHash(i+1))
		}
		plain, err := r.Explain(0, q)
		if err != nil {
			t.Fatal(err)
		}
		q.Near = []kv.WorkerID{2}
		ex, err := r.Explain(0, q)
		if err != nil || ex.Decision.Worker.ID != 2 {
			t.Fatalf("%s: %+v, %v", mode, ex.Decision, err)
		}
		less := transferAffinity * 80
		if mode == Time {
			less *= size * r.rates.WorkerOf(kv.Worker{ID: 2}).TokenMs()
		}
		one, two := &ex.Candidates[0], &ex.Candidates[1]
		if one.Cost != plain.Candidates[0].Cost || one.TransferAffinity != 0 {
			t.Errorf("%s: the other worker: %+v, was %+v", mode, one, plain.Candidates[0])
		}
		if two.TransferAffinity != transferAffinity*80 || two.Affinity != two.TransferAffinity || math.Abs(plain.Candidates[1].Cost-two.Cost-less) > 1e-9 {
			t.Errorf("%s: %+v, was %+v, want %g less", mode, two, plain.Candidates[1], less)
		}
	}
}
