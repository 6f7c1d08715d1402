package load

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQueue holds the heap against sorting.
func TestQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q jobQueue
	var twin []*job
	for i := range 5000 {
		if len(twin) > 0 && rng.IntN(3) == 0 {
			slices.SortFunc(twin, func(a, b *job) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.index, b.index)) })
			if got := q.pop(); got != twin[0] {
				t.Fatalf("step %d: %+v, want %+v", i, got, twin[0])
			}
			twin = twin[1:]
			continue
		}
		j := &job{index: i, due: time.Duration(rng.IntN(100))}
		q.push(j)
		twin = append(twin, j)
	}
}

// TestSessionsAreForgotten: what a session leaves behind is bounded, and none is
// forgotten while its next request has to wait.
func TestSessionsAreForgotten(t *testing.T) {
	s := newSessionTable()
	for i := range 3 * maxRemembered {
		now := time.Duration(i) * time.Millisecond
		j := &job{session: string(rune(i)), delay: time.Second, at: now}
		if s.offerJob(j, now) != offerDue {
			t.Fatalf("session %d does not begin", i)
		}
		if s.finishJob(j.session, now) != nil {
			t.Fatalf("session %d has another request", i)
		}
		if n := len(s.mu.byName); n > maxRemembered {
			t.Fatalf("%d sessions are remembered", n)
		}
		again := &job{session: j.session, delay: time.Second, at: 0}
		if s.offerJob(again, now); again.due != now+time.Second {
			t.Fatalf("session %d goes on at %v, want %v", i, again.due, now+time.Second)
		}
		s.finishJob(j.session, now)
	}
}

func TestParkedIsBounded(t *testing.T) {
	s := newSessionTable()
	for i := range maxParked + 1 {
		if v := s.offerJob(&job{session: "a", index: i}, 0); v != offerParked && i > 0 {
			t.Fatalf("request %d: %v", i, v)
		}
	}
	if v := s.offerJob(&job{session: "a"}, 0); v != offerFull {
		t.Errorf("one too many: %v", v)
	}
	if v := s.offerJob(&job{session: "b"}, 0); v != offerDue {
		t.Errorf("another session: %v", v)
	}
	if j := s.finishJob("a", time.Second); j.index != 1 || j.due != time.Second {
		t.Errorf("%+v goes on", j)
	}
	if v := s.offerJob(&job{session: "a"}, 0); v != offerParked {
		t.Errorf("with room again: %v", v)
	}
}

// TestAhead: what was sent makes room, in number and in bytes.
func TestAhead(t *testing.T) {
	a, stop, waits := newAheadLimit(2), make(chan struct{}), 0
	room := func() bool { return a.waitForRoom(stop, func() { waits++; close(stop) }) }
	a.addBody(maxAheadBytes)
	a.addBody(1)
	a.removeBody(maxAheadBytes)
	if !room() || waits > 0 {
		t.Error("there is no room for a second request behind a small one")
	}
	a.addBody(1)
	if room() || waits != 1 {
		t.Errorf("there is room for a third of two, after %d waits", waits)
	}
}
