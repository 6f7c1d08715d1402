package rendezvous

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// order returns the ids of candidates in the order for a key.
func order(key uint64, candidates []Candidate) (ids []kv.WorkerID) {
	for _, i := range AppendOrder(nil, key, candidates) {
		ids = append(ids, candidates[i].ID)
	}
	return ids
}

func workers(n int) (all []Candidate) {
	for i := range n {
		all = append(all, Candidate{ID: kv.WorkerID(i + 1)})
	}
	return all
}

// TestOrder: holders first, then hashing, then load; and the order of two builds is the same.
func TestOrder(t *testing.T) {
	plain := workers(5)
	want := []kv.WorkerID{5, 3, 1, 4, 2}
	if got := order(7, plain); !slices.Equal(got, want) {
		t.Errorf("without loads and holders %v, want %v: another build would ask another worker", got, want)
	}
	set := func(change func([]Candidate)) []Candidate {
		c := workers(5)
		change(c)
		return c
	}
	first := slices.Index(want, want[0])
	for name, c := range map[string]struct {
		candidates []Candidate
		want       []kv.WorkerID
	}{
		"none":               {nil, nil},
		"one":                {workers(1), []kv.WorkerID{1}},
		"a holder":           {set(func(c []Candidate) { c[want[4]-1].Holds = true }), []kv.WorkerID{want[4], want[0], want[1], want[2], want[3]}},
		"a little load":      {set(func(c []Candidate) { c[want[first]-1].Load = minBound - 1 }), want},
		"far above the mean": {set(func(c []Candidate) { c[want[0]-1].Load = 100 }), []kv.WorkerID{want[1], want[2], want[3], want[4], want[0]}},
		"equally loaded":     {set(func(c []Candidate) { addLoad(c, 1000) }), want},
		"a loaded holder":    {set(func(c []Candidate) { c[want[4]-1] = Candidate{ID: want[4], Holds: true, Load: 100} }), []kv.WorkerID{want[4], want[0], want[1], want[2], want[3]}},
		"of two holders one is too far": {set(func(c []Candidate) {
			c[want[0]-1] = Candidate{ID: want[0], Holds: true, Load: 100}
			c[want[4]-1].Holds = true
		}), []kv.WorkerID{want[4], want[0], want[1], want[2], want[3]}},
	} {
		if got := order(7, c.candidates); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAskOrder: holders which make nothing come first, unless a worker which makes what is missing holds it, too. A worker
// which neither makes nor holds is not asked.
func TestAskOrder(t *testing.T) {
	const key = 7 // whose order is 5, 3, 1, 4, 2, see TestOrder
	only, holds := func(c *Candidate) { c.HoldsOnly = true }, func(c *Candidate) { c.Holds = true }
	held := func(c *Candidate) { only(c); holds(c) }
	for name, c := range map[string]struct {
		change     map[kv.WorkerID]func(*Candidate)
		maxHolders int
		want       []kv.WorkerID
		holders    int
	}{
		"none holds":                  {map[kv.WorkerID]func(*Candidate){1: only, 2: only}, 2, []kv.WorkerID{5, 3, 4}, 0},
		"two hold only":               {map[kv.WorkerID]func(*Candidate){1: held, 2: held}, 2, []kv.WorkerID{1, 2, 5, 3, 4}, 2},
		"three do":                    {map[kv.WorkerID]func(*Candidate){1: held, 2: held, 4: held}, 2, []kv.WorkerID{1, 4, 5, 3}, 2},
		"none may be asked":           {map[kv.WorkerID]func(*Candidate){1: held, 2: held}, 0, []kv.WorkerID{5, 3, 4}, 0},
		"a maker holds, too":          {map[kv.WorkerID]func(*Candidate){1: held, 2: held, 4: holds}, 2, []kv.WorkerID{4, 5, 3}, 0},
		"all hold only, or nothing":   {map[kv.WorkerID]func(*Candidate){1: held, 2: only, 3: only, 4: held, 5: only}, 2, []kv.WorkerID{1, 4}, 2},
		"the first holder has much":   {map[kv.WorkerID]func(*Candidate){1: func(c *Candidate) { held(c); c.Load = 100 }, 2: held, 4: held}, 3, []kv.WorkerID{4, 2, 1, 5, 3}, 3},
		"loads of holders, of makers": {map[kv.WorkerID]func(*Candidate){1: func(c *Candidate) { held(c); c.Load = 1000 }, 5: func(c *Candidate) { c.Load = 20 }}, 2, []kv.WorkerID{1, 3, 4, 2, 5}, 1},
	} {
		candidates := workers(5)
		for id, change := range c.change { // the order does not matter
			change(&candidates[id-1])
		}
		at, holders := AppendAskOrder([]int{9}, key, candidates, c.maxHolders)
		var got []kv.WorkerID
		for _, i := range at[1:] {
			got = append(got, candidates[i].ID)
		}
		if !slices.Equal(got, c.want) || holders != c.holders || at[0] != 9 {
			t.Errorf("%s: %v, %d of them hold only; want %v, %d", name, got, holders, c.want, c.holders)
		}
	}
}

func addLoad(c []Candidate, load int) {
	for i := range c {
		c[i].Load += load
	}
}

// TestSpread: keys spread evenly over the workers.
func TestSpread(t *testing.T) {
	const keys, n = 20_000, 5
	counts := map[kv.WorkerID]int{}
	for key := range uint64(keys) {
		counts[order(key, workers(n))[0]]++
	}
	chi := 0.0
	for _, c := range counts {
		chi += float64((c-keys/n)*(c-keys/n)) / (keys / n)
	}
	if len(counts) != n || chi > 13.3 { // 1 % quantile for 4 degrees of freedom
		t.Errorf("chi square is %.1f for %v", chi, counts)
	}
}

var drawn = rapid.Custom(func(t *rapid.T) []Candidate {
	ids := rapid.SliceOfNDistinct(rapid.Uint64Range(1, uint64(kv.MaxWorkerID)), 0, 12, rapid.ID[uint64]).Draw(t, "ids")
	var all []Candidate
	for _, id := range ids {
		all = append(all, Candidate{
			ID: kv.WorkerID(id), Holds: rapid.Bool().Draw(t, "holds"),
			Load: rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 1000)).Draw(t, "load"),
		})
	}
	return all
})

// TestOrderProperties: an order has each candidate once and does not depend on theirs; holders come first; of two
// in a group the first is not passed over, or both are; the first of the others is never passed over alone.
func TestOrderProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, key := drawn.Draw(t, "candidates"), rapid.Uint64().Draw(t, "key")
		at := AppendOrder([]int{99}, key, all)
		if at[0] != 99 {
			t.Fatal("it changed what was there")
		}
		at = at[1:]
		if sorted := slices.Sorted(slices.Values(at)); len(sorted) != len(all) || len(sorted) > 0 && (sorted[0] != 0 || len(slices.Compact(sorted)) != len(all)) {
			t.Fatalf("%v is no order of %d", at, len(all))
		}
		total, least, holders := 1, 1<<30, 0
		for _, c := range all {
			total += c.Load
			least = min(least, c.Load)
			if c.Holds {
				holders++
			}
		}
		for i, j := range at {
			if all[j].Holds != (i < holders) {
				t.Fatalf("of %d holders one is not before the others: %v", holders, at)
			}
		}
		// The candidate of least load is within the bound, so a group which has it begins with one within it.
		if len(at) > 0 && holders == 0 {
			first := all[at[0]]
			if mean := float64(total) / float64(len(all)); float64(first.Load+1) > max(minBound, loadFactor*mean+1) {
				t.Fatalf("%+v is first and the mean is %.1f", first, mean)
			}
		}
		turned := slices.Clone(all)
		slices.Reverse(turned)
		if !slices.Equal(order(key, all), order(key, turned)) {
			t.Fatal("the order depends on that of the candidates")
		}
	})
}

// TestLeaving: when a worker leaves, the order of the others stays.
func TestLeaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, key := drawn.Draw(t, "candidates"), rapid.Uint64().Draw(t, "key")
		for i := range all {
			all[i].Load = 0
		}
		if len(all) == 0 {
			return
		}
		left := rapid.IntRange(0, len(all)-1).Draw(t, "left")
		want := slices.DeleteFunc(order(key, all), func(id kv.WorkerID) bool { return id == all[left].ID })
		if got := order(key, slices.Delete(slices.Clone(all), left, left+1)); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
