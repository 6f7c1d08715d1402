package tiny

import (
	"slices"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/sample"
)

// request is one call of Generate or Embed inside the engine.
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
	// sum is that of the last hidden states, of a call of Embed; nil for Generate.
	// Such a request has one choice, which ends when its prompt is computed.
	sum []float64
}

// choice is one sequence of a request. It is of the loop.
type choice struct {
	request *request
	index   int
	id      paged.SeqID
	added   bool // the scheduler has it
	sampler *sample.Choice
	stops   []kv.Token // that end it
	most    int        // output tokens
	counted bool       // its cached count was delivered
	guide   *follower  // nil if the text is free
}

// newRequest returns req as the engine keeps it. req must be valid, but for its
// guide: the error is Invalid if that cannot be followed.
func (e *Engine) newRequest(req *engine.Request) (*request, error) {
	card := &e.card
	rules, err := e.guides.open(req.Guide)
	if err != nil {
		return nil, err
	}
	stops := req.Stop.Tokens
	if !req.Stop.IgnoreEOS {
		stops = slices.Concat(stops, card.EOS)
	}
	most := min(req.Stop.MaxTokens, card.ContextLength-len(req.Prompt))

	generated := make([]int, req.Choices)
	for i := range generated {
		generated[i] = len(generatedBy(req, i))
	}
	r := &request{req: req, out: newOutbox(req.Attempt, generated), released: make(chan struct{})}
	for i := range req.Choices {
		if req.Done != nil && req.Done[i] {
			continue
		}
		c := &choice{request: r, index: i, stops: stops, most: most}
		before := generatedBy(req, i)
		if rules != nil {
			c.guide = newFollower(rules, stops, e.drawable(stops), req.Stop.MinTokens)
			if err := c.guide.resume(before); err != nil {
				return nil, err
			}
		}
		if finish := c.finishBefore(before); finish != engine.NotFinished {
			r.out.finish(i, finish)
			continue
		}
		c.sampler = sample.NewChoice(sample.Params{
			Sampling:  req.Sampling,
			Choice:    i,
			Stops:     stops,
			MinTokens: req.Stop.MinTokens,
			Logprobs:  req.Logprobs,
		}, req.Prompt, before)
		r.open = append(r.open, c)
	}
	return r, nil
}

// drawable returns those of tokens that the model may draw.
func (e *Engine) drawable(tokens []kv.Token) []kv.Token {
	return slices.DeleteFunc(slices.Clone(tokens), func(t kv.Token) bool {
		return int(t) >= e.card.VocabSize || slices.Contains(e.mask, t)
	})
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
	return c.finish(generated[len(generated)-1], len(generated))
}

// finish returns how a choice ends whose last output token is the n-th, if it
// does.
func (c *choice) finish(token kv.Token, n int) engine.Finish {
	switch {
	case slices.Contains(c.stops, token): // never drawn before MinTokens
		return engine.FinishStop
	case c.guide != nil && c.guide.over():
		return engine.FinishStop
	case n >= c.most:
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
