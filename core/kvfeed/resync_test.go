package kvfeed

import (
	"testing"
	"time"

	"penstock/core/kv"
)

// TestManyInDoubt: when the feeds of many workers lack events at once they are asked some at a time, none
// twice before all were asked once, and no repair is given up before its first request.
func TestManyInDoubt(t *testing.T) {
	const workers = 2000
	tr := mustTracker(t, Config{})
	for i := range workers {
		w := kv.Worker{ID: kv.WorkerID(i)}
		tr.AcceptRecord(0, &Record{Worker: w, Epoch: 1, First: 1, Events: []kv.Event{{Kind: kv.Cleared}}})
	}
	asked := map[kv.Worker]kv.Mono{}
	var last kv.Mono
	note := func(now kv.Mono, q ResyncRequest) {
		if _, ok := asked[q.Worker]; !ok {
			asked[q.Worker], last = now, now
		}
		if q.From != 2 {
			t.Fatalf("%+v at %v", q, time.Duration(now))
		}
	}
	in := map[kv.Mono]int{}
	for i := range workers {
		r := &Record{Worker: kv.Worker{ID: kv.WorkerID(i)}, Epoch: 1, First: 3, Events: []kv.Event{{Kind: kv.Stored}}}
		if v := tr.AcceptRecord(1, r); v.Resync {
			note(1, v.Request)
			in[0]++
		}
	}
	answer := func(w kv.Worker) {
		tr.AcceptRecord(last, &Record{Worker: w, Epoch: 1, First: 2, Events: []kv.Event{{Kind: kv.Stored}, {Kind: kv.Stored}}})
	}
	for w := range asked {
		answer(w)
	}
	for steps := 0; len(asked) < workers; steps++ {
		now, ok := tr.Deadline()
		if !ok || steps > 10*workers {
			t.Fatalf("%d of %d workers were asked, nothing more is due", len(asked), workers)
		}
		if gone := tr.GiveUpRepairs(now, nil); len(gone) > 0 {
			t.Fatalf("%d repairs are given up after %v", len(gone), time.Duration(now))
		}
		for _, q := range tr.DueRequests(now, nil) {
			if _, again := asked[q.Worker]; again {
				t.Fatalf("%v is asked again before others were", q.Worker)
			}
			note(now, q)
			in[now/kv.Mono(200*time.Millisecond)]++
			answer(q.Worker)
		}
		if err := tr.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for at, n := range in {
		if n > 64 {
			t.Errorf("%d requests in the period %d", n, at)
		}
	}
	if took := time.Duration(last); took < 6*time.Second || took > 7*time.Second {
		t.Errorf("all were asked after %v", took)
	}
	if _, ok := tr.Deadline(); ok {
		t.Error("something is due though all is repaired")
	}
}

// TestReach: an unreachable worker costs no request and no wait, and is asked at once when it can be reached.
func TestReach(t *testing.T) {
	w := kv.Worker{ID: 7}
	for name, gap := range map[string]func(*Tracker) FeedVerdict{
		"a repair":    func(tr *Tracker) FeedVerdict { return tr.AcceptRecord(1, &Record{Worker: w, Epoch: 1, First: 3}) },
		"no record":   func(tr *Tracker) FeedVerdict { return tr.ExpectWorker(1, w, 1) },
		"a false end": func(tr *Tracker) FeedVerdict { tr.ExpectWorker(1, w, 1); return tr.RejectForeign(1, w, 1) },
	} {
		known := false
		tr, err := NewTracker(Config{MaxRequests: 1, CanReach: func(o kv.Worker) bool { return o == w && known }})
		if err != nil {
			t.Fatal(err)
		}
		if v := gap(tr); v.Resync {
			t.Errorf("%s: %+v", name, v)
		}
		later := kv.Mono(time.Hour)
		if got := tr.DueRequests(later, nil); len(got) != 0 {
			t.Errorf("%s: asked out of reach: %+v", name, got)
		}
		if gone := tr.GiveUpRepairs(later, nil); len(gone) != 0 {
			t.Errorf("%s: given up without a question: %v", name, gone)
		}
		if at, ok := tr.Deadline(); ok {
			t.Errorf("%s: something is due at %v", name, at)
		}
		known = true
		if at, ok := tr.Deadline(); !ok || at > later {
			t.Errorf("%s: in reach, and due at %v, %v", name, at, ok)
		}
		if got := tr.DueRequests(later, nil); len(got) != 1 || got[0].Worker != w {
			t.Errorf("%s: in reach, and asked %+v", name, got)
		}
		if h, _ := tr.HealthOf(w); h.Resyncs != 1 {
			t.Errorf("%s: %d requests are counted", name, h.Resyncs)
		}
		if at, _ := tr.Deadline(); at != later.Add(200*time.Millisecond) {
			t.Errorf("%s: the next one is due at %v", name, at)
		}
	}
}
