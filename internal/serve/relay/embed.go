package relay

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/engine"
)

// embeddingEngine is the part of a proxy engine whose workers make embeddings.
type embedder struct{ relay *relayed }

// Embed implements engine.Embedder.
func (e embedder) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	number, err := first(req.Attempt)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := e.relay.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	t := &embedding{e: e.relay, id: e.relay.r.ids.claim(req.ID), request: *req}
	defer e.relay.r.ids.release(t.id)
	t.request.Model = e.relay.named(req.Model)
	if err := e.relay.attempts(ctx, t.id, t, number); err != nil {
		return nil, err
	}
	return t.answer.Vector, nil
}

// embeddingTask is a prompt to be embedded. One goroutine uses it.
type embedding struct {
	e       *relayed
	id      string // at the router
	request engine.EmbedRequest
	answer  engine.Embedding // its Vector is nil until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (t *embedding) Tokens() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *embedding) Kind() string { return attempt.NewRequest }

// ChooseWorker asks the router by load alone: engines compute all of an input, whatever they have
// cached.
func (t *embedding) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := t.e.r.model(t.e.card.Name)
	req := &route.Request{
		ID: t.id, Attempt: number, Model: t.request.Model, Tokens: t.request.Prompt,
		Override: route.Override{OverlapWeight: new(float64)},
	}
	unable := m.those(func(c *engine.Card) bool { return !c.Embeddings })
	return attempt.Route(ctx, t.e.r.decides, req, nil, append(unable, failed...))
}

// RunAttempt implements dispatch.Task.
func (t *embedding) Try(ctx context.Context, number uint32, d route.Decision) error {
	defer attempt.Hold(t.e.r.deps.Router, t.id, number)()
	t.request.Attempt = number
	body := engine.AppendEmbedRequest(nil, &t.request)
	err := attempt.Call(ctx, t.e.r.deps.Plane, t.e.r.cfg.StallTimeout, d, engine.MethodEmbed, body, func(frame []byte) error {
		return t.answer.Take(frame, number)
	})
	if t.answer.Vector != nil {
		return nil // regardless of the call's error
	}
	return err
}

// preprocessingEngine is the part of a proxy engine that makes prompts, itself or with its workers.
type preprocessor struct{ relay *relayed }

// Preprocess implements engine.Preprocessor.
func (p preprocessor) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	number, err := first(req.Attempt)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := p.relay.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.relay.looks(req) {
		return p.relay.look(ctx, req)
	}
	t := &preprocessing{e: p.relay, request: *req}
	t.request.Model = p.relay.card.Name
	if err := p.relay.attempts(ctx, t.request.ID, t, number); err != nil {
		return nil, err
	}
	t.answer.Attempt = req.Attempt
	return &t.answer, nil
}

// preprocessTask is a text or a conversation whose prompt a worker makes. One goroutine uses it.
type preprocessing struct {
	e       *relayed
	request engine.PreprocessRequest
	answer  engine.Preprocessed // its Attempt is 0 until it has arrived
}

// TokensDelivered implements dispatch.Task.
func (t *preprocessing) Tokens() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *preprocessing) Kind() string { return attempt.Preprocess }

// ChooseWorker picks capable workers round-robin: preprocessing is not counted as router load and
// depends on no cache.
func (t *preprocessing) Choose(_ context.Context, _ uint32, failed []kv.WorkerID) (route.Decision, error) {
	var able []worker
	for _, w := range t.e.r.model(t.e.card.Name).workers {
		if w.card.Preprocess && (w.card.Features || !t.request.Features) && !slices.Contains(failed, w.id) {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return route.Decision{}, fault.New(fault.Unavailable, "no worker of the model '%s' can make a prompt now: try again later", t.e.card.Name)
	}
	w := able[(t.e.turn.Add(1)-1)%uint64(len(able))]
	return route.Decision{Worker: kv.Worker{ID: w.id}, Addr: w.addr}, nil
}

// RunAttempt implements dispatch.Task.
func (t *preprocessing) Try(ctx context.Context, number uint32, d route.Decision) error {
	t.request.Attempt, t.answer = number, engine.Preprocessed{}
	body := engine.AppendPreprocessRequest(nil, &t.request)
	err := attempt.Call(ctx, t.e.r.deps.Plane, t.e.r.cfg.PreprocessTimeout, d, engine.MethodPreprocess, body, func(frame []byte) error {
		return t.answer.Take(frame, number, t.e.card.VocabSize)
	})
	if t.answer.Attempt != 0 {
		return nil // regardless of the call's error
	}
	return err
}
