package health

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// naive implements the rules in the plainest form: a list of workers which is searched from end to end.
type naive struct {
	cfg   Config
	list  []*plain
	pings uint64
}

type plain struct {
	Worker
	status Status
	heard  kv.Mono
	due    kv.Mono
	out    uint64 // number of the outstanding ping
	fails  int    // how often the wait was doubled
	ended  kv.Mono
	tried  bool // there was a quarantine
	known  bool // it has answered a ping
}

func (n *naive) find(id kv.WorkerID) *plain {
	for _, p := range n.list {
		if p.ID == id {
			return p
		}
	}
	return nil
}

func (n *naive) idle(p *plain) time.Duration {
	every := n.cfg.DoubtEvery
	if p.Confirmed {
		every = n.cfg.IdleAfter
	}
	return every*11/10 + spreadDelay(p.ID, spreadLater, every/5)
}

func (n *naive) retry(p *plain) time.Duration {
	if p.fails == 0 {
		return 0
	}
	d := n.cfg.MinRetry
	for range p.fails - 1 {
		d = min(2*d, n.cfg.MaxRetry)
	}
	return d - spreadDelay(p.ID, spreadRetry, d/4)
}

func (n *naive) set(now kv.Mono, set []Worker) {
	var list []*plain
	for _, w := range set {
		if slices.ContainsFunc(set, func(o Worker) bool { return o.ID == w.ID && o.Epoch > w.Epoch }) {
			continue
		}
		soon := now.Add(spreadDelay(w.ID, spreadFirst, n.cfg.DoubtEvery))
		p := n.find(w.ID)
		if p == nil || p.Epoch != w.Epoch {
			p = &plain{Worker: w, heard: now, due: soon}
		} else if p.Confirmed != w.Confirmed {
			p.Confirmed = w.Confirmed
			if p.out == 0 && !p.status.Quarantined {
				if p.Confirmed && p.known {
					p.due = p.heard.Add(n.idle(p))
				} else if !p.Confirmed {
					p.due = min(p.due, soon)
				}
			}
		}
		list = append(list, p)
	}
	n.list = list
}

func (n *naive) quarantine(now kv.Mono, p *plain, why Cause) {
	p.status = Status{true, now, why}
	p.out = 0
	if p.tried && now.Sub(p.ended) < n.cfg.SteadyAfter {
		p.fails++
	} else {
		p.fails = 0
		if why == PingFailed {
			p.fails = 1
		}
	}
	p.tried = true
	p.due = now.Add(n.retry(p))
}

func (n *naive) pinged(now kv.Mono, ping Ping, epoch uint64, answered bool) (changed bool) {
	p := n.find(ping.ID)
	if p == nil || p.out == 0 || p.out != ping.Number {
		return false
	}
	p.out = 0
	was := p.status.Quarantined
	switch {
	case answered && epoch >= ping.Epoch:
		if was {
			p.ended = now
		}
		p.status, p.heard, p.known = Status{}, now, true
		p.due = now.Add(n.idle(p))
	case was:
		p.status.Cause = PingFailed
		p.fails++
		p.due = now.Add(n.retry(p))
	default:
		n.quarantine(now, p, PingFailed)
	}
	return was != p.status.Quarantined
}

func (n *naive) take(now kv.Mono, limit int) []Ping {
	var ready []*plain
	for _, p := range n.list {
		if p.out == 0 && p.due <= now {
			ready = append(ready, p)
		}
	}
	slices.SortFunc(ready, func(a, b *plain) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.ID, b.ID)) })
	var out []Ping
	for _, p := range ready[:min(limit, len(ready))] {
		n.pings++
		p.out = n.pings
		out = append(out, Ping{p.ID, p.Epoch, p.out})
	}
	return out
}

// agrees feeds random inputs in random order to a monitor and its twin.
func agrees(t *rapid.T) {
	m, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	n := &naive{cfg: m.cfg}
	now := kv.Mono(rapid.Int64Range(0, 1e12).Draw(t, "start"))
	var sent []Ping
	id := rapid.Map(rapid.IntRange(1, 6), func(i int) kv.WorkerID { return kv.WorkerID(i) })
	epoch := rapid.Uint64Range(1, 3)
	worker := rapid.Custom(func(t *rapid.T) Worker {
		return Worker{id.Draw(t, "id"), epoch.Draw(t, "epoch"), rapid.Bool().Draw(t, "confirmed")}
	})
	distinct := func(w Worker) [2]uint64 { return [2]uint64{uint64(w.ID), w.Epoch} }
	end := func(t *rapid.T, answered bool) {
		if len(sent) == 0 {
			return
		}
		p := sent[rapid.IntRange(0, len(sent)-1).Draw(t, "ping")]
		var got bool
		e := epoch.Draw(t, "epoch")
		before, _ := m.StatusOf(p.ID)
		if answered {
			got = m.RecordAnswer(now, p, e)
		} else {
			got = m.RecordMissed(now, p)
		}
		if want := n.pinged(now, p, e, answered); got != want {
			t.Fatalf("ping %+v: changed %t, want %t", p, got, want)
		}
		after, _ := m.StatusOf(p.ID)
		if before.Quarantined && !after.Quarantined && (!answered || e < p.Epoch) {
			t.Fatalf("worker %d came back without an answer of its life", p.ID)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := m.Check(now); err != nil {
				t.Fatal(err)
			}
			if len(m.workers) != len(n.list) {
				t.Fatalf("%d workers, want %d", len(m.workers), len(n.list))
			}
			next, any := kv.Mono(0), false
			for _, p := range n.list {
				if got, ok := m.StatusOf(p.ID); !ok || got != p.status {
					t.Fatalf("worker %d: %+v, want %+v", p.ID, got, p.status)
				}
				if p.out == 0 && (!any || p.due < next) {
					next, any = p.due, true
				}
			}
			if at, ok := m.Deadline(); ok != any || at != next {
				t.Fatalf("next %d %t, want %d %t", at, ok, next, any)
			}
		},
		"time": func(t *rapid.T) {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 20, 60, 300, 1100, 7000}).Draw(t, "ms")) * time.Millisecond)
		},
		"set": func(t *rapid.T) {
			set := rapid.SliceOfNDistinct(worker, 0, 8, distinct).Draw(t, "set")
			m.SetWorkers(now, set)
			n.set(now, set)
		},
		"heard": func(t *rapid.T) {
			w := worker.Draw(t, "worker")
			m.RecordHeard(now, w.ID, w.Epoch)
			if p := n.find(w.ID); p != nil && p.Epoch == w.Epoch {
				p.heard = now
				if p.Confirmed && p.known && p.out == 0 && !p.status.Quarantined {
					p.due = now.Add(n.idle(p))
				}
			}
		},
		"expect": func(t *rapid.T) {
			w := id.Draw(t, "worker")
			m.ExpectReports(now, w)
			if p := n.find(w); p != nil && p.out == 0 && !p.status.Quarantined && now.Sub(p.heard) >= n.cfg.BusyAfter && p.due > now {
				p.due = now
			}
		},
		"failed": func(t *rapid.T) {
			w := worker.Draw(t, "worker")
			got := m.RecordFailedCall(now, w.ID, w.Epoch)
			p := n.find(w.ID)
			want := p != nil && p.Epoch == w.Epoch && !p.status.Quarantined
			if want {
				n.quarantine(now, p, CallFailed)
			}
			if got != want {
				t.Fatalf("failed %+v: %t, want %t", w, got, want)
			}
			// In any state: after a failure there is a quarantine, at once.
			if st, ok := m.StatusOf(w.ID); p != nil && p.Epoch == w.Epoch && (!ok || !st.Quarantined) {
				t.Fatalf("worker %d is trusted after a failure", w.ID)
			}
		},
		"due": func(t *rapid.T) {
			limit := rapid.IntRange(0, 4).Draw(t, "limit")
			got, want := m.DuePings(now, nil, limit), n.take(now, limit)
			if !slices.Equal(got, want) {
				t.Fatalf("pings %+v, want %+v", got, want)
			}
			sent = append(sent, got...)
		},
		"answered": func(t *rapid.T) { end(t, true) },
		"missed":   func(t *rapid.T) { end(t, false) },
	})
}

func TestMachineAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzMachine(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }

// TestThousandsIdle: the pings to silent workers are spread over time, and workers which report get no pings
// at all.
func TestThousandsIdle(t *testing.T) {
	const workers = 5000
	m, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	set := make([]Worker, workers)
	for i := range set {
		set[i] = Worker{ID: kv.WorkerID(i + 1), Epoch: 1, Confirmed: true}
	}
	m.SetWorkers(0, set)
	const step = 10 * time.Millisecond
	run := func(from kv.Mono, span time.Duration, reports bool) (all, most int) {
		for now := from; now < from.Add(span); now = now.Add(step) {
			if at := now.Sub(from); reports && at%(5*time.Second) == 0 {
				for _, w := range set {
					m.RecordHeard(now, w.ID, 1)
				}
			}
			pings := m.DuePings(now, nil, workers)
			all, most = all+len(pings), max(most, len(pings))
			for _, p := range pings {
				m.RecordAnswer(now, p, 1)
			}
		}
		return all, most
	}
	if all, most := run(0, time.Minute, true); all != workers || most > workers/25 {
		t.Errorf("%d pings to %d workers that report every 5 s, at most %d at once: want the first of each", all, workers, most)
	}
	all, most := run(kv.Mono(time.Minute), time.Minute, false)
	if all < 8*workers || all > 12*workers || most > workers/25 {
		t.Errorf("%d pings in a minute, at most %d at once", all, most)
	}
	for i := range set {
		set[i].Confirmed = false
	}
	m.SetWorkers(kv.Mono(2*time.Minute), set)
	all, most = run(kv.Mono(2*time.Minute), 10*time.Second, true)
	if all < 7*workers || all > 11*workers || most > workers/25 {
		t.Errorf("in doubt: %d pings in 10 s, at most %d at once", all, most)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	m, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	m.SetWorkers(0, []Worker{{ID: 1, Epoch: 1, Confirmed: true}, {ID: 2, Epoch: 1}})
	var now kv.Mono
	pings := make([]Ping, 0, 2)
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		m.RecordHeard(now, 1, 1)
		m.RecordFailedCall(now, 2, 1)
		for _, p := range m.DuePings(now.Add(time.Minute), pings, 2) {
			m.RecordAnswer(now, p, 1)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestConfigRefused(t *testing.T) {
	for _, c := range []Config{{IdleAfter: -1}, {MinRetry: time.Minute}, {SteadyAfter: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
