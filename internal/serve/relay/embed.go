package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// embedder is the part of a relayed engine whose workers make embeddings.
type embedder struct{ relay *relayed }

// Embed implements engine.Embedder.
func (e embedder) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	attempt, err := first(req.Attempt)
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
	t.request.Model = e.relay.card.Name
	if err := e.relay.attempts(ctx, t, attempt); err != nil {
		return nil, err
	}
	return t.vector, nil
}

// embedding is a prompt on its way to its vector. It belongs to one goroutine.
type embedding struct {
	e       *relayed
	id      string // that the router knows it by
	request engine.EmbedRequest
	vector  []float32 // nil until it has come
}

func (t *embedding) name() string { return t.id }

func (t *embedding) moved() bool { return false }

func (t *embedding) migration() string { return "new_request" }

// choose asks the router by load alone: engines compute all of an input, whatever
// they have cached.
func (t *embedding) choose(ctx context.Context, attempt uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := t.e.r.model(t.e.card.Name)
	return t.e.r.route(ctx, &route.Request{
		ID: t.id, Attempt: attempt, Model: t.e.card.Name, Tokens: t.request.Prompt,
		Override: route.Override{OverlapWeight: new(float64)},
		Exclude:  append(m.those(func(c *engine.Card) bool { return !c.Embeddings }), failed...),
	})
}

func (t *embedding) try(ctx context.Context, attempt uint32, d route.Decision) error {
	defer t.e.r.deps.Router.Free(t.id, attempt)
	t.request.Attempt = attempt
	body := engine.AppendEmbedRequest(nil, &t.request)
	err := t.e.r.answer(ctx, t.e.r.cfg.StallTimeout, d, engine.MethodEmbed, body, func(frame []byte) error {
		got := new(engine.Embedding)
		if err := engine.DecodeEmbedding(frame, got); err != nil {
			return broken("a frame that cannot be read", err)
		}
		if got.Attempt == attempt {
			t.vector = got.Vector
		}
		return nil
	})
	if t.vector != nil {
		return nil
	}
	return err
}

// preprocessor is the part of a relayed engine whose workers make prompts.
type preprocessor struct{ relay *relayed }

// Preprocess implements engine.Preprocessor.
func (p preprocessor) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	attempt, err := first(req.Attempt)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := p.relay.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	t := &preprocessing{e: p.relay, request: *req}
	t.request.Model = p.relay.card.Name
	if err := p.relay.attempts(ctx, t, attempt); err != nil {
		return nil, err
	}
	t.made.Attempt = req.Attempt
	return t.made, nil
}

// preprocessing is a text or a conversation on its way to its tokens. It belongs
// to one goroutine.
type preprocessing struct {
	e       *relayed
	request engine.PreprocessRequest
	made    *engine.Preprocessed // nil until it has come
}

func (t *preprocessing) name() string { return t.request.ID }

func (t *preprocessing) moved() bool { return false }

func (t *preprocessing) migration() string { return "preprocess" }

// choose takes the workers that can by turns: what they are asked for is none of
// the load that the router knows, and depends on no cache.
func (t *preprocessing) choose(_ context.Context, _ uint32, failed []kv.WorkerID) (route.Decision, error) {
	var able []worker
	for _, w := range t.e.r.model(t.e.card.Name).workers {
		if w.card.Preprocess && !slices.Contains(failed, w.id) {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return route.Decision{}, fault.New(fault.Unavailable, "no worker of the model '%s' can make a prompt now: try again later", t.e.card.Name)
	}
	w := able[(t.e.turn.Add(1)-1)%uint64(len(able))]
	return route.Decision{Worker: kv.Worker{ID: w.id}, Addr: w.addr}, nil
}

func (t *preprocessing) try(ctx context.Context, attempt uint32, d route.Decision) error {
	t.request.Attempt = attempt
	body := engine.AppendPreprocessRequest(nil, &t.request)
	err := t.e.r.answer(ctx, t.e.r.cfg.PreprocessTimeout, d, engine.MethodPreprocess, body, func(frame []byte) error {
		got := new(engine.Preprocessed)
		if err := engine.DecodePreprocessed(frame, got); err != nil {
			return broken("a frame that cannot be read", err)
		}
		if got.Attempt == attempt {
			t.made = got
		}
		return nil
	})
	if t.made != nil {
		return nil
	}
	return err
}

// answer makes a call that has one frame for an answer, within limit.
func (r *Relay) answer(ctx context.Context, limit time.Duration, d route.Decision, method string, body []byte, recv func([]byte) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errStalled)
	defer cancel()
	err := r.deps.Plane.Call(ctx, d.Addr, method, body, recv)
	switch {
	case errors.Is(context.Cause(ctx), errStalled):
		return fault.New(fault.Unavailable, "worker %d gave no answer within %v", d.Worker.ID, limit)
	case err == nil:
		return fault.New(fault.Unavailable, "worker %d ended its answer early", d.Worker.ID)
	}
	return err
}
