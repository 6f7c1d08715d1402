package worker

import (
	"context"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

const (
	// compareTimeout bounds the look at the other workers before a worker
	// registers: a store that is away must not keep one from starting.
	compareTimeout = 2 * time.Second
	// compareCall bounds the question to another worker whether it is there.
	compareCall = time.Second
)

// compare returns an error if the model's name is being served by another card
// than this worker's: frontends would send nothing here, so it is better said
// where the worker was started. It is about workers of the same namespace and
// component that discovery confirms and that answer. Where one of them has the
// same card the name is ours too, and it is the others that are refused. A store
// that does not tell in time is no reason not to start.
func (w *Worker) compare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	var conflict error
	for _, in := range w.others(ctx) {
		card, err := engine.DecodeCard(in.Meta)
		if err != nil || card.Name != w.card.Name {
			continue
		}
		field, ours, theirs, differ := w.card.Differs(&card)
		switch {
		case !differ:
			return nil
		case conflict == nil && w.answers(ctx, in.Addr):
			conflict = fault.New(fault.Conflict,
				"%s is served with another model card: %s is %s here and %s at worker %d on %s (pid %d); start this worker with the same settings, or under another name",
				card.Name, field, ours, theirs, in.ID, in.Host, in.PID)
		}
	}
	return conflict
}

// others returns the workers beside this one that discovery confirms; none if it
// does not tell before ctx ends.
func (w *Worker) others(ctx context.Context) []disco.Instance {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var found []disco.Instance
	err := w.planes.Registry.Watch(ctx, disco.Worker, func(set []disco.Instance) {
		once.Do(func() {
			for _, in := range set {
				if in.ID != w.cfg.ID && in.Namespace == w.cfg.Namespace && in.Component == w.cfg.Component && !in.Unconfirmed {
					found = append(found, in)
				}
			}
			cancel()
		})
	})
	if err != nil { // registering tells
		w.log.Debug("cannot look at the other workers", "error", err)
	}
	return found
}

// answers reports whether a worker answers a ping: a registration outlives a
// worker that was killed by its lease.
func (w *Worker) answers(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, compareCall)
	defer cancel()
	return w.planes.RPC.Call(ctx, addr, engine.MethodPing, nil, func([]byte) error { return nil }) == nil
}
