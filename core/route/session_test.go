package route

import (
	"fmt"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

func TestSessionsAreBoundedAndForgotten(t *testing.T) {
	s := newSessionTable(SessionConfig{TTL: time.Minute, MaxSessions: 3})
	at := func(seconds int) kv.Mono { return kv.Mono(time.Duration(seconds) * time.Second) }
	for i := range 5 {
		s.bindSession(at(i), fmt.Sprint(i), kv.Worker{ID: kv.WorkerID(i + 1)})
	}
	s.bindSession(at(5), "2", kv.Worker{ID: 9}) // makes it the newest
	s.bindSession(at(6), "5", kv.Worker{ID: 6})
	for id, want := range map[string]kv.WorkerID{"0": 0, "1": 0, "2": 9, "3": 0, "4": 5, "5": 6} {
		if got := s.workerOf(at(6), id).ID; got != want {
			t.Errorf("session %s is at %d, want %d", id, got, want)
		}
	}
	if got := s.workerOf(at(64), "4").ID; got != 0 {
		t.Errorf("session 4 is at %d a minute later", got)
	}
	s.bindSession(at(65), "6", kv.Worker{ID: 1})
	s.releaseSession("6")
	s.releaseSession("6")
	if len(s.byID) != 1 || s.head.newer != s.head.older || s.head.newer.id != "5" {
		t.Errorf("%d sessions are left, the oldest %q", len(s.byID), s.head.newer.id)
	}
}

// sessionRouter returns a router with hard sessions over workers which are all ready.
func sessionRouter(t *testing.T, workers ...kv.WorkerID) *Router {
	t.Helper()
	r := mustRouter(t, Config{Sessions: SessionConfig{Stickiness: Hard}, Seed: uint64(len(workers))}, mustTable(t, size))
	setWorkers(t, r, workers...)
	return r
}

func setWorkers(t *testing.T, r *Router, ids ...kv.WorkerID) {
	t.Helper()
	var list []Target
	for _, id := range ids {
		list = append(list, Target{Worker: kv.Worker{ID: id}, BlockSize: size, State: Ready})
	}
	if err := r.SetWorkers(list); err != nil {
		t.Fatal(err)
	}
}

func pickSession(t *testing.T, r *Router, n int) kv.WorkerID {
	t.Helper()
	q := &Query{Key: activeseq.AttemptKey{ID: fmt.Sprint(r.decisions), Attempt: 1}, PromptTokens: 100, Session: Session{ID: fmt.Sprint("session ", n)}}
	d, err := r.Pick(0, q)
	if err != nil {
		t.Fatal(err)
	}
	return d.Worker.ID
}

// TestReplicasAgreeOnHardSessions: routers which do not know of each other's decisions send a session to the
// same worker, and spread sessions evenly. A router with a new worker keeps the sessions which it knows; of
// the others, only sessions which the new worker takes move.
func TestReplicasAgreeOnHardSessions(t *testing.T) {
	const sessions = 4000
	a, b := sessionRouter(t, 1, 2, 3, 4), sessionRouter(t, 4, 3, 2, 1)
	fifth := sessionRouter(t, 1, 2, 3, 4, 5)
	counts := map[kv.WorkerID]int{}
	at := make([]kv.WorkerID, sessions)
	moved := 0
	for n := range sessions {
		at[n] = pickSession(t, a, n)
		counts[at[n]]++
		if other := pickSession(t, b, n); other != at[n] {
			t.Fatalf("session %d is at %d and at %d", n, at[n], other)
		}
		if other := pickSession(t, fifth, n); other != at[n] {
			moved++
			if other != 5 {
				t.Fatalf("session %d went from %d to %d", n, at[n], other)
			}
		}
	}
	for id, n := range counts {
		if n < sessions/4*8/10 || n > sessions/4*12/10 {
			t.Errorf("worker %d has %d of %d sessions", id, n, sessions)
		}
	}
	if moved < sessions/5*8/10 || moved > sessions/5*12/10 {
		t.Errorf("%d of %d sessions moved to the fifth worker", moved, sessions)
	}
	setWorkers(t, a, 1, 2, 3, 4, 5)
	for n := range sessions {
		if other := pickSession(t, a, n); other != at[n] {
			t.Fatalf("session %d left %d for %d when a worker came", n, at[n], other)
		}
	}
	setWorkers(t, a, 2, 3, 4, 5)
	for n := range sessions {
		if other := pickSession(t, a, n); at[n] != 1 && other != at[n] {
			t.Fatalf("session %d left %d for %d when worker 1 went", n, at[n], other)
		}
	}
}
