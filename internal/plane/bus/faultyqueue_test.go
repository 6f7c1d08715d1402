package bus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
)

// queueStory puts 200 jobs through faults, pulls what comes, and returns both in words. The leases are long, so
// a delivery which is lost stays lost.
func queueStory(t *testing.T, seed uint64, f bustest.QueueFaults) (puts, pulls, acks, left string) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := bus.NewMemBus().OpenQueue(bus.QueueConfig{Name: "q", Lease: 24 * time.Hour, MaxLifetime: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		q := bustest.NewFaultyQueue(inner, seed, f)
		letter := func(err error) string {
			if err == nil {
				return "."
			}
			if fault.CodeOf(err) != fault.Unavailable {
				t.Fatal(err)
			}
			return "u"
		}
		for i := range 200 {
			puts += letter(q.Put(t.Context(), bus.Job{ID: fmt.Sprint(i), Lifetime: 20 * time.Hour}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		seen := map[string]bool{}
		for {
			d, err := q.Pull(ctx)
			if ctx.Err() != nil {
				break
			}
			pull := letter(err)
			if seen[d.Receipt] && err == nil {
				pull = "2"
			}
			if pulls += pull; pull == "." {
				seen[d.Receipt] = true
				acks += letter(q.Ack(t.Context(), d))
			}
		}
		depth, err := inner.DescribeDepth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		left = fmt.Sprint(depth.Waiting, " ", depth.Started)
	})
	return puts, pulls, acks, left
}

func TestFaultyQueue(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults bustest.QueueFaults
		check  func(puts, pulls, acks, left string) error
	}{
		{"none", bustest.QueueFaults{}, func(puts, pulls, acks, left string) error {
			all := strings.Repeat(".", 200)
			return between("jobs", len(acks), 200, 200, puts == all && pulls == all && acks == all && left == "0 0")
		}},
		{"delay", bustest.QueueFaults{Delay: time.Second}, func(puts, pulls, acks, left string) error {
			return between("jobs", len(acks), 200, 200, left == "0 0")
		}},
		{"duplicate", bustest.QueueFaults{Duplicate: 0.3}, func(_, pulls, acks, left string) error {
			return between("duplicates", strings.Count(pulls, "2"), 30, 90, len(acks) == 200 && left == "0 0")
		}},
		{"fail", bustest.QueueFaults{Fail: 0.4}, func(puts, pulls, acks, left string) error {
			failed, got := strings.Count(puts, "u"), strings.Count(pulls, ".")
			kept := got + strings.Count(pulls, "u")/2 // about half of the failed pulls took a job
			return between("failed puts", failed, 50, 110, kept > 200-failed && strings.Contains(acks, "u") && strings.HasPrefix(left, "0 "))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			puts, pulls, acks, left := queueStory(t, 1, tt.faults)
			if err := tt.check(puts, pulls, acks, left); err != nil {
				t.Errorf("seed 1: %v\n%s\n%s\n%s\n%s", err, puts, pulls, acks, left)
			}
			if a, b, c, d := queueStory(t, 1, tt.faults); a != puts || b != pulls || c != acks || d != left {
				t.Error("one seed, two stories")
			}
			if a, _, _, _ := queueStory(t, 2, tt.faults); tt.faults.Fail > 0 && a == puts {
				t.Error("two seeds, one story")
			}
		})
	}
}

// Without a connection every call is Unavailable at once, also a Pull which waits.
func TestFaultyQueueCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := bus.NewMemBus().OpenQueue(bus.QueueConfig{Name: "q"})
		if err != nil {
			t.Fatal(err)
		}
		q := bustest.NewFaultyQueue(inner, 1, bustest.QueueFaults{})
		waited := make(chan error)
		go func() {
			_, err := q.Pull(t.Context())
			waited <- err
		}()
		synctest.Wait()
		q.Set(bustest.QueueFaults{Cut: true})
		if err := <-waited; fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a Pull which waits: %v", err)
		}
		if err := q.Put(t.Context(), bus.Job{ID: "a", Lifetime: time.Second}); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("put: %v", err)
		}
		q.Set(bustest.QueueFaults{})
		if err := q.Put(t.Context(), bus.Job{ID: "b", Lifetime: time.Second}); err != nil {
			t.Error(err)
		}
		if d, err := q.Pull(t.Context()); err != nil || d.ID != "b" {
			t.Errorf("pulled %+v, %v", d, err)
		}
	})
}

// lateQueue ends the context of a Pull after it has taken a job.
type lateQueue struct {
	bus.Queue
	endPull func()
}

func (q lateQueue) Pull(ctx context.Context) (bus.Delivery, error) {
	d, err := q.Queue.Pull(ctx)
	q.endPull()
	return d, err
}

// A job which comes at the moment at which a Pull ends is delivered, or waits for the next Pull.
func TestFaultyQueuePullEnds(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			inner, err := bus.NewMemBus().OpenQueue(bus.QueueConfig{Name: "q", Lease: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if err := inner.Put(t.Context(), bus.Job{ID: "a", Lifetime: time.Minute}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			q := bustest.NewFaultyQueue(lateQueue{inner, cancel}, 1, bustest.QueueFaults{Delay: delay})
			d, err := q.Pull(ctx)
			if err != nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				d, err = inner.Pull(ctx)
			}
			if err != nil || d.ID != "a" {
				t.Errorf("delay up to %v: pulled %q, %v", delay, d.ID, err)
			}
		})
	}
}
