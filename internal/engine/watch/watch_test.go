package watch

import (
	"context"
	"errors"
	"testing"

	"penstock/core/kv"
	"penstock/internal/fixturetest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

func stored(hash int) []kv.Event {
	return []kv.Event{{Kind: kv.Stored, Blocks: []kv.BlockHash{kv.BlockHash(hash)}}}
}

func TestHubStartsOver(t *testing.T) {
	h := New(6, CountHashes) // room for three events of one block
	slow, quick := h.addWatcher(), h.addWatcher()
	cleared := []kv.Event{{Kind: kv.Cleared}}
	expect := func(what string, w *watcher[kv.Event], want []kv.Event, wantAgain bool) {
		t.Helper()
		got, again, _ := h.takeBacklog(w)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || again != wantAgain {
			t.Fatalf("%s: again %v (-want +got)\n%s", what, again, diff)
		}
	}
	h.Publish(stored(1))
	expect("before the description", slow, nil, false)
	h.SendDescription(cleared)
	expect("the description", quick, cleared, false)
	for i := range 3 {
		h.Publish(stored(2 + i))
		expect("a change", quick, stored(2+i), false)
	}
	if h.NeedsDescription() {
		t.Fatal("a watcher wants a description before the overflow")
	}
	h.Publish(stored(5))
	expect("a change", quick, stored(5), false)
	if h.NeedsDescription() {
		t.Fatal("a watcher that overflowed wants a description before it comes back")
	}
	expect("what overflowed", slow, nil, true)
	if !h.NeedsDescription() {
		t.Fatal("no watcher wants a description after the overflow")
	}
	h.Publish(stored(6))
	h.SendDescription(cleared)
	h.Publish(stored(7))
	expect("started over", slow, append(cleared, stored(7)...), false)
	expect("not started over", quick, append(stored(6), stored(7)...), false)
	h.removeWatcher(slow)
	h.Publish(stored(8))
	expect("gone", slow, nil, false)
	expect("a change", quick, stored(8), false)
}

// TestTakeAllocatesNothing checks that the memory of taken events is reused.
func TestTakeAllocatesNothing(t *testing.T) {
	h := New(MinBacklog, CountHashes)
	w := h.addWatcher()
	h.SendDescription([]kv.Event{{Kind: kv.Cleared}})
	batch := append(stored(1), stored(2)...)
	if n := testing.AllocsPerRun(100, func() {
		h.Publish(batch)
		h.takeBacklog(w)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestWatchEnds checks that a watch ends with its context, with its sink and with the engine, and leaves no
// watcher behind.
func TestWatchEnds(t *testing.T) {
	h := New(MinBacklog, CountHashes)
	stopped, broken := errors.New("stopped"), errors.New("broken")
	describe := func() { h.SendDescription([]kv.Event{{Kind: kv.Cleared}}) }
	if err := h.Watch(t.Context(), describe, stopped, func([]kv.Event) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a broken sink: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := h.Watch(ctx, describe, stopped, func([]kv.Event) error { cancel(); return nil }); err != nil {
		t.Errorf("the end of the context: %v", err)
	}
	if err := h.Watch(t.Context(), describe, stopped, func([]kv.Event) error { h.StopWatches(); return nil }); !errors.Is(err, stopped) {
		t.Errorf("the end of the engine: %v", err)
	}
	if err := h.Watch(t.Context(), describe, stopped, func([]kv.Event) error { return nil }); !errors.Is(err, stopped) {
		t.Errorf("after the end of the engine: %v", err)
	}
	if n := h.WatcherCount(); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
}
