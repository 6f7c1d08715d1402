package route

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
)

// naive implements the router's rules in the plainest form.
type naive struct {
	targets []Target // ascending
	active  map[activeseq.AttemptKey]booking
	busy    BusyThresholds
}

type booking struct {
	worker  kv.Worker
	path    string
	tokens  int
	prefill int
}

const size = 16 // tokens in a block

// cost computes the formula over sets of paths instead of hashes and counts.
func (n *naive) cost(w kv.Worker, path string, tokens int, have kv.Overlap, weight float64) (prefill float64, decode, requests int, cost float64) {
	overlap := have.Blocks[0] + have.Blocks[1] + have.Blocks[2] + have.Blocks[3]
	fetch := 0.25*float64(have.Blocks[1]) + 0.75*float64(have.Blocks[2]) + 0.25*float64(have.Blocks[3])
	blocks := map[string]bool{}
	work, unnamed := 0, tokens/size-len(path)
	for i := range path {
		blocks[path[:i+1]] = true
	}
	for _, b := range n.active {
		if b.worker != w {
			continue
		}
		for i := range b.path {
			blocks[b.path[:i+1]] = true
		}
		work += b.prefill
		unnamed += b.tokens/size - len(b.path)
		requests++
	}
	prefill = float64(work+max(0, tokens-overlap*size)) / size
	decode = len(blocks) + unnamed
	return prefill, decode, requests, weight*(prefill+fetch) + float64(decode) - float64(have.Labelled)
}

// agrees makes random decisions and compares each explanation with the naive twin's costs, and each pick with
// the explanation.
func agrees(t *rapid.T) {
	active, err := activeseq.New(activeseq.Config{BlockSize: size})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Seed: rapid.Uint64().Draw(t, "seed")}, active)
	if err != nil {
		t.Fatal(err)
	}
	n := naive{active: map[activeseq.AttemptKey]booking{}}
	next := 0
	path := rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 0, 5, -1)
	worker := rapid.Custom(func(t *rapid.T) kv.Worker {
		return kv.Worker{ID: kv.WorkerID(rapid.IntRange(1, 4).Draw(t, "id")), Rank: rapid.Uint32Max(1).Draw(t, "rank")}
	})
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := active.Check(); err != nil {
				t.Fatal(err)
			}
			if active.Len() != len(n.active) {
				t.Fatalf("%d reservations, want %d", active.Len(), len(n.active))
			}
		},
		"workers": func(t *rapid.T) {
			var list []Target
			for i, w := range rapid.SliceOfNDistinct(worker, 0, 6, rapid.ID[kv.Worker]).Draw(t, "workers") {
				list = append(list, Target{
					Worker: w, Addr: fmt.Sprint("addr ", i), BlockSize: size,
					State:  WorkerState(rapid.SampledFrom([]WorkerState{Ready, Ready, Ready, Draining, NotReady, NotAnswering, Suspected}).Draw(t, "state")),
					Blocks: rapid.SampledFrom([]int{0, 4, 8}).Draw(t, "blocks"),
				})
			}
			if err := r.SetWorkers(list); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(list, func(a, b Target) int { return a.Worker.Compare(b.Worker) })
			n.targets = list
			for key, b := range n.active {
				if _, found := findTarget(list, b.worker); !found {
					delete(n.active, key)
				}
			}
		},
		"state": func(t *rapid.T) {
			w, state := worker.Draw(t, "worker"), rapid.SampledFrom([]WorkerState{Ready, NotAnswering, Suspected}).Draw(t, "state")
			at := slices.IndexFunc(n.targets, func(o Target) bool { return o.Worker == w })
			want := at >= 0 && n.targets[at].State != state
			if r.SetState(w, state, 1) != want {
				t.Fatalf("state of %v: changed is not %t", w, want)
			}
			if at >= 0 {
				n.targets[at].State = state
			}
		},
		"busy": func(t *rapid.T) {
			n.busy = BusyThresholds{
				DecodeBlocks:  rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "share"),
				PrefillTokens: rapid.SampledFrom([]int{0, 48, 100}).Draw(t, "tokens"),
			}
			if err := r.SetBusyThresholds(n.busy); err != nil {
				t.Fatal(err)
			}
		},
		"pick": func(t *rapid.T) {
			next++
			p := path.Draw(t, "path")
			q := &Query{Key: activeseq.AttemptKey{ID: fmt.Sprint(next), Attempt: 1}, Chain: chain(p), PromptTokens: len(p)*size + rapid.IntRange(0, 40).Draw(t, "more tokens")}
			overlap := map[kv.Worker]kv.Overlap{}
			for _, w := range rapid.SliceOfNDistinct(worker, 0, 4, rapid.ID[kv.Worker]).Draw(t, "holders") {
				o := kv.Overlap{Worker: w}
				for range rapid.IntRange(0, len(p)).Draw(t, "overlap") {
					o.Blocks[rapid.IntRange(0, kv.Tiers-1).Draw(t, "tier")]++
				}
				o.Labelled = rapid.IntRange(0, o.Depth()).Draw(t, "labelled")
				overlap[w] = o
				q.Overlaps = append(q.Overlaps, o)
			}
			slices.SortFunc(q.Overlaps, func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
			mode := rapid.SampledFrom([]Mode{KV, KV, RoundRobin, Random, PowerOfTwo, LeastLoaded}).Draw(t, "mode")
			weight := rapid.SampledFrom([]float64{0, 0.5, 1, 2}).Draw(t, "weight")
			temperature := rapid.SampledFrom([]float64{0, 0, 0.3, 5}).Draw(t, "temperature")
			strict := rapid.IntRange(0, 4).Draw(t, "strict") == 0
			q.Override = Override{Mode: &mode, OverlapWeight: &weight, Temperature: &temperature, MoE: &MoEQuery{Layer: new(uint32(3)), Fallback: new(!strict)}}
			for range rapid.IntRange(0, 2).Draw(t, "allowed") {
				q.Allowed = append(q.Allowed, worker.Draw(t, "allow").ID)
			}
			for range rapid.IntRange(0, 1).Draw(t, "excluded") {
				q.Exclude = append(q.Exclude, worker.Draw(t, "exclude").ID)
			}
			q.Moving = rapid.Bool().Draw(t, "moving")
			n.pick(t, r, q, p, overlap)
		},
		"prefilled": func(t *rapid.T) {
			key := activeseq.AttemptKey{ID: fmt.Sprint(rapid.IntRange(1, next+1).Draw(t, "key")), Attempt: 1}
			b, ok := n.active[key]
			if active.MarkPrefilled(key) != ok {
				t.Fatalf("prefilled %v is not %t", key, ok)
			}
			if ok {
				b.prefill = 0
				n.active[key] = b
			}
		},
		"free": func(t *rapid.T) {
			key := activeseq.AttemptKey{ID: fmt.Sprint(rapid.IntRange(1, next+1).Draw(t, "key")), Attempt: 1}
			_, ok := n.active[key]
			if active.Free(key) != ok {
				t.Fatalf("free %v is not %t", key, ok)
			}
			delete(n.active, key)
		},
	})
}

func (n *naive) pick(t *rapid.T, r *Router, q *Query, path string, overlap map[kv.Worker]kv.Overlap) {
	ex, err := r.Explain(0, q)
	again, errAgain := r.Explain(0, q)
	if diff := cmp.Diff(ex, again); diff != "" || (err == nil) != (errAgain == nil) {
		t.Fatalf("explaining changed something:\n%s", diff)
	}
	var eligible, busy, suspected []Target
	ruledOut := 0
	for _, target := range n.targets {
		if len(q.Allowed) > 0 && !slices.Contains(q.Allowed, target.Worker.ID) || !*q.Override.MoE.Fallback && overlap[target.Worker].Labelled == 0 {
			ruledOut++
			continue
		}
		if target.State != Ready && target.State != Suspected || slices.Contains(q.Exclude, target.Worker.ID) {
			continue
		}
		switch {
		case n.isBusy(&target):
			busy = append(busy, target)
		case target.State == Suspected:
			suspected = append(suspected, target)
		default:
			eligible = append(eligible, target)
		}
	}
	code := fault.Unavailable
	if ruledOut > 0 && ruledOut == len(n.targets) {
		code = fault.Ineligible
	}
	if len(eligible) == 0 && len(busy) > 0 {
		code = fault.Overloaded
		if q.Moving {
			eligible = busy
		}
	}
	if len(eligible) == 0 {
		eligible = suspected
	}
	if len(ex.Excluded) != len(n.targets)-len(eligible) {
		t.Fatalf("excluded %v of %v", ex.Excluded, n.targets)
	}
	dec, pickErr := r.Pick(0, q)
	if len(eligible) == 0 {
		if fault.CodeOf(err) != code || fault.CodeOf(pickErr) != code || err == nil || pickErr == nil {
			t.Fatalf("no worker is eligible: %v, %v, want %v", err, pickErr, code)
		}
		return
	}
	if err != nil || pickErr != nil {
		t.Fatalf("explain: %v, pick: %v", err, pickErr)
	}
	if diff := cmp.Diff(ex.Decision, dec); diff != "" {
		t.Fatalf("-explained +picked\n%s", diff)
	}
	if len(ex.Candidates) != len(eligible) {
		t.Fatalf("candidates %v, eligible %v", ex.Candidates, eligible)
	}
	sum := 0.0
	for i, c := range ex.Candidates {
		w := eligible[i].Worker
		prefill, decode, requests, cost := n.cost(w, path, q.PromptTokens, overlap[w], *q.Override.OverlapWeight)
		if c.Worker != w || c.PrefillBlocks != prefill || c.DecodeBlocks != decode || c.ActiveRequests != requests || c.Cost != cost {
			t.Fatalf("worker %v: %+v, want prefill %g decode %d requests %d cost %g", w, c, prefill, decode, requests, cost)
		}
		if c.Worker == dec.Worker {
			if c.Probability == 0 || dec.Cost != cost || dec.OverlapBlocks != overlap[w].Depth() || dec.Addr != eligible[i].Addr {
				t.Fatalf("picked %+v, which is %+v", dec, c)
			}
			n.active[q.Key] = booking{w, path, q.PromptTokens, c.PrefillTokens - n.prefill(w)}
		}
		sum += c.Probability
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Fatalf("probabilities add up to %g", sum)
	}
}

func (n *naive) isBusy(target *Target) bool {
	_, blocks, _, _ := n.cost(target.Worker, "", 0, kv.Overlap{}, 0)
	return n.busy.DecodeBlocks > 0 && target.Blocks > 0 && float64(blocks)/float64(target.Blocks) > n.busy.DecodeBlocks ||
		n.busy.PrefillTokens > 0 && n.prefill(target.Worker) > n.busy.PrefillTokens
}

func (n *naive) prefill(w kv.Worker) int {
	sum := 0
	for _, b := range n.active {
		if b.worker == w {
			sum += b.prefill
		}
	}
	return sum
}

func TestRouterAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzRouter(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }
