package batch

import (
	"context"
	"sync"

	"penstock/core/kv"
)

// WatchKV reports the cache to sink as the contract of [engine.KVSource] says. A
// watcher that is further behind than a description of the whole cache is long
// is started over. It returns nil when ctx ends, sink's error if sink fails, and
// an Unavailable error when the engine has stopped.
func (e *Engine) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	w := e.watchers.join()
	defer e.watchers.part(w)
	e.poke()
	for {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil
		}
		events, again, stopped := e.watchers.take(w)
		if again {
			e.poke()
		}
		if len(events) > 0 {
			if err := sink(events); err != nil {
				return err
			}
		}
		if stopped {
			return errStopped()
		}
	}
}

// minBacklog is the least that a watcher may be behind, in block names.
const minBacklog = 1024

// hub hands the events of the loop to watchers. The loop never waits for one.
type hub struct {
	limit int // most names in a watcher's backlog

	mu struct {
		sync.Mutex
		watchers []*watcher
		stopped  bool
	}
}

// watcher is one call of WatchKV. The hub's mutex guards all but ready.
type watcher struct {
	ready   chan struct{} // has room for one
	state   watching
	backlog []kv.Event
	names   int // in backlog, without those of a description
}

// watching is what a watcher needs next.
type watching uint8

const (
	wants   watching = iota // a description of the cache
	follows                 // the changes
	lost                    // its backlog overflowed; it wants when it comes back
)

func (h *hub) join() *watcher {
	w := &watcher{ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.watchers = append(h.mu.watchers, w)
	if h.mu.stopped {
		w.notify()
	}
	return w
}

func (h *hub) part(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, o := range h.mu.watchers {
		if o == w {
			h.mu.watchers = append(h.mu.watchers[:i:i], h.mu.watchers[i+1:]...)
			return
		}
	}
}

// publish adds events to the backlog of everyone who follows. It keeps their
// slices.
func (h *hub) publish(events []kv.Event) {
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

// wanting reports whether a watcher waits for a description.
func (h *hub) wanting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.mu.watchers {
		if w.state == wants {
			return true
		}
	}
	return false
}

// describe gives the description of the cache to everyone who wants one. All
// changes up to it have been published.
func (h *hub) describe(dump []kv.Event) {
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

// take empties the backlog of w. again says that the loop must describe the
// cache to it; stopped, that no more events come.
func (h *hub) take(w *watcher) (events []kv.Event, again, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.state == lost {
		w.state, again = wants, true
	}
	events = w.backlog
	w.backlog, w.names = nil, 0
	return events, again, h.mu.stopped
}

// stop says that no more events come.
func (h *hub) stop() {
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
