package batch

import (
	"context"
	"errors"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/watch"

	"github.com/google/go-cmp/cmp"
)

// TestSlowWatcherIsStartedOver blocks a watcher until more happened than fits its backlog.
func TestSlowWatcherIsStartedOver(t *testing.T) {
	e := small(t, nil)
	e.watchers = watch.New(20, watch.CountHashes)
	ctx := enginetest.Start(t, e)
	watch, stop := context.WithCancel(ctx)
	replica, held, release, done := enginetest.NewCacheReplica(), make(chan struct{}), make(chan struct{}), make(chan error, 1)
	first := true
	go func() {
		done <- e.WatchKV(watch, func(events []kv.Event) error {
			if first {
				first = false
				close(held)
				<-release
			}
			return replica.Sink(events)
		})
	}()
	<-held
	for i := range 8 {
		enginetest.MustGenerate(t, ctx, e, greedy(i, 100, 2))
	}
	close(release)
	truth, err := enginetest.FirstSnapshot(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	err = replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return len(cmp.Diff(truth, seqs)) == 0 })
	if err != nil || replica.Restarts() != 2 {
		t.Errorf("%v; the watcher was started %d times, want 2", err, replica.Restarts())
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestWatchEnds(t *testing.T) {
	e := small(t, nil)
	run, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(run) }()

	broken := errors.New("sink is broken")
	if err := e.WatchKV(context.Background(), func([]kv.Event) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("broken sink: %v", err)
	}
	watched, first := make(chan error, 1), make(chan struct{})
	go func() {
		watched <- e.WatchKV(context.Background(), func([]kv.Event) error { close(first); return nil })
	}()
	<-first
	stop()
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := <-watched; fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the engine stopped: %v", err)
	}
	if err := e.WatchKV(context.Background(), func([]kv.Event) error { return nil }); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the engine had stopped: %v", err)
	}
	if n := e.watchers.WatcherCount(); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
}
