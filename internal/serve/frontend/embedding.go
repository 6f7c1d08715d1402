package frontend

import (
	"context"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// embeddingTask is one input of an embeddings request, dispatched to workers. One goroutine uses it.
type embedding struct {
	f       *Frontend
	model   *model // at the request's arrival; each attempt looks up the current one
	index   int    // of the input
	request engine.EmbedRequest
	route   route.Request

	decision route.Decision // of the last attempt
	tried    []api.Attempt
	answer   engine.Embedding // its Vector is nil until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (e *embedding) Tokens() int { return 0 }

// MoveKind implements dispatch.Task.
func (e *embedding) Kind() string { return attempt.NewRequest }

// ChooseWorker implements dispatch.Task.
func (e *embedding) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := e.f.catalog.current(e.model)
	req := e.route
	req.Attempt = number
	return attempt.Route(ctx, e.f.decides, &req, nil, slices.Concat(m.unfit, m.withoutEmbeddings(), failed))
}

// RunAttempt makes one attempt. It holds its reservation until the vector has arrived: an input is all
// prefill.
func (e *embedding) Try(ctx context.Context, number uint32, d route.Decision) error {
	defer attempt.Hold(e.f.deps.Router, e.route.ID, number)()
	e.decision, e.request.Attempt = d, number
	e.tried = append(e.tried, api.Attempt{Prompt: e.index, Number: number, Worker: d.Worker, OverlapBlocks: d.OverlapBlocks, Reported: api.CachedUnknown})

	body := engine.AppendEmbedRequest(nil, &e.request)
	err := attempt.Call(ctx, e.f.deps.Plane, e.f.cfg.StallTimeout, d, engine.MethodEmbed, body, func(frame []byte) error {
		return e.answer.Take(frame, number)
	})
	if e.answer.Vector != nil {
		return nil // regardless of the call's error
	}
	return err
}
