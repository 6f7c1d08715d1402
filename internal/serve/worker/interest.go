package worker

import (
	"context"
	"log/slog"
	"sync"

	"penstock/internal/plane/disco"
)

// eventInterest tells whether any router wants the cache events. Until discovery has said otherwise one does.
//
//	state     event                                     next      the publisher
//	wanted    no router of the component wants events   unwanted  publishes a Cleared event, then nothing
//	unwanted  a router appears which may want them      wanted    describes the whole cache, then publishes
//	unwanted  a router asks for events                  wanted    the same, until the set of routers changes
//
// The Cleared event keeps a router which joins later from using what the stream has of this worker's cache, which
// goes on changing.
type eventInterest struct {
	changed chan struct{} // of capacity 1
	mu      struct {
		sync.Mutex
		unwanted bool
	}
}

func newEventInterest() *eventInterest { return &eventInterest{changed: make(chan struct{}, 1)} }

// isWanted reports whether a router wants the events, or may want them.
func (i *eventInterest) isWanted() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.mu.unwanted
}

func (i *eventInterest) setWanted(wanted bool) {
	i.mu.Lock()
	was := !i.mu.unwanted
	i.mu.unwanted = !wanted
	i.mu.Unlock()
	if was != wanted {
		select {
		case i.changed <- struct{}{}:
		default:
		}
	}
}

// follow watches the routers in discovery until ctx ends.
func (i *eventInterest) follow(ctx context.Context, w *Worker) error {
	for wait := newBackoff(); ; {
		err := w.planes.Registry.Watch(ctx, disco.KindRouter, func(routers []disco.Instance) {
			i.setWanted(disco.WantsKVEvents(routers, w.cfg.Namespace, w.cfg.Component))
		})
		i.setWanted(true) // no further sets come
		if ctx.Err() != nil {
			return nil
		}
		w.throttle.Log(ctx, slog.LevelWarn, "cannot watch routers, publishing cache events whether or not they want them", "error", err)
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// pause publishes that nothing is known of the cache, and returns when a router wants its events, or ctx ends.
func (p *feedPublisher[E]) pause(ctx context.Context) {
	p.w.log.Debug("no router wants cache events, publishing none")
	if p.publishEvents(ctx, []E{p.feed.clearedEvent()}) != nil {
		return
	}
	p.metrics.setPublishing(0) // after the last record
	defer p.metrics.setPublishing(1)
	for !p.interest.isWanted() {
		select {
		case <-p.interest.changed:
		case <-p.asked: // the description which follows answers it
			p.interest.setWanted(true)
		case <-ctx.Done():
			return
		}
	}
	p.w.log.Debug("a router wants cache events")
}
