package batch

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// request is one call of Generate or Prefill inside the engine.
type request struct {
	req *engine.Request // the caller's; it must not change until Generate returns
	out *outbox
	// states are the computer's, of all choices. Only the caller of Generate uses the slice.
	states []State
	// released is closed when the engine holds nothing of the request.
	released chan struct{}

	// open are the unfinished choices, in order. The first one leads: it computes the prompt, and the others
	// start when the common blocks are cached. The loop owns it after takeInbox.
	open             []*choiceSequence
	followersStarted bool // the others were started
	cached           int  // prompt tokens that the first choice found in the cache, or an engine which computed it
	accepted         bool
	finished         bool // the scheduler has none of its choices
	// reuse is off for a call of Prefill. Such a request has one choice, which ends when its prompt is
	// computed.
	reuse paged.Switch
	held  chan *heldPrompt // gets the blocks of a call of PrefillBlocks, once; else nil
	imp   *blockImport     // nil if no tokens are imported
	// preempted gets a choice which was preempted, whose blocks may be in the pool; nil without a pool.
	preempted chan preemptedChoice
}

// choiceSequence is one sequence of a request. The loop owns it.
type choiceSequence struct {
	request   *request
	index     int
	id        paged.SeqID
	scheduled bool // the scheduler has it
	// unfinished are the ranges with which it was added, encoded ones are zero since then; nil without any. Ranges
	// which end after its first ready tokens are needed.
	unfinished      []paged.TokenRange
	ready           int
	reserved        bool // it has the blocks for all its tokens; unknown without unfinished ranges and an import
	transferEnd     int  // tokens up to there are to be imported; 0 if none are, or not any more
	state           State
	stops           []kv.Token // tokens that end it
	output          int        // tokens so far
	maxOutput       int        // limit of output
	computed        int        // tokens computed for it before its first token was delivered
	cachedDelivered bool       // its cached count was delivered
}

// newRequest returns the engine's form of req, which is valid, or the computer's refusal.
func (e *Engine) newRequest(ctx context.Context, req *engine.Request) (*request, error) {
	stops := req.Stop.Tokens
	if !req.Stop.IgnoreEOS {
		stops = slices.Concat(stops, e.cfg.Card.EOS)
	}
	states, err := e.computer.StartRequest(ctx, req, stops)
	if err != nil {
		return nil, err
	}
	r := &request{req: req, states: states, out: newOutbox(req.Attempt, req.Choices, req.Generated), released: make(chan struct{})}
	most := min(req.Stop.MaxTokens, e.cfg.Card.ContextLength-len(req.Prompt))
	for i := range req.Choices {
		if req.Done != nil && req.Done[i] {
			continue
		}
		before := deliveredTokens(req, i)
		c := &choiceSequence{request: r, index: i, state: states[i], stops: stops, output: len(before), maxOutput: most}
		if finish := c.earlierFinish(before); finish != engine.NotFinished {
			r.out.finishChoice(i, finish)
			continue
		}
		r.open = append(r.open, c)
	}
	return r, nil
}

// releaseStates releases what the computer holds for a request of which the loop has nothing.
func (r *request) releaseStates() {
	for _, s := range r.states {
		if held, ok := s.(HeldState); ok {
			held.Release()
		}
	}
}

// newPrefill returns the engine's form of req: a generation that ends before its first token.
func newPrefill(req *engine.EmbedRequest, state State) *request {
	r := &request{
		req:      &engine.Request{ID: req.ID, Attempt: req.Attempt, Model: req.Model, Prompt: req.Prompt, Choices: 1, Logprobs: -1},
		out:      newOutbox(req.Attempt, 1, nil),
		released: make(chan struct{}),
		reuse:    paged.Off,
	}
	r.open = []*choiceSequence{{request: r, state: state}}
	return r
}

// deliveredTokens returns what earlier attempts delivered of a choice.
func deliveredTokens(req *engine.Request, choice int) []kv.Token {
	if req.Generated == nil {
		return nil
	}
	return req.Generated[choice]
}

// earlierFinish returns how a choice ended in earlier attempts: the caller has its last token, but does not
// know that it is the last.
func (c *choiceSequence) earlierFinish(generated []kv.Token) engine.Finish {
	if len(generated) == 0 {
		return engine.NotFinished
	}
	return c.finishAfter(generated[len(generated)-1])
}

// finishAfter returns how a choice ends if token is its last output token, NotFinished if it does not.
func (c *choiceSequence) finishAfter(token kv.Token) engine.Finish {
	switch {
	case slices.Contains(c.stops, token): // never drawn before MinTokens
		return engine.FinishStop
	case c.state.IsFinished():
		return engine.FinishStop
	case c.output >= c.maxOutput:
		return engine.FinishLength
	}
	return engine.NotFinished
}

// allTokens returns the sequence so far: the prompt and the earlier output.
func (c *choiceSequence) allTokens() []kv.Token {
	before := deliveredTokens(c.request.req, c.index)
	if len(before) == 0 {
		return c.request.req.Prompt
	}
	return slices.Concat(c.request.req.Prompt, before)
}

// sequence returns the sequence so far, without an ID and as one without media which are encoded.
func (c *choiceSequence) sequence() paged.Sequence {
	req := c.request.req
	return paged.Sequence{Salt: req.Salt, Tokens: c.allTokens(), Prompt: len(req.Prompt), Media: req.Media, Reuse: c.request.reuse}
}

// checkRequest returns why req can never be served, whatever the Computer, or nil.
func (e *Engine) checkRequest(req *engine.Request) error {
	switch most := e.cfg.MaxSeqs + e.cfg.MaxWaiting; {
	case req.Choices < 1 || req.Choices > most:
		return fault.InvalidParam("n", "n is %d; it must be between 1 and %d", req.Choices, most)
	}
	return e.cfg.Card.CheckRequest(req)
}

// checkInput returns why a prompt cannot be prefilled, or nil. The scheduler reserves one token of output,
// even if there is none.
func (e *Engine) checkInput(prompt []kv.Token) error {
	card := &e.cfg.Card
	switch n := len(prompt); {
	case n == 0:
		return fault.InvalidParam("input", "the input is empty; send at least one token")
	case n >= card.ContextLength:
		return fault.InvalidParam("input", "the input has %d tokens, and this model takes at most %d; shorten it", n, card.ContextLength-1)
	case !e.allInVocabulary(prompt):
		return fault.InvalidParam("input", "the input has a token outside the vocabulary of %d; was it made with this model's tokenizer?", card.VocabSize)
	}
	return nil
}

func (e *Engine) allInVocabulary(tokens []kv.Token) bool {
	return !slices.ContainsFunc(tokens, func(t kv.Token) bool { return int(t) >= e.cfg.Card.VocabSize })
}

// MaxLogprobs is the largest number of alternatives that a request may ask for.
const MaxLogprobs = engine.MaxLogprobs

// ValidateSampling is [engine.ValidateSampling]. Requests passed to [Computer.StartRequest] satisfy it.
func ValidateSampling(s *engine.Sampling, logprobs, size int) error {
	return engine.ValidateSampling(s, logprobs, size)
}
