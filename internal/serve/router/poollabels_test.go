package router

import (
	"slices"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/snapshot"
)

// labelledMove returns a move of the blocks of a chain, each with its label.
func labelledMove(name string, to kv.PoolState, labels []kv.MoELabel, access ...kv.Worker) kv.Event {
	ev := moved(name, to, access...)
	ev.Labels = labels
	return ev
}

// TestStrictExpertsFilterCountsThePool: workers which can attach labelled blocks are eligible for a strict
// query, also when the worker which put them into the pool is gone.
func TestStrictExpertsFilterCountsThePool(t *testing.T) {
	prompt, stored, chain := tokens(t, 10)
	labels := []kv.MoELabel{{Has: kv.HasExpert, Layer: 2, Expert: 7}, {}}
	stored.Labels = labels
	layer, strict := uint32(2), false
	for _, c := range []struct {
		name    string
		gone    bool
		expert  uint32
		allowed []kv.Worker
		want    []kv.Worker
	}{
		{"holder and a reader of the pool", false, 7, nil, []kv.Worker{one, two}},
		{"a reader of the pool alone", false, 7, []kv.Worker{two, three}, []kv.Worker{two}},
		{"the holder is gone", true, 7, nil, []kv.Worker{two}},
		{"another expert", true, 8, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdvised(t)
			a.hears(one, stored, kv.Event{
				Kind: kv.Moved, Seqs: chain, Labels: labels,
				Move: kv.PoolMove{To: kv.Pooled, HasPool: true, Access: []kv.Worker{one, two}},
			})
			if c.gone {
				a.drops(one)
			}
			q := &route.Request{Model: "m", Tokens: prompt, Override: route.Override{
				MoE: &route.MoEQuery{Layer: &layer, Experts: []uint32{c.expert}, Fallback: &strict},
			}}
			for _, w := range c.allowed {
				q.Allowed = append(q.Allowed, w.ID)
			}
			ex, err := a.r.Explain(t.Context(), q)
			var got []kv.Worker
			for _, cand := range ex.Candidates {
				got = append(got, cand.Worker)
			}
			slices.SortFunc(got, kv.Worker.Compare)
			if !slices.Equal(got, c.want) || (fault.CodeOf(err) == fault.Ineligible) != (len(c.want) == 0) {
				t.Errorf("candidates %v, want %v; %v", got, c.want, err)
			}
		})
	}
}

// TestPooledBlocksHaveLabels: the label is the pooled block's own. It stays when the mover dies, and while the
// mover's feed is in doubt; a worker's own copy and the pool's count together.
func TestPooledBlocksHaveLabels(t *testing.T) {
	label := kv.MoELabel{Has: kv.HasExpert, Layer: 2, Expert: 7}
	query := &kv.MoEQuery{Layer: 2}
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(one, labelledMove("abc", kv.InTransit, []kv.MoELabel{label, {}, label}, one, two))
	s.say(one, moved("abc", kv.Pooled))
	want := func(want string) {
		t.Helper()
		if got := s.finds("abc", query); got != want {
			t.Errorf("found as %q, want %q", got, want)
		}
	}
	want("1.0:3 attachable 3 labelled 2; 2.0:3 attachable 3 labelled 2 fetched 3")
	own := storedAs("abc")
	own.Labels = []kv.MoELabel{label, label, {}}
	s.say(two, own)
	want("1.0:3 attachable 3 labelled 2; 2.0:3 attachable 3 labelled 3")
	s.say(two, kv.Event{Kind: kv.Cleared})

	// Other labels for the blocks which are there.
	s.say(one, labelledMove("abc", kv.Pooled, []kv.MoELabel{{}, label, {}}))
	want("1.0:3 attachable 3 labelled 1; 2.0:3 attachable 3 labelled 1 fetched 3")

	s.alive(one, two, three)
	_, data := s.c.takeSnapshot(0, 1<<16)
	s.alive(two, three)
	want("2.0:3 attachable 3 labelled 1 fetched 3")

	later := newShelf(t)
	if _, err := later.c.restoreSnapshot(data); err != nil {
		t.Fatal(err)
	}
	later.check()
	if got, want := later.finds("abc", query), "1.0:3 attachable 3 labelled 1; 2.0:3 attachable 3 labelled 1 fetched 3"; got != want {
		t.Errorf("after a snapshot found as %q, want %q", got, want)
	}

	// A router which knows no such labels writes no section for them.
	h, sections, err := snapshot.Open(data, func(s snapshot.Section) bool { return s.Kind != snapshot.PoolLabels })
	if err != nil {
		t.Fatal(err)
	}
	w := snapshot.NewWriter(nil, h)
	for _, s := range sections {
		w.AddSection(s.Kind, s.Version, s.Need, func(dst []byte) []byte { return append(dst, s.Data...) })
	}
	older := newShelf(t)
	if _, err := older.c.restoreSnapshot(w.Finish()); err != nil {
		t.Fatal(err)
	}
	if got, want := older.finds("abc", query), "1.0:3 attachable 3; 2.0:3 attachable 3 fetched 3"; got != want {
		t.Errorf("after an older snapshot found as %q, want %q", got, want)
	}
	_, again := later.c.takeSnapshot(0, 1<<16)
	if string(again) != string(data) {
		t.Error("the snapshot of a snapshot differs")
	}
}

// drops makes the router forget the copies of a worker.
func (a *advised) drops(w kv.Worker) {
	a.r.cache.mu.Lock()
	defer a.r.cache.mu.Unlock()
	a.r.cache.dropWorkerLocked(w)
}
