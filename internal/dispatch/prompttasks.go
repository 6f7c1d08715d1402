package dispatch

import (
	"context"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// Embedding is a prompt to be embedded. One goroutine uses it.
type Embedding struct {
	RoutedTask
	Request   engine.EmbedRequest // of the current attempt
	Decisions []route.Decision    // of each attempt
	Answer    engine.Embedding    // its Vector is nil until it has arrived
}

// Embed makes attempts, numbered from first, until the vector has arrived. The choice of a worker is by load
// alone: engines compute all of an input, whatever they have cached.
func (r *Dispatcher) Embed(ctx context.Context, e *Embedding, first uint32) error {
	e.Route.Tokens, e.Route.Override.OverlapWeight = e.Request.Prompt, new(float64)
	return r.runRouted(ctx, e, &e.RoutedTask, first)
}

// ChooseWorker implements Task.
func (e *Embedding) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	return e.routeTask(ctx, number, failed, nil, func(c *engine.Card) bool { return !c.Embeddings })
}

// RunAttempt makes one attempt. It holds its reservation until the vector has arrived: an input is all
// prefill.
func (e *Embedding) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	defer e.startAttempt(number, d).Free()
	e.Decisions, e.Request.Attempt = append(e.Decisions, d), number
	err := e.callRouted(ctx, engine.MethodEmbed, engine.AppendEmbedRequest(nil, &e.Request), func(frame []byte) error {
		return e.Answer.TakeFrame(frame, number)
	})
	if e.Answer.Vector != nil {
		return nil // regardless of the call's error
	}
	return err
}

// resolveTimeout is how long a worker may take to resolve the media of a conversation, for which it has its
// own bound, before another one is asked.
const resolveTimeout = time.Minute

// Preprocessing is a text or a conversation whose prompt a worker makes. One goroutine uses it.
type Preprocessing struct {
	Request engine.PreprocessRequest // of the current attempt
	// Workers returns the model's latest workers; Vocabulary is the model's.
	Workers    func() *catalog.Model
	Vocabulary int
	// HoldMemory, if not nil, is called before a frame of n bytes is read; an error ends the request.
	HoldMemory func(n int) error
	// StartAttempt, if not nil, is called when what has arrived is dropped.
	StartAttempt func()

	Answer engine.Preprocessed // its Attempt is 0 until it has arrived

	dispatcher *Dispatcher
}

// Preprocess makes attempts, numbered from first, until the prompt has arrived.
func (r *Dispatcher) Preprocess(ctx context.Context, p *Preprocessing, first uint32) error {
	p.dispatcher = r
	return r.runTask(ctx, p, p.Request.ID, first, false)
}

// TokensDelivered implements Task.
func (p *Preprocessing) TokensDelivered() int { return 0 }

// MoveKind implements Task.
func (p *Preprocessing) MoveKind() string { return MovePreprocess }

// canPreprocess reports whether a worker takes the request.
func (p *Preprocessing) canPreprocess(c *engine.Card) bool {
	if p.Request.ResolveMedia {
		return c.ResolvesMedia
	}
	return c.Preprocess && (c.Features || !p.Request.Features)
}

// ChooseWorker picks capable workers round-robin: preprocessing is not counted as router load and depends on
// no cache.
func (p *Preprocessing) ChooseWorker(_ context.Context, _ uint32, failed []kv.WorkerID) (route.Decision, error) {
	var able []*catalog.Worker
	for _, w := range p.Workers().Workers {
		if p.canPreprocess(w.Card) && !slices.Contains(failed, w.ID) {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return route.Decision{}, fault.New(fault.Unavailable, "no worker%s of the model '%s' that makes prompts is left: try again later", p.dispatcher.Place, p.Request.Model)
	}
	w := able[(p.dispatcher.nextWorker.Add(1)-1)%uint64(len(able))]
	return route.Decision{Worker: kv.Worker{ID: w.ID}, Addr: w.Addr}, nil
}

// RunAttempt makes one attempt. It reserves nothing.
func (p *Preprocessing) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	r := p.dispatcher
	p.Request.Attempt, p.Answer = number, engine.Preprocessed{}
	if p.StartAttempt != nil {
		p.StartAttempt()
	}
	limit := r.PreprocessTimeout
	if p.Request.ResolveMedia {
		limit = max(limit, resolveTimeout)
	}
	err := CallWorker(ctx, r.Plane, limit, d, engine.MethodPreprocess, engine.AppendPreprocessRequest(nil, &p.Request), func(frame []byte) error {
		if p.HoldMemory != nil {
			if err := p.HoldMemory(len(frame)); err != nil {
				return err
			}
		}
		return p.Answer.TakeFrame(frame, number, p.Vocabulary)
	})
	if p.Answer.Attempt != 0 {
		return nil // regardless of the call's error
	}
	return err
}
