package route

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
)

// anyCandidates draws candidates with few distinct loads and costs, so that there are ties.
func anyCandidates(t *rapid.T) []scoredCandidate {
	n := rapid.IntRange(1, 8).Draw(t, "candidates")
	out := make([]scoredCandidate, n)
	for i := range out {
		out[i].target = int32(i)
		out[i].Cost = rapid.SampledFrom([]float64{0, 1, 2.5, 40, 1e12, -3}).Draw(t, "cost")
		out[i].rank = loadRank{rapid.IntRange(0, 2).Draw(t, "blocks"), rapid.IntRange(0, 2).Draw(t, "requests")}
	}
	return out
}

// TestTwoChoices compares the closed formula with an enumeration of all ordered pairs.
func TestTwoChoices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cands := anyCandidates(t)
		want := make([]float64, len(cands))
		pairs := max(1, len(cands)*(len(cands)-1))
		for i := range cands {
			for j := range cands {
				switch c := cands[i].rank.compareTo(cands[j].rank); {
				case i == j && len(cands) > 1:
				case c < 0:
					want[i] += 1 / float64(pairs)
				case c > 0:
					want[j] += 1 / float64(pairs)
				default:
					want[i] += 0.5 / float64(pairs)
					want[j] += 0.5 / float64(pairs)
				}
			}
		}
		var r Router
		r.spreadPowerOfTwo(cands, func(*scoredCandidate) bool { return true })
		for i := range cands {
			if math.Abs(cands[i].Probability-want[i]) > 1e-12 {
				t.Fatalf("candidate %d of %v: %g, want %g", i, cands, cands[i].Probability, want[i])
			}
		}
	})
}

// TestSoftmax checks the meaning of the temperature: the ratio of two candidates' probabilities is exp of the
// difference of their costs, divided by the range of costs and the temperature.
func TestSoftmax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cands := anyCandidates(t)
		temperature := rapid.SampledFrom([]float64{5e-324, 0.01, 0.5, 1, 3, maxTemperature}).Draw(t, "temperature")
		applySoftmax(cands, temperature)
		least, most, sum := math.Inf(1), math.Inf(-1), 0.0
		for _, c := range cands {
			least, most, sum = min(least, c.Cost), max(most, c.Cost), sum+c.Probability
		}
		if math.IsNaN(sum) || math.Abs(sum-1) > 1e-9 {
			t.Fatalf("probabilities add up to %g: %v", sum, cands)
		}
		for _, a := range cands {
			for _, b := range cands {
				if most == least {
					if a.Probability != b.Probability {
						t.Fatalf("equal costs, unequal odds: %v", cands)
					}
					continue
				}
				want := math.Exp(-(a.Cost-least)/(most-least)/temperature) / math.Exp(-(b.Cost-least)/(most-least)/temperature)
				if got := a.Probability / b.Probability; b.Probability > 1e-300 && math.Abs(got-want) > 1e-9*want {
					t.Fatalf("odds of %g to %g at %g: %g, want %g", a.Cost, b.Cost, temperature, got, want)
				}
			}
		}
	})
}

// TestChooseFollowsTheOdds counts many draws. The seed fixes the counts, which are within four standard
// deviations of the expected ones.
func TestChooseFollowsTheOdds(t *testing.T) {
	const draws = 200_000
	for seed := range uint64(4) {
		cands := make([]scoredCandidate, 5)
		for i, p := range []float64{0.5, 0, 0.3, 0.15, 0.05} {
			cands[i].Probability = p
		}
		r := Router{cfg: Config{Seed: seed}}
		counts := make([]int, len(cands))
		for range draws {
			counts[r.drawCandidate(cands)]++
			r.decisions++
		}
		for i, c := range cands {
			want, dev := draws*c.Probability, math.Sqrt(draws*c.Probability*(1-c.Probability))
			if math.Abs(float64(counts[i])-want) > 4*dev {
				t.Errorf("seed %d: candidate %d drawn %d times, want %g±%g", seed, i, counts[i], want, dev)
			}
		}
	}
}

// TestChooseNeverTakesTheImpossible: rounding cannot select a candidate with probability 0, such as the last
// one here when the sum falls short of the draw.
func TestChooseNeverTakesTheImpossible(t *testing.T) {
	cands := make([]scoredCandidate, 3)
	cands[1].Probability = 1e-18 // as if the rest had been lost to rounding
	var r Router
	for range 100 {
		if got := r.drawCandidate(cands); got != 1 {
			t.Fatalf("draw %d took candidate %d", r.decisions, got)
		}
		r.decisions++
	}
}

// oddsOf returns the probabilities of mode KV for costs.
func oddsOf(cfg Config, costs ...float64) []scoredCandidate {
	cfg.EnsureDefaults()
	r := Router{cfg: cfg}
	cands := make([]scoredCandidate, len(costs))
	for i, c := range costs {
		cands[i].Cost = c
	}
	r.setProbabilities(&requestPolicy{mode: KV, temperature: cfg.Temperature}, cands)
	return cands
}

// TestOddsOfCosts: a single candidate is certain at any temperature; at 0 the least of any costs, also
// negative ones, is; and extreme finite costs keep their order.
func TestOddsOfCosts(t *testing.T) {
	for _, temperature := range []float64{0, 5e-324, 0.5, 1, 1e9} {
		for _, near := range []float64{0, 0.1, 1} {
			for _, cost := range []float64{0, -5, 1e300} {
				if c := oddsOf(Config{Temperature: temperature, NearCost: near}, cost); c[0].Probability != 1 {
					t.Errorf("temperature %g, near %g, cost %g alone: %g", temperature, near, cost, c[0].Probability)
				}
			}
		}
	}
	for _, costs := range [][]float64{{3, -7, 5}, {0, -1e-300, 1}, {math.MaxFloat64, -math.MaxFloat64, 0}} {
		if c := oddsOf(Config{}, costs...); c[1].Probability != 1 {
			t.Errorf("costs %v: %+v", costs, c)
		}
		c := oddsOf(Config{Temperature: 1}, costs...)
		for i, a := range c {
			for _, b := range c[i+1:] {
				if (a.Cost < b.Cost) != (a.Probability > b.Probability) || !(a.Probability > 0) || !(a.Probability <= 1) {
					t.Errorf("costs %v: %g has %g, %g has %g", costs, a.Cost, a.Probability, b.Cost, b.Probability)
				}
			}
		}
	}
}

// TestTiesSpread: of three equal costs 120 draws take each about as often, and equal seeds draw the same.
func TestTiesSpread(t *testing.T) {
	draws := func(seed uint64) (list []int, counts [3]int) {
		r := Router{cfg: Config{Seed: seed}}
		for range 120 {
			cands := oddsOf(Config{}, 2, 2, 2)
			list = append(list, r.drawCandidate(cands))
			counts[list[len(list)-1]]++
			r.decisions++
		}
		return list, counts
	}
	first, counts := draws(7)
	for i, n := range counts {
		if n < 20 || n > 60 {
			t.Errorf("candidate %d was drawn %d times of 120", i, n)
		}
	}
	if again, _ := draws(7); !slices.Equal(first, again) {
		t.Error("equal seeds draw differently")
	}
	if other, _ := draws(8); slices.Equal(first, other) {
		t.Error("other seeds draw equally")
	}
}

// TestNearCostsDoNotHerd: ten routers see the same loads, and not each other's requests. With a margin they
// put at most a tenth of the requests on one worker, without one they put all on the same.
func TestNearCostsDoNotHerd(t *testing.T) {
	for _, c := range []struct {
		near float64
		most int
	}{{0, 1000}, {0.05, 250}} {
		counts := map[kv.WorkerID]int{}
		for seed := range uint64(1000) {
			active := mustTable(t, size)
			r := mustRouter(t, Config{NearCost: c.near, Seed: seed}, active)
			setWorkers(t, r, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			for id := range 10 { // worker 1 is the cheapest by one block
				d := activeseq.Demand{PromptTokens: size * (1000 + min(1, id))}
				if err := active.Reserve(0, activeseq.AttemptKey{ID: fmt.Sprint(id)}, kv.Worker{ID: kv.WorkerID(id + 1)}, d); err != nil {
					t.Fatal(err)
				}
			}
			d, err := r.Pick(0, &Query{Key: activeseq.AttemptKey{ID: "q"}, PromptTokens: size})
			if err != nil {
				t.Fatal(err)
			}
			counts[d.Worker.ID]++
		}
		most := 0
		for _, n := range counts {
			most = max(most, n)
		}
		if c.near == 0 && most != c.most || most > c.most {
			t.Errorf("near %g: %d of 1,000 routers chose the same worker", c.near, most)
		}
	}
}

// TestExtremeCosts: costs stay ordered at the bounds of the weight.
func TestExtremeCosts(t *testing.T) {
	active := mustTable(t, 2)
	r := mustRouter(t, Config{OverlapWeight: new(float64(maxWeight)), Temperature: 5e-324}, active)
	if err := r.SetWorkers([]Target{{Worker: kv.Worker{ID: 1}, BlockSize: 2, State: Ready}, {Worker: kv.Worker{ID: 2}, BlockSize: 2, State: Ready}}); err != nil {
		t.Fatal(err)
	}
	q := &Query{PromptTokens: math.MaxInt32, Overlaps: []kv.Overlap{{Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{1}}}}
	ex, err := r.Explain(0, q)
	if err != nil {
		t.Fatal(err)
	}
	if ex.Decision.Worker.ID != 2 || ex.Candidates[1].Probability != 1 {
		t.Errorf("%+v", ex)
	}
}

func TestNeedsOverlaps(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		o    Override
		want bool
	}{
		{Config{}, Override{}, true},
		{Config{OverlapWeight: new(0.0)}, Override{}, false},
		{Config{OverlapWeight: new(0.0)}, Override{OverlapWeight: new(1.0)}, true},
		{Config{}, Override{OverlapWeight: new(0.0)}, false},
		{Config{Mode: RoundRobin}, Override{}, false},
		{Config{Mode: RoundRobin}, Override{Mode: new(KV)}, true},
		{Config{}, Override{Mode: new(LeastLoaded)}, false},
		{Config{}, Override{Temperature: new(-1.0)}, false},
		{Config{Mode: RoundRobin}, Override{MoE: &MoEQuery{Layer: new(uint32(1)), Fallback: new(false)}}, true},
		{Config{Mode: RoundRobin}, Override{MoE: &MoEQuery{Layer: new(uint32(1))}}, false},
		{Config{OverlapWeight: new(0.0)}, Override{MoE: &MoEQuery{Layer: new(uint32(1))}}, true},
		{Config{OverlapWeight: new(0.0), Affinity: &AffinityWeights{}}, Override{MoE: &MoEQuery{Layer: new(uint32(1))}}, false},
		{Config{}, Override{MoE: &MoEQuery{}}, false},
	} {
		if got := mustRouter(t, c.cfg, mustTable(t, 16)).NeedsOverlaps(&c.o); got != c.want {
			t.Errorf("%+v with %+v: %t", c.cfg, c.o, got)
		}
	}
}

// TestRefusedPickChangesNothing: a failed pick advances neither the draw nor the round-robin turn.
func TestRefusedPickChangesNothing(t *testing.T) {
	r, q := loaded(t, Config{Mode: RoundRobin})
	first, err := r.Pick(0, q)
	if err != nil {
		t.Fatal(err)
	}
	before, err := r.Explain(0, q)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := r.Pick(0, q); fault.CodeOf(err) != fault.Conflict {
			t.Fatalf("picked twice: %v", err)
		}
	}
	after, err := r.Explain(0, q)
	if err != nil || !reflect.DeepEqual(after.Decision, before.Decision) || after.Decision.Worker == first.Worker {
		t.Errorf("%+v, before %+v: %v", after.Decision, before.Decision, err)
	}
}

func TestStateNames(t *testing.T) {
	if NotReady.String() != "not ready" || Draining.String() != "draining" || WorkerState(9).String() != "not ready" {
		t.Error("a name changed")
	}
}

// TestSetWorkersCopies: the router does not keep the caller's slice.
func TestSetWorkersCopies(t *testing.T) {
	r := mustRouter(t, Config{}, mustTable(t, 16))
	list := []Target{{Worker: kv.Worker{ID: 2}}, {Worker: kv.Worker{ID: 1}}}
	if err := r.SetWorkers(list); err != nil {
		t.Fatal(err)
	}
	if list[0].Worker.ID != 2 {
		t.Error("the caller's list was sorted")
	}
	list[1].Worker.ID = 9
	if got := r.Workers(); got[0].Worker.ID != 1 || got[1].Worker.ID != 2 {
		t.Errorf("the router's list is %v", got)
	}
}
