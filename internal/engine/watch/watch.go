// Package watch broadcasts the events of an engine's cache, KV cache or embedding cache, to watchers: each watcher
// gets a description of what is cached now and then every change, in order. A watcher that lags too far is restarted
// with a new description; it never holds up the engine.
package watch

import (
	"context"
	"sync"

	"penstock/core/kv"
)

// MinBacklog is the least sensible limit of a [Broadcaster]: below it the changes of a few requests would
// restart watchers.
const MinBacklog = 1024

// Broadcaster serves the watchers of one cache, whose events are of type E. The engine publishes every change, and
// describes its cache when [Broadcaster.NeedsDescription] returns true; it never waits for a watcher.
type Broadcaster[E any] struct {
	limit int
	sizes func(*E) int

	mu struct {
		sync.Mutex
		watchers []*watcher[E]
		stopped  bool
	}
}

// New returns a broadcaster without watchers. The backlog of a watcher is limited to events whose sizes add up to
// limit, not counting a description.
func New[E any](limit int, sizes func(*E) int) *Broadcaster[E] {
	return &Broadcaster[E]{limit: limit, sizes: sizes}
}

// CountHashes is the size of a KV event: its block hashes, and 1.
func CountHashes(ev *kv.Event) int { return 1 + len(ev.Blocks) + len(ev.Seqs) }

// watcher is one call of Watch. The broadcaster's mutex guards all fields except ready.
type watcher[E any] struct {
	ready       chan struct{} // of capacity 1
	state       watcherState
	backlog     []E
	lastTaken   []E // last result of takeBacklog
	backlogSize int // of the events in backlog, not counting a description
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
func (h *Broadcaster[E]) Watch(ctx context.Context, ask func(), stopped error, sink func([]E) error) error {
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

func (h *Broadcaster[E]) addWatcher() *watcher[E] {
	w := &watcher[E]{ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.watchers = append(h.mu.watchers, w)
	if h.mu.stopped {
		w.signalReady()
	}
	return w
}

func (h *Broadcaster[E]) removeWatcher(w *watcher[E]) {
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
func (h *Broadcaster[E]) Publish(events []E) {
	if len(events) == 0 {
		return
	}
	size := 0
	for i := range events {
		size += h.sizes(&events[i])
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state != following {
			continue
		}
		if w.backlogSize+size > h.limit {
			w.state, w.backlog, w.backlogSize = backlogFull, nil, 0
		} else {
			w.backlog = append(w.backlog, events...)
			w.backlogSize += size
		}
		w.signalReady()
	}
}

// NeedsDescription reports whether a watcher waits for a description.
func (h *Broadcaster[E]) NeedsDescription() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == needsDescription {
			return true
		}
	}
	return false
}

// SendDescription gives a description of the cache, a Cleared event and what is cached, to every watcher that
// needs one. All changes up to it have been published. It keeps the slices.
func (h *Broadcaster[E]) SendDescription(dump []E) {
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
func (h *Broadcaster[E]) WatcherCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.watchers)
}

// maxKept bounds the events whose memory a watcher keeps for reuse.
const maxKept = 1024

// takeBacklog empties the backlog of w. The result is valid until the next call, which reuses its memory.
// again says that the engine must describe the cache to w; stopped that no more events come.
func (h *Broadcaster[E]) takeBacklog(w *watcher[E]) (events []E, again, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.state == backlogFull {
		w.state, again = needsDescription, true
	}
	if clear(w.lastTaken); cap(w.lastTaken) > maxKept {
		w.lastTaken = nil
	}
	w.backlog, w.lastTaken, w.backlogSize = w.lastTaken[:0], w.backlog, 0
	return w.lastTaken, again, h.mu.stopped
}

// StopWatches ends all watches after their backlogs.
func (h *Broadcaster[E]) StopWatches() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.stopped = true
	for _, w := range h.mu.watchers {
		w.signalReady()
	}
}

func (w *watcher[E]) signalReady() {
	select {
	case w.ready <- struct{}{}:
	default: // ready is already set
	}
}
