package disco_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/disco"
)

// sets watches workers within a bubble.
type sets struct {
	stop func()
	mu   struct {
		sync.Mutex
		got []string
	}
}

// take returns the sets since the last take.
func (s *sets) take() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	got := strings.Join(s.mu.got, " ")
	s.mu.got = nil
	return got
}

func watchIn(t *testing.T, r disco.Registry) *sets {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, done := &sets{}, make(chan struct{})
	go func() {
		defer close(done)
		err := r.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
			var parts []string
			for _, in := range set {
				text := fmt.Sprint(in.ID)
				if in.Unconfirmed {
					text += "?"
				}
				parts = append(parts, text)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mu.got = append(s.mu.got, "["+strings.Join(parts, " ")+"]")
		})
		if err != nil {
			t.Errorf("Watch: %v", err)
		}
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	synctest.Wait()
	return s
}

// check says whether the sets since the last check are want.
func (s *sets) check(t *testing.T, want string) {
	t.Helper()
	if got := s.take(); got != want {
		t.Errorf("sets %q, want %q", got, want)
	}
}

func worker(id kv.WorkerID) disco.Instance { return disco.Instance{Kind: disco.KindWorker, ID: id} }

func registerIn(t *testing.T, r disco.Registry, id kv.WorkerID) disco.Lease {
	t.Helper()
	l, err := r.Register(t.Context(), worker(id))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The registry in memory lives in a bubble, for any time.
func TestMemInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := disco.NewMemRegistry()
		s := watchIn(t, r)
		l := registerIn(t, r, 1)
		s.check(t, "[] [1]")
		<-time.After(1000 * time.Hour)
		s.check(t, "")
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.check(t, "[]")
		s.stop()
	})
}

func TestFaultyOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := disco.WithFaults(disco.NewMemRegistry(), 1, disco.RegistryFaults{})
		s := watchIn(t, r)
		one, two := registerIn(t, r, 1), registerIn(t, r, 2)
		s.take()
		r.Down()
		s.check(t, "[1? 2?]")
		for what, err := range map[string]error{
			"register": func() error { _, err := r.Register(t.Context(), worker(3)); return err }(),
			"update":   one.Update(t.Context(), worker(1)),
			"release":  two.Release(t.Context()),
		} {
			if fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("%s: error %v, want Unavailable", what, err)
			}
		}
		r.Down() // again: nothing new
		s.check(t, "")
		r.Up()
		s.check(t, "[1 2]")
		if err := two.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.check(t, "[1]")
		s.stop()
	})
}

func TestFaultyFails(t *testing.T) {
	story := func(seed uint64) string {
		r := disco.WithFaults(disco.NewMemRegistry(), seed, disco.RegistryFaults{Fail: 0.5})
		var out strings.Builder
		for id := range kv.WorkerID(100) {
			switch _, err := r.Register(t.Context(), worker(id)); {
			case err == nil:
				out.WriteByte('+')
			case fault.CodeOf(err) == fault.Unavailable:
				out.WriteByte('-')
			default:
				t.Fatal(err)
			}
		}
		return out.String()
	}
	a := story(1)
	if n := strings.Count(a, "-"); n < 25 || n > 75 {
		t.Errorf("%d of 100 registrations failed, want about half", n)
	}
	if story(1) != a {
		t.Error("one seed, two stories")
	}
	if story(2) == a {
		t.Error("two seeds, one story")
	}
}

func TestFaultyDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := disco.WithFaults(disco.NewMemRegistry(), 1, disco.RegistryFaults{Delay: time.Minute})
		s := watchIn(t, r)
		registerIn(t, r, 1)
		s.check(t, "") // held up
		<-time.After(3 * time.Minute)
		if got := s.take(); !strings.HasSuffix(got, "[1]") {
			t.Errorf("sets %s, want the newest to be [1]", got)
		}
		registerIn(t, r, 2)
		s.stop() // in the middle of a delay
	})
}

// TestWatchBegunAmongChanges: a watch that a change overtakes while it begins has its
// first set like any other.
func TestWatchBegunAmongChanges(t *testing.T) {
	r := disco.NewMemRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for id := range kv.WorkerID(4) {
		changing.Go(func() {
			for ctx.Err() == nil {
				lease, err := r.Register(ctx, worker(id+1))
				if err != nil {
					return
				}
				_ = lease.Release(ctx) // the end of ctx may come between
			}
		})
	}
	for range 5000 {
		seen, stop := context.WithCancel(t.Context())
		if err := r.Watch(seen, disco.KindWorker, func([]disco.Instance) { stop() }); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	changing.Wait()
}
