package remote

import (
	"context"
	"slices"
	"sync"
	"time"

	"penstock/internal/backoff"
)

// listInterval is the time between two listings of an engine's LoRA adapters: operators load them, not
// requests. listTimeout bounds one listing.
const (
	listInterval = 10 * time.Second
	listTimeout  = 5 * time.Second
)

// adapterList holds the LoRA adapters that an engine serves now.
type adapterList struct {
	recheck chan struct{} // of capacity 1: a listed adapter was not found
	mu      struct {
		sync.Mutex
		names   []string // ascending; never changed in place
		changed chan struct{}
	}
}

func newAdapterList(names []string) *adapterList {
	a := &adapterList{recheck: make(chan struct{}, 1)}
	a.mu.names, a.mu.changed = names, make(chan struct{})
	return a
}

// current returns the served adapters, and a channel that is closed when they change.
func (a *adapterList) current() (names []string, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.names, a.mu.changed
}

// update sets the adapters to what the engine lists. It reports whether they changed, and which are gone.
func (a *adapterList) update(names []string) (gone []string, changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(names, a.mu.names) {
		return nil, false
	}
	for _, name := range a.mu.names {
		if _, still := slices.BinarySearch(names, name); !still {
			gone = append(gone, name)
		}
	}
	close(a.mu.changed)
	a.mu.names, a.mu.changed = names, make(chan struct{})
	return gone, true
}

// requestRecheck asks for a new listing, because the engine did not know an adapter.
func (a *adapterList) requestRecheck() {
	select {
	case a.recheck <- struct{}{}:
	default:
	}
}

// WatchAdapters implements [engine.AdapterWatcher].
func (b *Base) WatchAdapters(ctx context.Context, sink func([]string)) error {
	for {
		names, changed := b.adapters.current()
		sink(slices.Clone(names))
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchAdapters lists the engine's adapters periodically.
func (b *Base) watchAdapters(ctx context.Context) {
	if b.cfg.ListAdapters == nil {
		return
	}
	every := time.NewTicker(listInterval)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-b.adapters.recheck:
		case <-ctx.Done():
			return
		}
		if b.health.downError() != nil {
			continue
		}
		mark := b.cache.eventMark()
		bounded, cancel := context.WithTimeout(ctx, listTimeout)
		names, err := b.cfg.ListAdapters(bounded)
		cancel()
		if err != nil { // Base.watchHealth finds out what is wrong
			b.health.noteCallError(ctx, err)
			continue
		}
		if gone, changed := b.adapters.update(names); changed {
			b.cache.dropAdapters(gone, mark)
			b.log.Info("the engine's LoRA adapters have changed", "adapters", names)
		}
		if backoff.SleepContext(ctx, time.Second) != nil { // requests for a removed adapter must not cause a listing each
			return
		}
	}
}

// adapterOf returns the adapter that a passthrough request asks for, "" if none. Every name which is not a
// name of the model counts as an adapter, also one that is no longer listed: the model must not answer in its
// place.
func (b *Base) adapterOf(model string) string {
	if model == "" || b.cfg.Card.HasName(model) {
		return ""
	}
	return model
}
