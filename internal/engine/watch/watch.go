// Package watch broadcasts the cache events of an engine to watchers: each watcher gets a description of what
// is cached now and then every change, in order. A watcher that lags too far is restarted with a new
// description; it never holds up the engine.
package watch

import (
	"context"
	"sync"

	"penstock/core/kv"
)

// MinBacklog is the least sensible limit of a [Broadcaster]: below it the changes of a few requests would
// restart watchers.
const MinBacklog = 1024

// Broadcaster serves the watchers of one engine. The engine publishes every change, and describes its cache
// when [Broadcaster.NeedsDescription] returns true; it never waits for a watcher.
type Broadcaster struct {
	limit int

	mu struct {
		sync.Mutex
		watchers []*watcher
		stopped  bool
	}
}

// New returns a broadcaster without watchers. The backlog of a watcher is limited to limit block hashes, not
// counting a description.
func New(limit int) *Broadcaster { return &Broadcaster{limit: limit} }

// watcher is one call of Watch. The broadcaster's mutex guards all fields except ready.
type watcher struct {
	ready         chan struct{} // of capacity 1
	state         watcherState
	backlog       []kv.Event
	lastTaken     []kv.Event // last result of takeBacklog
	backlogHashes int        // in backlog, not counting a description
}

// watcherState is what a watcher needs next.
//
//	needsDescription   a description of the cache follows; then following
//	following          changes follow; backlogFull when the backlog is full
//	backlogFull        needsDescription when it takes its backlog
type watcherState uint8

const (
	needsDescription watcherState = iota
	following
	backlogFull
)

// Watch reports to sink as engine.KVSource specifies. It calls ask, in its own goroutine, when the engine
// must describe its cache. It returns nil when ctx ends, sink's error if sink fails, and stopped after
// StopWatches.
func (h *Broadcaster) Watch(ctx context.Context, ask func(), stopped error, sink func([]kv.Event) error) error {
	w := h.addWatcher()
	defer h.removeWatcher(w)
	ask()
	for {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil
		}
		events, again, over := h.takeBacklog(w)
		if again {
			ask()
		}
		if len(events) > 0 {
			if err := sink(events); err != nil {
				return err
			}
		}
		if over {
			return stopped
		}
	}
}

func (h *Broadcaster) addWatcher() *watcher {
	w := &watcher{ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.watchers = append(h.mu.watchers, w)
	if h.mu.stopped {
		w.signalReady()
	}
	return w
}

func (h *Broadcaster) removeWatcher(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, o := range h.mu.watchers {
		if o == w {
			h.mu.watchers = append(h.mu.watchers[:i:i], h.mu.watchers[i+1:]...)
			return
		}
	}
}

// Publish adds events to the backlog of every watcher which is following. It keeps their slices.
func (h *Broadcaster) Publish(events []kv.Event) {
	if len(events) == 0 {
		return
	}
	names := 0
	for i := range events {
		names += 1 + len(events[i].Blocks) + len(events[i].Seqs)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state != following {
			continue
		}
		if w.backlogHashes+names > h.limit {
			w.state, w.backlog, w.backlogHashes = backlogFull, nil, 0
		} else {
			w.backlog = append(w.backlog, events...)
			w.backlogHashes += names
		}
		w.signalReady()
	}
}

// NeedsDescription reports whether a watcher waits for a description.
func (h *Broadcaster) NeedsDescription() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == needsDescription {
			return true
		}
	}
	return false
}

// SendDescription gives a description of the cache, a Cleared event and Stored events, to every watcher that
// needs one. All changes up to it have been published. It keeps the slices.
func (h *Broadcaster) SendDescription(dump []kv.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == needsDescription {
			w.state = following
			w.backlog = append(w.backlog[:0], dump...)
			w.signalReady()
		}
	}
}

// WatcherCount returns the number of watchers.
func (h *Broadcaster) WatcherCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.watchers)
}

// maxKept bounds the events whose memory a watcher keeps for reuse.
const maxKept = 1024

// takeBacklog empties the backlog of w. The result is valid until the next call, which reuses its memory.
// again says that the engine must describe the cache to w; stopped that no more events come.
func (h *Broadcaster) takeBacklog(w *watcher) (events []kv.Event, again, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.state == backlogFull {
		w.state, again = needsDescription, true
	}
	if clear(w.lastTaken); cap(w.lastTaken) > maxKept {
		w.lastTaken = nil
	}
	w.backlog, w.lastTaken, w.backlogHashes = w.lastTaken[:0], w.backlog, 0
	return w.lastTaken, again, h.mu.stopped
}

// StopWatches ends all watches after their backlogs.
func (h *Broadcaster) StopWatches() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.stopped = true
	for _, w := range h.mu.watchers {
		w.signalReady()
	}
}

func (w *watcher) signalReady() {
	select {
	case w.ready <- struct{}{}:
	default: // ready is already set
	}
}
