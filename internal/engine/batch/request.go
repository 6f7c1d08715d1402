package batch

import (
	"context"
	"slices"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// request is one call of Generate or Prefill inside the engine.
type request struct {
	req *engine.Request // the caller's, unchanged until Generate returns
	out *outbox
	// released is closed when the engine holds nothing for the request any more.
	released chan struct{}

	// open are the choices that go on, in order. The first of them leads: it
	// computes the prompt, and the others start when their share of it is cached.
	// Of the loop once it has taken the request.
	open   []*choice
	led    bool // the others were started
	cached int  // prompt tokens that the leader found in the cache
	over   bool // nothing of it is in the scheduler, or will be
	// reuse is off for a call of Prefill. Such a request has one choice, which ends
	// when its prompt is computed.
	reuse paged.Switch
}

// choice is one sequence of a request. It is of the loop.
type choice struct {
	request *request
	index   int
	id      paged.SeqID
	added   bool // the scheduler has it
	state   State
	stops   []kv.Token // that end it
	output  int        // tokens so far
	most    int        // output tokens
	counted bool       // its cached count was delivered
}

// newRequest returns req, which is well formed, as the engine keeps it, or the
// computer's refusal.
func (e *Engine) newRequest(ctx context.Context, req *engine.Request) (*request, error) {
	stops := req.Stop.Tokens
	if !req.Stop.IgnoreEOS {
		stops = slices.Concat(stops, e.cfg.Card.EOS)
	}
	states, err := e.computer.Begin(ctx, req, stops)
	if err != nil {
		return nil, err
	}
	r := &request{req: req, out: newOutbox(req.Attempt, req.Choices, req.Generated), released: make(chan struct{})}
	most := min(req.Stop.MaxTokens, e.cfg.Card.ContextLength-len(req.Prompt))
	for i := range req.Choices {
		if req.Done != nil && req.Done[i] {
			continue
		}
		before := generatedBy(req, i)
		c := &choice{request: r, index: i, state: states[i], stops: stops, output: len(before), most: most}
		if finish := c.finishBefore(before); finish != engine.NotFinished {
			r.out.finish(i, finish)
			continue
		}
		r.open = append(r.open, c)
	}
	return r, nil
}

// newPrefill returns req as the engine keeps it: a generation that ends before its
// first token.
func newPrefill(req *engine.EmbedRequest, state State) *request {
	r := &request{
		req:      &engine.Request{ID: req.ID, Attempt: req.Attempt, Model: req.Model, Prompt: req.Prompt, Choices: 1, Logprobs: -1},
		out:      newOutbox(req.Attempt, 1, nil),
		released: make(chan struct{}),
		reuse:    paged.Off,
	}
	r.open = []*choice{{request: r, state: state}}
	return r
}

// generatedBy returns what earlier attempts delivered of a choice.
func generatedBy(req *engine.Request, choice int) []kv.Token {
	if req.Generated == nil {
		return nil
	}
	return req.Generated[choice]
}

// finishBefore returns how a choice ended that earlier attempts had ended: the
// caller has its last token, but does not know that it is the last.
func (c *choice) finishBefore(generated []kv.Token) engine.Finish {
	if len(generated) == 0 {
		return engine.NotFinished
	}
	return c.finish(generated[len(generated)-1])
}

// finish returns how a choice ends whose last output token is this, if it does.
func (c *choice) finish(token kv.Token) engine.Finish {
	switch {
	case slices.Contains(c.stops, token): // never drawn before MinTokens
		return engine.FinishStop
	case c.state.Over():
		return engine.FinishStop
	case c.output >= c.most:
		return engine.FinishLength
	}
	return engine.NotFinished
}

// tokens returns the sequence so far: the prompt and what was generated before.
func (c *choice) tokens() []kv.Token {
	before := generatedBy(c.request.req, c.index)
	if len(before) == 0 {
		return c.request.req.Prompt
	}
	return slices.Concat(c.request.req.Prompt, before)
}
