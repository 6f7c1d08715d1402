package batch

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// Generate serves one request; see [engine.Engine]. Its own errors are Invalid for requests that can never be
// served, Overloaded when the queue is full, Unavailable when the engine has stopped or is stopping,
// Unimplemented for unsupported features, and Internal when the computation failed.
func (e *Engine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := e.checkRequest(req); err != nil {
		return err
	}
	r, err := e.newRequest(ctx, req)
	if err != nil {
		return err
	}
	defer r.releaseStates()
	e.preparePool(ctx, r)
	return e.serveRequest(ctx, r, sink)
}

// Prefill computes one prompt for state and draws nothing. The prompt is neither served from the prefix cache
// nor stored in it, so that state sees all of it: work whose Start is 0 starts at the first token, for the
// first time or again after a preemption. Its errors are the same as Generate's.
func (e *Engine) Prefill(ctx context.Context, req *engine.EmbedRequest, state State) error {
	if err := e.checkInput(req.Prompt); err != nil {
		return err
	}
	return e.serveRequest(ctx, newPrefill(req, state), func(*engine.Delta) error { return nil })
}

// serveRequest passes r to the loop and its output to sink. When it returns, the engine holds nothing of the
// request.
func (e *Engine) serveRequest(ctx context.Context, r *request, sink func(*engine.Delta) error) error {
	if err := e.submitRequest(r); err != nil {
		return err
	}
	defer e.abortRequest(r)
	for {
		select {
		case <-r.out.ready:
		case <-ctx.Done():
		case <-r.reservedBlocks():
			r.imp.fetchBlocks(ctx)
			continue
		case p := <-r.preempted:
			e.fetchPreempted(ctx, r, p)
			continue
		}
		deltas, last, err := r.out.takeDeltas()
		for i := range deltas {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := sink(&deltas[i]); err != nil {
				return err
			}
		}
		switch {
		case last:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// submitRequest puts r into the inbox. A request with nothing to generate finishes at once.
func (e *Engine) submitRequest(r *request) error {
	if len(r.open) == 0 {
		r.out.markAccepted()
		r.out.close(nil)
		close(r.released)
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch n := len(r.open); {
	case e.mu.phase == phaseStopped:
		return stoppedError()
	case e.mu.sequences+n > e.cfg.MaxSeqs+e.cfg.MaxWaiting:
		return fault.New(fault.Overloaded, "the engine's queue is full: %d sequences are running or waiting; try again later", e.mu.sequences)
	}
	e.mu.sequences += len(r.open)
	e.mu.inbox = append(e.mu.inbox, r)
	e.wakeLoop()
	return nil
}

// abortRequest makes the engine release r and waits until it has. It does nothing if r has finished.
func (e *Engine) abortRequest(r *request) {
	e.mu.Lock()
	select {
	case <-r.released:
		e.mu.Unlock()
		return
	default:
	}
	if i := slices.Index(e.mu.inbox, r); i >= 0 {
		e.mu.inbox = slices.Delete(e.mu.inbox, i, i+1)
		e.mu.sequences -= len(r.open)
		close(r.released)
		e.mu.Unlock()
		return
	}
	e.mu.aborts = append(e.mu.aborts, r)
	e.mu.Unlock()
	e.wakeLoop()
	<-r.released
}

func stoppedError() error {
	return fault.New(fault.Unavailable, "the engine has stopped; another worker may serve the request")
}
