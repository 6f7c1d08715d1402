package routerproxy

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// embeddingEngine is the part of a proxy engine whose workers make embeddings.
type embeddingEngine struct{ engine *proxyEngine }

// Embed implements engine.Embedder.
func (e embeddingEngine) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	number, err := firstAttempt(req.Attempt)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := e.engine.enterRequest(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	t := &embeddingTask{engine: e.engine, id: e.engine.proxy.ids.claimID(req.ID), request: *req}
	defer e.engine.proxy.ids.releaseID(t.id)
	t.request.Model = e.engine.modelName(req.Model)
	if err := e.engine.runAttempts(ctx, t.id, t, number); err != nil {
		return nil, err
	}
	return t.answer.Vector, nil
}

// embeddingTask is a prompt to be embedded. One goroutine uses it.
type embeddingTask struct {
	engine  *proxyEngine
	id      string // at the router
	request engine.EmbedRequest
	answer  engine.Embedding // its Vector is nil until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (t *embeddingTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *embeddingTask) MoveKind() string { return dispatch.MoveNewRequest }

// ChooseWorker asks the router by load alone: engines compute all of an input, whatever they have
// cached.
func (t *embeddingTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := t.engine.proxy.currentModel(t.engine.card.Name)
	req := &route.Request{
		ID: t.id, Attempt: number, Model: t.request.Model, Tokens: t.request.Prompt,
		Override: route.Override{OverlapWeight: new(float64)},
	}
	unable := m.WithoutEmbeddings()
	return dispatch.RouteAvoiding(ctx, t.engine.proxy.router, req, nil, append(unable, failed...))
}

// RunAttempt implements dispatch.Task.
func (t *embeddingTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	defer dispatch.HoldReservation(t.engine.proxy.deps.Router, t.id, number).Free()
	t.request.Attempt = number
	body := engine.AppendEmbedRequest(nil, &t.request)
	err := dispatch.CallWorker(ctx, t.engine.proxy.deps.Plane, t.engine.proxy.cfg.StallTimeout, d, engine.MethodEmbed, body, func(frame []byte) error {
		return t.answer.TakeFrame(frame, number)
	})
	if t.answer.Vector != nil {
		return nil // regardless of the call's error
	}
	return err
}

// preprocessingEngine is the part of a proxy engine that makes prompts, itself or with its workers.
type preprocessingEngine struct{ engine *proxyEngine }

// Preprocess implements engine.Preprocessor.
func (p preprocessingEngine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	number, err := firstAttempt(req.Attempt)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := p.engine.enterRequest(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.engine.preprocessesHere(req) {
		return p.engine.preprocessHere(ctx, req)
	}
	t := &preprocessTask{engine: p.engine, request: *req}
	t.request.Model = p.engine.card.Name
	if err := p.engine.runAttempts(ctx, t.request.ID, t, number); err != nil {
		return nil, err
	}
	t.answer.Attempt = req.Attempt
	return &t.answer, nil
}

// preprocessTask is a text or a conversation whose prompt a worker makes. One goroutine uses it.
type preprocessTask struct {
	engine  *proxyEngine
	request engine.PreprocessRequest
	answer  engine.Preprocessed // its Attempt is 0 until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (t *preprocessTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *preprocessTask) MoveKind() string { return dispatch.MovePreprocess }

// ChooseWorker picks capable workers round-robin: preprocessing is not counted as router load and
// depends on no cache.
func (t *preprocessTask) ChooseWorker(_ context.Context, _ uint32, failed []kv.WorkerID) (route.Decision, error) {
	var able []*catalog.Worker
	for _, w := range t.engine.proxy.currentModel(t.engine.card.Name).Workers {
		if w.Card.Preprocess && (w.Card.Features || !t.request.Features) && !slices.Contains(failed, w.ID) {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return route.Decision{}, fault.New(fault.Unavailable, "no worker of the model '%s' can make a prompt now: try again later", t.engine.card.Name)
	}
	w := able[(t.engine.nextWorker.Add(1)-1)%uint64(len(able))]
	return route.Decision{Worker: kv.Worker{ID: w.ID}, Addr: w.Addr}, nil
}

// RunAttempt implements dispatch.Task.
func (t *preprocessTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	t.request.Attempt, t.answer = number, engine.Preprocessed{}
	body := engine.AppendPreprocessRequest(nil, &t.request)
	err := dispatch.CallWorker(ctx, t.engine.proxy.deps.Plane, t.engine.proxy.cfg.PreprocessTimeout, d, engine.MethodPreprocess, body, func(frame []byte) error {
		return t.answer.TakeFrame(frame, number, t.engine.card.VocabSize)
	})
	if t.answer.Attempt != 0 {
		return nil // regardless of the call's error
	}
	return err
}
