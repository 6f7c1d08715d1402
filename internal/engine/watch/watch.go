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
type Hub struct {
	limit int

	mu struct {
		sync.Mutex
		watchers []*watcher
		stopped  bool
	}
}

// New returns a broadcaster without watchers. The backlog of a watcher is limited to limit block hashes, not
// counting a description.
func New(limit int) *Hub { return &Hub{limit: limit} }

// watcher is one call of Watch. The broadcaster's mutex guards all fields except ready.
type watcher struct {
	ready   chan struct{} // of capacity 1
	state   watching
	backlog []kv.Event
	handed  []kv.Event // last result of takeBacklog
	names   int        // in backlog, not counting a description
}

// watcherState is what a watcher needs next.
//
//	needsDescription   a description of the cache follows; then following
//	following          changes follow; backlogFull when the backlog is full
//	backlogFull        needsDescription when it takes its backlog
type watching uint8

const (
	wants watching = iota
	follows
	lost
)

// Watch reports to sink as engine.KVSource specifies. It calls ask, in its own goroutine, when the engine
// must describe its cache. It returns nil when ctx ends, sink's error if sink fails, and stopped after
// StopWatches.
func (h *Hub) Watch(ctx context.Context, ask func(), stopped error, sink func([]kv.Event) error) error {
	w := h.join()
	defer h.part(w)
	ask()
	for {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil
		}
		events, again, over := h.take(w)
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

func (h *Hub) join() *watcher {
	w := &watcher{ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.watchers = append(h.mu.watchers, w)
	if h.mu.stopped {
		w.notify()
	}
	return w
}

func (h *Hub) part(w *watcher) {
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
func (h *Hub) Publish(events []kv.Event) {
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
		if w.state != follows {
			continue
		}
		if w.names+names > h.limit {
			w.state, w.backlog, w.names = lost, nil, 0
		} else {
			w.backlog = append(w.backlog, events...)
			w.names += names
		}
		w.notify()
	}
}

// NeedsDescription reports whether a watcher waits for a description.
func (h *Hub) Wanting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == wants {
			return true
		}
	}
	return false
}

// SendDescription gives a description of the cache, a Cleared event and Stored events, to every watcher that
// needs one. All changes up to it have been published. It keeps the slices.
func (h *Hub) Describe(dump []kv.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == wants {
			w.state = follows
			w.backlog = append(w.backlog[:0], dump...)
			w.notify()
		}
	}
}

// WatcherCount returns the number of watchers.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.watchers)
}

// maxKept bounds the events whose memory a watcher keeps for reuse.
const maxKept = 1024

// takeBacklog empties the backlog of w. The result is valid until the next call, which reuses its memory.
// again says that the engine must describe the cache to w; stopped that no more events come.
func (h *Hub) take(w *watcher) (events []kv.Event, again, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.state == lost {
		w.state, again = wants, true
	}
	if clear(w.handed); cap(w.handed) > maxKept {
		w.handed = nil
	}
	w.backlog, w.handed, w.names = w.handed[:0], w.backlog, 0
	return w.handed, again, h.mu.stopped
}

// StopWatches ends all watches after their backlogs.
func (h *Hub) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.stopped = true
	for _, w := range h.mu.watchers {
		w.notify()
	}
}

func (w *watcher) notify() {
	select {
	case w.ready <- struct{}{}:
	default: // ready is already set
	}
}
