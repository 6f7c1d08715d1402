package disco_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
