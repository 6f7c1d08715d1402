// Package watch hands the cache events of an engine to those who watch it: each is told
// what is cached now and then every change, in order, and one that falls behind is started
// over instead of holding up the engine.
package watch

import (
	"context"
	"sync"

	"penstock/core/kv"
)

// MinBacklog is a limit for a [Hub] below which watchers would be started over for the
// changes of a few requests.
const MinBacklog = 1024

// Hub has the watchers of one engine. The engine publishes every change, and when [Hub.Wanting]
// says so describes its cache; it never waits for a watcher.
type Hub struct {
	limit int

	mu struct {
		sync.Mutex
		watchers []*watcher
		stopped  bool
	}
}

// New returns a hub without watchers, each of which may be behind by limit names of
// blocks, beside a description.
func New(limit int) *Hub { return &Hub{limit: limit} }

// watcher is one call of Watch. The hub's mutex guards all but ready.
type watcher struct {
	ready   chan struct{} // has room for one
	state   watching
	backlog []kv.Event
	handed  []kv.Event // what take returned last
	names   int        // in backlog, without those of a description
}

// watching is what a watcher needs next.
type watching uint8

const (
	wants   watching = iota // a description of the cache
	follows                 // the changes
	lost                    // its backlog overflowed; it wants when it comes back
)

// Watch reports to sink as the contract of engine.KVSource says. ask is called, by this
// goroutine, when the engine must describe its cache. It returns nil when ctx ends, sink's
// error if sink fails, and stopped when the engine has.
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

// Publish adds events to the backlog of everyone who follows. It keeps their
// slices.
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

// Wanting reports whether a watcher waits for a description.
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

// Describe gives the description of the cache, a Cleared event and Stored events, to everyone who
// wants one. All changes up to it have been published. It keeps their slices.
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

// Watchers returns how many watch.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.watchers)
}

// maxKept bounds the events whose memory a watcher keeps for the next ones.
const maxKept = 1024

// take empties the backlog of w: what it returns is valid until the next call, in which its memory
// is used again. again says that the engine must describe the cache to it; stopped, that no more
// events come.
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

// Stop says that no more events come.
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
	default: // it will look anyway
	}
}
