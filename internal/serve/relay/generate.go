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

// Generate implements engine.Engine.
func (e *relayed) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	attempt, err := first(req.Attempt)
	if err != nil {
		return err
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	g := &generation{e: e, id: e.r.ids.claim(req.ID), attempt: req.Attempt, sink: sink, request: *req}
	defer e.r.ids.release(g.id)
	g.request.Model = e.card.Name
	g.choices = make([]choice, req.Choices)
	for i := range g.choices {
		c := &g.choices[i]
		if len(req.Generated) > 0 {
			c.tokens = slices.Clone(req.Generated[i])
			c.sent = len(c.tokens)
		}
		c.done = len(req.Done) > 0 && req.Done[i]
	}
	return e.attempts(ctx, g, attempt)
}

var (
	// errSink is in the chain of the caller's own failure to take a delta.
	errSink = errors.New("relay: the caller took no more")
	// errStalled is the cause of a call's end when its worker was silent.
	errStalled = errors.New("relay: the worker sent nothing for too long")
)

// generation is one caller's attempt on its way through workers. It belongs to
// one goroutine.
type generation struct {
	e       *relayed
	id      string // that the router knows it by
	attempt uint32 // of the caller, on every delta
	sink    func(*engine.Delta) error
	sinkErr error

	request  engine.Request // of the attempt in progress
	choices  []choice
	accepted bool // the caller was told

	// Of the attempt in progress.
	prefilled bool // tokens have come
	delta     engine.Delta
	numerics  string // of its worker
	// computed are the numerics that the first token came from; "" before.
	computed string
}

// choice is what is known of one choice.
type choice struct {
	tokens []kv.Token // all that is out, what the caller had included
	sent   int        // how many of them were not generated here
	done   bool
}

func (g *generation) name() string { return g.id }

func (g *generation) moved() bool { return g.prefilled }

func (g *generation) migration() string {
	for i := range g.choices {
		if len(g.choices[i].tokens) > g.choices[i].sent {
			return "ongoing_request"
		}
	}
	return "new_request"
}

// choose asks the router for a worker. Once tokens are out, one of the same
// numerics is preferred: only it goes on bit for bit. Another is better than none.
func (g *generation) choose(ctx context.Context, attempt uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := g.e.r.model(g.e.card.Name)
	req := route.Request{
		ID: g.id, Attempt: attempt, Model: g.e.card.Name,
		Tokens: g.request.Prompt, Media: g.request.Media, Salt: g.request.Salt,
	}
	excluded := slices.Clone(failed)
	if g.request.Guide != nil {
		excluded = append(excluded, m.those(func(c *engine.Card) bool { return !c.Guided })...)
	}
	if g.computed != "" {
		strange := m.those(func(c *engine.Card) bool { return c.Numerics != g.computed })
		if len(strange) > 0 {
			req.Exclude = append(strange, excluded...)
			d, err := g.e.r.deps.Router.Route(ctx, &req)
			if err == nil || ctx.Err() != nil {
				return d, err
			}
		}
	}
	req.Exclude = excluded
	return g.e.r.route(ctx, &req)
}

// route asks the router; a model that it does not know, or no longer, has no
// worker.
func (r *Relay) route(ctx context.Context, req *route.Request) (route.Decision, error) {
	d, err := r.deps.Router.Route(ctx, req)
	if err != nil && fault.Of(err) == fault.NotFound {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}

// try makes one attempt. It returns nil when every choice is done.
func (g *generation) try(ctx context.Context, attempt uint32, d route.Decision) error {
	defer g.e.r.deps.Router.Free(g.id, attempt)
	g.prefilled = false
	g.numerics = g.e.r.model(g.e.card.Name).numerics(d.Worker.ID)
	g.request.Attempt = attempt
	g.resume()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The timer runs only while the worker is waited for, never while the caller is.
	limit := g.e.r.cfg.StallTimeout
	stall := time.AfterFunc(limit, func() { cancel(errStalled) })
	defer stall.Stop()
	body := engine.AppendRequest(nil, &g.request)
	err := g.e.r.deps.Plane.Call(ctx, d.Addr, engine.MethodGenerate, body, func(frame []byte) error {
		stall.Stop()
		defer stall.Reset(limit)
		return g.take(frame)
	})
	switch {
	case g.sinkErr != nil:
		return g.sinkErr
	case g.complete():
		return nil // whatever became of the call, the answer is complete
	case errors.Is(context.Cause(ctx), errStalled):
		return fault.New(fault.Unavailable, "worker %d sent nothing for %v", d.Worker.ID, limit)
	case err == nil:
		return fault.New(fault.Unavailable, "worker %d ended its answer early", d.Worker.ID)
	}
	return err
}

// resume puts what is out already into the attempt's request.
func (g *generation) resume() {
	out := false
	for i := range g.choices {
		out = out || len(g.choices[i].tokens) > 0 || g.choices[i].done
	}
	if !out {
		return
	}
	g.request.Generated, g.request.Done = make([][]kv.Token, len(g.choices)), make([]bool, len(g.choices))
	for i := range g.choices {
		g.request.Generated[i], g.request.Done[i] = g.choices[i].tokens, g.choices[i].done
	}
}

func (g *generation) complete() bool {
	return g.accepted && !slices.ContainsFunc(g.choices, func(c choice) bool { return !c.done })
}

// take handles one frame of the attempt in progress.
func (g *generation) take(frame []byte) error {
	d := &g.delta
	if err := engine.DecodeDelta(frame, d); err != nil {
		return broken("a frame that cannot be read", err)
	}
	if d.Attempt != g.request.Attempt {
		return nil // a late answer
	}
	if !g.accepted {
		g.accepted = true
		if err := g.pass(&engine.Delta{Accepted: true}); err != nil {
			return err
		}
	}
	if d.Accepted {
		return nil
	}
	if d.Choice < 0 || d.Choice >= len(g.choices) || g.choices[d.Choice].done {
		return broken("tokens of a choice that there is not, or no longer", nil)
	}
	return g.output(d)
}

// output passes on what the caller has not got yet.
func (g *generation) output(d *engine.Delta) error {
	c := &g.choices[d.Choice]
	if d.Pos < 0 || d.Pos > len(c.tokens) {
		return broken("tokens with a gap before them", nil)
	}
	if g.request.Logprobs >= 0 && len(d.Logprobs) != len(d.Tokens) {
		return broken("tokens without log-probabilities", nil)
	}
	if !g.prefilled && len(d.Tokens) > 0 {
		g.prefilled = true
		g.e.r.deps.Router.Prefilled(g.id, g.request.Attempt)
	}
	old := min(len(c.tokens)-d.Pos, len(d.Tokens))
	d.Pos, d.Tokens = d.Pos+old, d.Tokens[old:]
	if len(d.Logprobs) > 0 {
		d.Logprobs = d.Logprobs[old:]
	}
	if len(c.tokens) > c.sent {
		d.Cached = 0 // the caller was told with the first tokens
	}
	if len(d.Tokens) == 0 && d.Finish == engine.NotFinished {
		return nil
	}
	if len(d.Tokens) > 0 && g.computed == "" {
		g.computed = g.numerics
	}
	c.tokens = append(c.tokens, d.Tokens...)
	c.done = d.Finish != engine.NotFinished
	return g.pass(d)
}

// pass hands a delta to the caller, under the caller's number.
func (g *generation) pass(d *engine.Delta) error {
	d.Attempt = g.attempt
	if err := g.sink(d); err != nil {
		g.sinkErr = err
		return errSink
	}
	return nil
}

// broken is the error of a worker that does not keep to the engine contract: a
// defect, which another worker would only hide.
func broken(what string, cause error) error {
	return &fault.Error{Code: fault.Internal, Message: "the worker sent " + what + ": this is a defect of the server", Err: cause}
}
