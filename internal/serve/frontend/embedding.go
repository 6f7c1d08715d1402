package frontend

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// embedding is one input of a request for embeddings on its way through workers.
// It belongs to one goroutine.
type embedding struct {
	f       *Frontend
	model   *model // as it was when the request came; each attempt looks again
	index   int    // of the input
	request engine.EmbedRequest
	route   route.Request

	decision route.Decision // of the last attempt
	tried    []api.Attempt
	vector   []float32 // nil until it has come
}

func (e *embedding) tokens() int { return 0 }

func (e *embedding) migration() string { return "new_request" }

func (e *embedding) choose(ctx context.Context, attempt uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := e.f.catalog.current(e.model)
	req := e.route
	req.Attempt = attempt
	req.Exclude = slices.Concat(m.unfit, m.withoutEmbeddings(), failed)
	return e.f.route(ctx, m, &req)
}

// try makes one attempt. It holds its reservation until the vector has come: an
// input is all prefill.
func (e *embedding) try(ctx context.Context, attempt uint32, d route.Decision) error {
	defer e.f.deps.Router.Free(e.route.ID, attempt)
	e.decision, e.request.Attempt = d, attempt
	e.tried = append(e.tried, api.Attempt{Prompt: e.index, Number: attempt, Worker: d.Worker, OverlapBlocks: d.OverlapBlocks})

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := e.f.cfg.StallTimeout
	stall := time.AfterFunc(limit, func() { cancel(errStalled) })
	defer stall.Stop()

	body := engine.AppendEmbedRequest(nil, &e.request)
	err := e.f.deps.Plane.Call(ctx, d.Addr, engine.MethodEmbed, body, e.take)
	switch {
	case e.vector != nil:
		return nil // whatever became of the call
	case errors.Is(context.Cause(ctx), errStalled):
		return fault.New(fault.Unavailable, "worker %d sent nothing for %v", d.Worker.ID, limit)
	case err == nil:
		return fault.New(fault.Unavailable, "worker %d ended its answer early", d.Worker.ID)
	}
	return err
}

// take handles one frame of the attempt in progress.
func (e *embedding) take(frame []byte) error {
	var got engine.Embedding
	if err := engine.DecodeEmbedding(frame, &got); err != nil {
		return broken("a frame that cannot be read", err)
	}
	switch {
	case got.Attempt != e.request.Attempt:
		return nil // a late answer
	case e.vector != nil:
		e.vector = nil
		return broken("a second embedding", nil)
	case len(got.Vector) == 0 || slices.ContainsFunc(got.Vector, notFinite):
		return broken("an embedding that is no vector", nil)
	}
	e.vector = got.Vector
	return nil
}

func notFinite(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }
