package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

func openMemQueue(t *testing.T, cfg QueueConfig) Queue {
	t.Helper()
	cfg.Name = "q"
	q, err := NewMemBus().OpenQueue(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// contextFor returns a context for calls of a queue. That of NATS has a deadline: without one the client library gives a
// call 5 s. No bubble has a queue of NATS.
func contextFor(t *testing.T, q Queue) context.Context {
	if _, ok := q.(*NATSQueue); ok {
		return fixturetest.PatientContext(t)
	}
	return t.Context()
}

func mustPut(t *testing.T, q Queue, id string, lifetime time.Duration) {
	t.Helper()
	if err := q.Put(contextFor(t, q), Job{ID: id, Lifetime: lifetime}); err != nil {
		t.Fatalf("put %s: %v", id, err)
	}
}

func mustPull(t *testing.T, q Queue, id string, attempt int) Delivery {
	t.Helper()
	d, err := q.Pull(contextFor(t, q))
	if err != nil || d.ID != id || d.Attempt != attempt {
		t.Fatalf("pulled attempt %d of %q, error %v, want attempt %d of %q", d.Attempt, d.ID, err, attempt, id)
	}
	return d
}

// A worker which waits gets a job at the moment at which the lease of its silent worker passes.
func TestMemQueueLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openMemQueue(t, QueueConfig{Lease: time.Minute})
		mustPut(t, q, "a", 10*time.Minute)
		d := mustPull(t, q, "a", 1)
		began := time.Now()
		for range 3 { // heartbeats
			time.Sleep(time.Minute - 1) // virtual time (synctest): just before the lease ends
			if err := q.Extend(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		mustPull(t, q, "a", 2)
		if took, want := time.Since(began), 3*(time.Minute-1)+time.Minute; took != want {
			t.Errorf("the second attempt began after %v, want %v", took, want)
		}
		if err := q.Ack(t.Context(), d); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("the first attempt is acknowledged: %v", err)
		}
	})
}

// Jobs end at their deadlines, and a worker which waits for one is not woken for it.
func TestMemQueueDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openMemQueue(t, QueueConfig{Lease: time.Hour, MaxLifetime: time.Hour})
		mustPut(t, q, "held", time.Minute)
		mustPut(t, q, "waits", time.Minute)
		d := mustPull(t, q, "held", 1)
		time.Sleep(time.Minute - 1) // virtual time (synctest): just before the deadline
		if err := q.Extend(t.Context(), d); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Nanosecond) // virtual time (synctest): the deadline passes
		if err := q.Extend(t.Context(), d); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("extend at the deadline: %v", err)
		}
		if depth, err := q.DescribeDepth(t.Context()); err != nil || depth.Waiting+depth.Started != 0 {
			t.Errorf("depth %+v, error %v", depth, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		if d, err := q.Pull(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("pulled %+v, %v", d, err)
		}
	})
}

// An id may be used again when the queue has forgotten it, and not before.
func TestMemQueueForgetsIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openMemQueue(t, QueueConfig{MaxLifetime: time.Minute})
		mustPut(t, q, "a", time.Second)
		if err := q.Ack(t.Context(), mustPull(t, q, "a", 1)); err != nil {
			t.Fatal(err)
		}
		for _, waiting := range []int{0, 1} {
			time.Sleep(time.Minute - 1 + time.Duration(waiting)) // virtual time (synctest): the queue knows the id for a minute
			mustPut(t, q, "a", time.Second)
			if depth, err := q.DescribeDepth(t.Context()); err != nil || depth.Waiting != waiting {
				t.Errorf("depth %+v, error %v, want %d", depth, err, waiting)
			}
		}
	})
}

// WatchedQueue knows its own jobs at once, the jobs of others after its interval, and dead letters after ten.
func TestWatchedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openMemQueue(t, QueueConfig{Lease: time.Hour, MaxLifetime: time.Hour})
		w := NewWatchedQueue(q, time.Second)
		check := func(what string, want string) {
			t.Helper()
			synctest.Wait()
			depth, ok := w.EstimateDepth()
			if got := fmt.Sprint(ok, depth.Waiting, depth.Started); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		check("before the first answer", "false 0 0")
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		check("at first", "true 0 0")
		mustPut(t, w, "a", time.Hour)
		mustPut(t, w, "b", time.Hour)
		check("own jobs", "true 2 0")
		mustPut(t, q, "c", time.Hour)
		mustPull(t, w, "a", 1)
		check("before the interval", "true 2 0")
		if depth, _ := w.EstimateDepth(); !depth.At.Equal(began) {
			t.Errorf("the depth is of %v, want %v", depth.At, began)
		}
		time.Sleep(time.Second) // virtual time (synctest): the interval passes
		check("after the interval", "true 2 1")
		if depth, _ := w.EstimateDepth(); !depth.At.Equal(began.Add(time.Second)) {
			t.Errorf("the depth is of %v, want one second later", depth.At)
		}
		for attempt := range DefaultMaxAttempts {
			if err := q.Release(t.Context(), mustPull(t, q, "b", attempt+1)); err != nil {
				t.Fatal(err)
			}
		}
		mustPull(t, q, "c", 1) // b has had its attempts
		if n := w.EstimateDead(); n != 0 {
			t.Errorf("%d dead letters before the store was asked", n)
		}
		time.Sleep(deadEvery * time.Second) // virtual time (synctest): the interval for dead letters passes
		check("after the interval for dead letters", "true 0 2")
		if n := w.EstimateDead(); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // virtual time (synctest): Run has ended, so no question is due
		check("after the end of Run", "true 0 2")
		if err := w.Put(t.Context(), Job{}); err == nil {
			t.Error("a bad job was put")
		}
		check("after a failure", "true 0 2")
	})
}
