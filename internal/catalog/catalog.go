// Package catalog knows the registered workers of a process's component, their model cards, the models
// that they serve, and which workers fit their model. It reads the registry with one watch for each kind of
// worker and publishes one immutable [Snapshot] at a time, which router, frontend and router proxy share: none
// of them judges a card itself, and none knows a worker that the others have judged otherwise.
//
// [Snapshot.Next] is the pure part: it reads and compares cards. [KindOf] says under which kind a worker of a
// role registers, and engine.Card says what workers of each role must agree on.
package catalog

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// Catalog holds the latest snapshot. Any goroutine may read it; Run makes it.
type Catalog struct {
	selection Selection
	registry  disco.Registry
	log       *slog.Logger
	throttled *obs.Throttle
	current   atomic.Pointer[Snapshot]
	loaded    chan struct{}
	markRead  func() // closes loaded
}

// New returns a catalog that is empty until Run has read the registry.
func New(sel Selection, registry disco.Registry, log *slog.Logger) *Catalog {
	log = obs.Component(log, "catalog")
	c := &Catalog{selection: sel, registry: registry, log: log, throttled: obs.NewThrottle(log, 10*time.Second), loaded: make(chan struct{})}
	c.markRead = sync.OnceFunc(func() { close(c.loaded) })
	c.current.Store(NewSnapshot())
	return c
}

// Current returns the latest snapshot.
func (c *Catalog) Current() *Snapshot { return c.current.Load() }

// Loaded is closed when Current first reflects the registry.
func (c *Catalog) Loaded() <-chan struct{} { return c.loaded }

// Run follows the registry until ctx ends. It calls apply with each snapshot before Current returns it,
// so that a router which applies snapshots never knows less than a reader of Current. A registry that
// fails is watched again; meanwhile the last snapshot stays.
func (c *Catalog) Run(ctx context.Context, apply func(*Snapshot)) {
	defer c.throttled.Flush(context.WithoutCancel(ctx))
	var watches sync.WaitGroup
	defer watches.Wait()
	updates := make(chan kindSet)
	for i, kind := range workerKinds {
		watches.Go(func() {
			c.watchKind(ctx, kind, func(set []disco.Instance) {
				u := kindSet{i, set, make(chan struct{})}
				select {
				case updates <- u:
					<-u.applied
				case <-ctx.Done():
				}
			})
		})
	}
	var read [len(workerKinds)]bool
	var sets [len(workerKinds)][]disco.Instance
	for {
		select {
		case u := <-updates:
			read[u.kind], sets[u.kind] = true, u.instances
			if !slices.Contains(read[:], false) { // otherwise the registry has not said what it has of each kind
				c.publish(slices.Concat(sets[:]...), apply)
			}
			close(u.applied)
		case <-ctx.Done():
			return
		}
	}
}

// kindSet is the set of one of workerKinds.
type kindSet struct {
	kind      int // its index
	instances []disco.Instance
	applied   chan struct{} // closed when the set is taken over
}

// watchKind calls sink with the instances of a kind until ctx ends.
func (c *Catalog) watchKind(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := c.registry.Watch(ctx, kind, func(set []disco.Instance) {
			sink(set)
			wait.Reset()
		})
		if ctx.Err() != nil {
			return
		}
		c.throttled.Log(ctx, slog.LevelWarn, "the watch of workers ended; it begins again", "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// publish makes the snapshot of a set of instances the current one.
func (c *Catalog) publish(set []disco.Instance, apply func(*Snapshot)) {
	old := c.current.Load()
	next := old.Next(c.selection, set, time.Now())
	for _, f := range next.findings {
		if !slices.Contains(old.findings, f) {
			c.logFinding(f)
		}
	}
	for _, clash := range next.clashes {
		if !slices.Contains(old.clashes, clash) {
			c.log.Warn("an alias of a model leads to another model", "alias", clash.Alias, "model", clash.Hidden, "leads_to", clash.Model)
		}
	}
	apply(next)
	c.current.Store(next)
	close(old.superseded)
	c.markRead()
}

func (c *Catalog) logFinding(f finding) {
	if f.adapter != "" {
		c.log.Warn("an adapter is not served", "model", f.model, "adapter", f.adapter, "reason", f.text)
		return
	}
	if f.pool {
		c.log.Warn("a worker shares no KV blocks", "worker", uint64(f.worker), "model", f.model, "host", f.host, "reason", f.text)
		return
	}
	c.log.Warn("a worker gets no requests", "worker", uint64(f.worker), "model", f.model, "host", f.host, "reason", f.text)
}
