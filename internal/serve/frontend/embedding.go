package frontend

import (
	"context"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// embeddingTask is one input of an embeddings request, dispatched to workers. One goroutine uses it.
type embeddingTask struct {
	f       *Frontend
	model   *servedModel // at the request's arrival; each attempt looks up the current one
	index   int          // of the input
	request engine.EmbedRequest
	route   route.Request

	decision route.Decision // of the last attempt
	attempts []api.Attempt
	answer   engine.Embedding // its Vector is nil until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (e *embeddingTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (e *embeddingTask) MoveKind() string { return dispatch.MoveNewRequest }

// ChooseWorker implements dispatch.Task.
func (e *embeddingTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := e.f.catalog.currentModel(e.model)
	req := e.route
	req.Attempt = number
	return dispatch.RouteAvoiding(ctx, e.f.router, &req, nil, slices.Concat(m.Unfit, m.WithoutEmbeddings(), failed))
}

// RunAttempt makes one attempt. It holds its reservation until the vector has arrived: an input is all
// prefill.
func (e *embeddingTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	defer dispatch.HoldReservation(e.f.deps.Router, e.route.ID, number).Free()
	e.decision, e.request.Attempt = d, number
	e.attempts = append(e.attempts, api.Attempt{Prompt: e.index, Number: number, Worker: d.Worker, OverlapBlocks: d.OverlapBlocks, Reported: api.CachedUnknown})

	body := engine.AppendEmbedRequest(nil, &e.request)
	err := dispatch.CallWorker(ctx, e.f.deps.Plane, e.f.cfg.StallTimeout, d, engine.MethodEmbed, body, func(frame []byte) error {
		return e.answer.TakeFrame(frame, number)
	})
	if e.answer.Vector != nil {
		return nil // regardless of the call's error
	}
	return err
}
