package worker

import (
	"context"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

const (
	// compareTimeout bounds the check of the other workers before a worker registers: an unreachable
	// store must not keep it from starting.
	compareTimeout = 2 * time.Second
	// comparePing bounds the ping of another worker.
	comparePing = time.Second
)

// checkNameConflict returns an error if the model's name is served with a card that differs from this
// worker's: frontends would send nothing here, so the error belongs where the worker was started. It
// considers workers of the same namespace and component which discovery confirms and which answer a
// ping. If one of them has the same card the name is also this worker's, and the others are refused. A
// store that does not answer in time does not prevent the start.
func (w *Worker) checkNameConflict(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	var conflict error
	for _, in := range w.otherWorkers(ctx) {
		if in.Card.Name != w.card.Name {
			continue
		}
		field, ours, theirs, differ := w.card.FirstDifference(in.Card)
		switch {
		case !differ:
			return nil
		case conflict == nil && w.answersPing(ctx, in.Addr):
			conflict = fault.New(fault.Conflict,
				"%s is served with another model card: %s is %s here and %s at worker %d on %s (pid %d); start this worker with the same settings, or under another name",
				in.Card.Name, field, ours, theirs, in.ID, in.Host, in.PID)
		}
	}
	return conflict
}

// otherWorkers returns the other workers which discovery confirms; none if it does not answer before
// ctx ends.
func (w *Worker) otherWorkers(ctx context.Context) []*catalog.Worker {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var found []*catalog.Worker
	err := w.planes.Registry.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
		once.Do(func() {
			sel := catalog.Selection{Namespace: w.cfg.Namespace, Component: w.cfg.Component}
			for _, in := range catalog.NewSnapshot().Next(sel, set, time.Time{}).Workers {
				if in.ID != w.cfg.ID && !in.Unconfirmed && in.Problem == "" {
					found = append(found, in)
				}
			}
			cancel()
		})
	})
	if err != nil { // the registration reports it
		w.log.Debug("cannot look at the other workers", "error", err)
	}
	return found
}

// answersPing reports whether a worker answers a ping: the registration of a killed worker remains
// until its lease expires.
func (w *Worker) answersPing(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, comparePing)
	defer cancel()
	return w.planes.RPC.Call(ctx, addr, engine.MethodPing, nil, func([]byte) error { return nil }) == nil
}
