// Package catalog knows the registered workers of a process's component, their model cards, the models
// that they serve, and which workers fit their model. It reads the registry with one watch and publishes
// one immutable [Snapshot] at a time, which router, frontend and router proxy share: none of them judges
// a card itself, and none knows a worker that the others have judged otherwise.
//
// [Snapshot.Next] is the pure part: it reads and compares cards. What a further kind of worker must
// agree on with its model, and under which kind it registers, belongs there and into [Catalog.Run].
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
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := c.registry.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
			c.publish(set, apply)
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
	c.log.Warn("a worker gets no requests", "worker", uint64(f.worker), "model", f.model, "host", f.host, "reason", f.text)
}
