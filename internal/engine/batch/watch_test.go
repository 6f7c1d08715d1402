package batch

import (
	"context"
	"errors"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine/enginetest"

	"github.com/google/go-cmp/cmp"
)

func stored(hash int) []kv.Event {
	return []kv.Event{{Kind: kv.Stored, Blocks: []kv.BlockHash{kv.BlockHash(hash)}}}
}

func TestHubStartsOver(t *testing.T) {
	h := hub{limit: 6} // room for three events of one block
	slow, quick := h.join(), h.join()
	cleared := []kv.Event{{Kind: kv.Cleared}}
	expect := func(what string, w *watcher, want []kv.Event, wantAgain bool) {
		t.Helper()
		got, again, _ := h.take(w)
		if diff := cmp.Diff(want, got); diff != "" || again != wantAgain {
			t.Fatalf("%s: again %v (-want +got)\n%s", what, again, diff)
		}
	}
	h.publish(stored(1))
	expect("before the description", slow, nil, false)
	h.describe(cleared)
	expect("the description", quick, cleared, false)
	for i := range 3 {
		h.publish(stored(2 + i))
		expect("a change", quick, stored(2+i), false)
	}
	if h.wanting() {
		t.Fatal("somebody wants a description before the overflow")
	}
	h.publish(stored(5))
	expect("a change", quick, stored(5), false)
	if h.wanting() {
		t.Fatal("a watcher that overflowed wants a description before it comes back")
	}
	expect("what overflowed", slow, nil, true)
	if !h.wanting() {
		t.Fatal("nobody wants a description after the overflow")
	}
	h.publish(stored(6))
	h.describe(cleared)
	h.publish(stored(7))
	expect("started over", slow, append(cleared, stored(7)...), false)
	expect("not started over", quick, append(stored(6), stored(7)...), false)
	h.part(slow)
	h.publish(stored(8))
	expect("gone", slow, nil, false)
	expect("a change", quick, stored(8), false)
}

// TestSlowWatcherIsStartedOver blocks a watcher until more happened than its
// backlog holds.
func TestSlowWatcherIsStartedOver(t *testing.T) {
	e := small(t, nil)
	e.watchers.limit = 20
	ctx := enginetest.Start(t, e)
	watch, stop := context.WithCancel(ctx)
	replica, held, release, done := enginetest.NewReplica(), make(chan struct{}), make(chan struct{}), make(chan error, 1)
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
	truth, err := enginetest.Snapshot(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	err = replica.Wait(ctx, func(seqs map[kv.SeqHash]bool) bool { return len(cmp.Diff(truth, seqs)) == 0 })
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
	if err := <-watched; fault.Of(err) != fault.Unavailable {
		t.Errorf("the engine stopped: %v", err)
	}
	if err := e.WatchKV(context.Background(), func([]kv.Event) error { return nil }); fault.Of(err) != fault.Unavailable {
		t.Errorf("the engine had stopped: %v", err)
	}
	if n := len(e.watchers.mu.watchers); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
}
