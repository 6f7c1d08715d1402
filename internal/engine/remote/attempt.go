package remote

import (
	"math"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/shadow"
	"penstock/core/splitmix"
	"penstock/internal/engine"
)

// attempt turns the events of a request's calls into deltas.
type attempt struct {
	b       *Base
	req     *engine.Request
	sink    func(*engine.Delta) error
	flight  *flight
	begun   bool // the engine accepted the request
	probe   bool // a probe request: its reports are not recorded
	stops   []kv.Token
	choices []choice
	open    int          // choices that are not finished
	delta   engine.Delta // scratch
	calls   []*Part
	known   int // cached tokens as reported by the engine, or CachedUnknown
	beside  int // the same as reported by another call than the first
}

// choiceState is the state of one choice.
type choice struct {
	have    int // tokens of output, Generated included
	most    int // limit of outputLen
	said    bool
	unsaid  bool // the first tokens were delivered with Cached unknown
	over    engine.Finish
	ended   bool // the delta with its Finish was delivered
	holding bool // tokens and logprobs are its last, held back
	// tokens and probs are buffered for the next delta: the tokens of one read from the socket become one
	// delta, since delivering a delta costs more than reading it.
	tokens []kv.Token
	probs  []engine.Logprob
	// part is the call whose first choice this is: the engine caches its output.
	part *Part
}

func newAttempt(b *Base, req *engine.Request, sink func(*engine.Delta) error) *attempt {
	a := &attempt{b: b, req: req, sink: sink, choices: make([]choice, req.Choices), known: engine.CachedUnknown, beside: engine.CachedUnknown, stops: req.Stop.Tokens}
	if !req.Stop.IgnoreEOS {
		a.stops = slices.Concat(req.Stop.Tokens, b.cfg.Card.EOS)
	}
	most := min(req.Stop.MaxTokens, b.cfg.Card.ContextLength-len(req.Prompt))
	for i := range a.choices {
		c := &a.choices[i]
		c.most, c.have = most, len(a.generated(i))
		switch {
		case req.Done != nil && req.Done[i]:
			c.ended = true
		case c.have > 0 && slices.Contains(a.stops, req.Generated[i][c.have-1]):
			c.over = engine.FinishStop
		case c.have >= c.most:
			c.over = engine.FinishLength
		default:
			a.open++
		}
	}
	return a
}

// deliveredTokens returns the tokens of a choice that earlier attempts delivered.
func (a *attempt) generated(i int) []kv.Token {
	if a.req.Generated == nil {
		return nil
	}
	return a.req.Generated[i]
}

// SubRequest is what one call to an engine asks for: one choice, or several that start at the same position.
type Part struct {
	Request *engine.Request
	// Choices are the requested choices: the engine's index i is Choices[i] of the request.
	Choices []int
	// Generated are the output tokens to append to the prompt.
	Generated []kv.Token
	// MaxTokens and MinTokens are the rest of the request's limits.
	MaxTokens, MinTokens int
	// Seed is the seed for the tokens drawn now, below 2^63: that of the request, changed by the choice's
	// position, so that draws are not repeated.
	Seed uint64
	ID   string // of the call

	// Tokens, Logprobs and Top are memory into which a dialect decodes events.
	Tokens   []kv.Token
	Logprobs []engine.Logprob
	Top      []engine.TokenLogprob
	// Template lets a dialect recognize events which are like the last one.
	Alike Alike
	// Slot is the slot in which the engine is predicted to serve the call, -1 if unknown. Mixed says that the
	// slot may hold a sequence of another salt, so that the call must reuse nothing.
	Slot  int
	Mixed bool
	// Hole is the argument of the last ContinueWith; 0 in the first call.
	Hole int

	a        *attempt
	from     int  // output tokens before this call
	counted  bool // the cached tokens were compared
	again    bool // another call follows
	idleHole int  // Hole of an earlier call that gave no token, else -1
	last     kv.Token
	hasLast  bool
	kept     []kv.Token // output so far, if another call may follow
	ticket   shadow.Ticket
	mark     uint64 // of the event table, from before the call was sent
	guess    int    // prompt tokens that the engine should have cached, or noExpectation
}

// noExpectation is the expectedCached of a call that cannot be predicted.
const noGuess = -1

// splitIntoParts divides the unfinished choices into calls.
func (a *attempt) parts(how Choices) []*Part {
	a.calls = a.divide(how)
	return a.calls
}

func (a *attempt) divide(how Choices) []*Part {
	var open []int
	together := how == Together || len(a.choices) == 1
	for i := range a.choices {
		c := &a.choices[i]
		if !c.ended && c.over == engine.NotFinished {
			open = append(open, i)
		}
		together = together && c.have == 0
	}
	if len(open) == 0 {
		return nil
	}
	// The engine numbers the choices of one call from 0: its draws must equal the draws of a call for all.
	if together && (len(open) == len(a.choices) || len(open) == 1 && open[0] == 0) {
		return []*Part{a.part(open)}
	}
	parts := make([]*Part, len(open))
	for j, i := range open {
		parts[j] = a.part([]int{i})
	}
	return parts
}

func (a *attempt) part(choices []int) *Part {
	first := &a.choices[choices[0]]
	left := first.most - first.have
	return &Part{
		Request: a.req, Choices: choices, Generated: a.generated(choices[0]), a: a, Slot: -1, from: first.have, idleHole: -1,
		MaxTokens: left, MinTokens: min(max(a.req.Stop.MinTokens-first.have, 0), left),
		Seed: seedOf(a.req.Sampling.Seed, choices[0], first.have), ID: a.b.requestID(a.req),
	}
}

// partSeed returns the seed of a call for a choice from a position on. At position 0 it is the seed that
// engines use for each choice of a call for several: the seed plus the choice's index.
func seedOf(seed uint64, choice, position int) uint64 {
	s := seed + uint64(choice)
	if position > 0 {
		s = splitmix.Mix(s + uint64(position)*splitmix.Step)
	}
	return s & math.MaxInt64
}

// PromptTokens returns the tokens from which the engine is to continue, in two pieces.
func (p *Part) Prompt() (prompt, generated []kv.Token) { return p.Request.Prompt, p.Generated }

// allTokens returns the same in one piece, which the caller must not change.
func (p *Part) tokens() []kv.Token {
	if len(p.Generated) == 0 {
		return p.Request.Prompt
	}
	return append(append([]kv.Token(nil), p.Request.Prompt...), p.Generated...)
}

// isFinished reports whether all choices of the call have finished.
func (p *Part) over() bool {
	for _, i := range p.Choices {
		if p.a.choices[i].over == engine.NotFinished {
			return false
		}
	}
	return true
}

// sendAccepted reports that the engine accepted the request.
func (a *attempt) accept() error {
	if a.begun {
		return nil
	}
	a.begun = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Accepted: true}
	return a.sink(&a.delta)
}

// DeliverTokens takes tokens of the i-th choice of the call, with their log-probabilities if the request
// asked for them, and the choice's Finish. It keeps no slices.
func (p *Part) Deliver(i int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	a := p.a
	if i < 0 || i >= len(p.Choices) {
		return engine.Broken("tokens of a choice that nobody asked for", nil)
	}
	index := p.Choices[i]
	c := &a.choices[index]
	if c.over != engine.NotFinished || len(tokens) == 0 && finish == engine.NotFinished {
		return nil // an empty delta, or a repeated finish
	}
	if a.req.Logprobs < 0 {
		probs = nil
	} else if len(probs) != len(tokens) {
		return engine.Broken("tokens without log-probabilities", nil)
	}
	if room := c.most - c.have - len(c.tokens); len(tokens) > room { // more than requested
		tokens, finish = tokens[:room], engine.FinishLength
		probs = probs[:min(room, len(probs))]
	}
	for _, t := range tokens {
		if int64(t) >= int64(a.b.cfg.Card.VocabSize) {
			return engine.Broken("a token outside the vocabulary", nil)
		}
	}
	if i == 0 {
		c.part = p
	}
	p.grown(tokens)
	if finish == engine.NotFinished {
		return a.deliver(index, tokens, probs)
	}
	return a.finish(index, tokens, probs, finish)
}

// bufferOrFlush buffers tokens of an unfinished choice for flushChoices.
func (a *attempt) deliver(index int, tokens []kv.Token, probs []engine.Logprob) error {
	a.keep(index, tokens, probs)
	if len(a.choices[index].tokens) >= maxGathered {
		return a.flushChoice(index)
	}
	return nil
}

// maxGathered bounds the buffered tokens of a delta.
const maxGathered = 256

// bufferTokens appends to the tokens of the next delta.
func (a *attempt) keep(index int, tokens []kv.Token, probs []engine.Logprob) {
	c := &a.choices[index]
	c.tokens = append(c.tokens, tokens...)
	for _, p := range probs {
		p.Top = slices.Clone(p.Top) // the dialect reuses its memory
		c.probs = append(c.probs, p)
	}
}

// flushChoices sends what was buffered: no more can be read without waiting.
func (a *attempt) flush() error {
	for i := range a.choices {
		if c := &a.choices[i]; len(c.tokens) > 0 && !c.holding {
			if err := a.flushChoice(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// flushChoice sends the buffered tokens of an unfinished choice.
func (a *attempt) flushChoice(index int) error {
	c := &a.choices[index]
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Tokens: c.tokens, Logprobs: c.probs}
	if !c.said {
		c.said, c.unsaid = true, a.known == engine.CachedUnknown
		a.delta.Cached = a.known
	}
	return a.hand(c)
}

// sendDelta sends a.delta, which has the buffered tokens of c.
func (a *attempt) hand(c *choice) error {
	a.b.load.grew(a.flight, len(c.tokens))
	if c.part != nil {
		a.b.cache.grew(c.part, c.tokens)
	}
	c.have += len(c.tokens)
	c.tokens, c.probs = c.tokens[:0], c.probs[:0]
	return a.sink(&a.delta)
}

// finishChoice finishes a choice. The finish of the last choice waits for the engine's report of cached
// tokens if that is still missing: it comes with the last event.
func (a *attempt) finish(index int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	c := &a.choices[index]
	a.keep(index, tokens, probs)
	if finish == engine.FinishStop && len(tokens) > 0 && !slices.Contains(a.stops, tokens[len(tokens)-1]) || len(tokens) == 0 && len(c.tokens) > 0 {
		// The tokens have no stop token: they are text, and the finish is a delta of its own.
		if err := a.flushChoice(index); err != nil {
			return err
		}
	}
	c.over = finish
	a.open--
	if a.open == 0 && a.known == engine.CachedUnknown {
		c.holding = true
		return nil
	}
	return a.last(index)
}

// sendFinish sends the finish of a choice with its buffered tokens.
func (a *attempt) last(index int) error {
	c := &a.choices[index]
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Tokens: c.tokens, Logprobs: c.probs, Finish: c.over}
	if !c.said || c.unsaid {
		a.delta.Cached = a.known
	}
	c.said, c.ended, c.holding = true, true, false
	return a.hand(c)
}

// ReportCached takes the engine's report of the prompt tokens that it had cached.
func (p *Part) Cached(n int) error {
	a := p.a
	if n < 0 || p.counted {
		return nil // engines repeat it in every event
	}
	p.counted = true
	a.b.reports()
	p.reported(min(n, len(a.req.Prompt)+len(p.Generated)))
	if n = min(n, len(a.req.Prompt)); len(a.calls) > 0 && p != a.calls[0] {
		a.beside = n // the first call computed the prompt for all: its report counts
		return nil
	}
	if a.known == engine.CachedUnknown {
		a.known = n
	}
	return a.release()
}

// compareCached compares the report with the prediction.
func (p *Part) reported(n int) {
	p.a.b.cache.reported(p, n)
	if p == p.a.calls[0] && p.guess != noGuess && !p.a.probe {
		p.a.b.ledger.note(p.guess, n)
	}
}

// sendHeldFinishes sends the finishes which waited for the report of cached tokens.
func (a *attempt) release() error {
	for i := range a.choices {
		c := &a.choices[i]
		if !c.holding {
			continue
		}
		if err := a.last(i); err != nil {
			return err
		}
	}
	return nil
}

// finishAttempt completes the attempt after its last call.
func (a *attempt) end() error {
	if a.open > 0 {
		// An engine that dies may end its response in order: it is probed as if it had broken off.
		return &fault.Error{Code: fault.Unavailable, Message: "the engine ended its answer before it was complete", Err: errBrokeOff}
	}
	a.flight.whole = true
	switch {
	case a.known != engine.CachedUnknown:
	case a.b.unreported() == 0:
		a.known = 0
		for _, p := range a.calls {
			if !p.counted {
				p.reported(0)
			}
		}
	default:
		a.known = a.beside
	}
	if err := a.release(); err != nil {
		return err
	}
	if err := a.accept(); err != nil {
		return err
	}
	for i := range a.choices {
		if c := &a.choices[i]; !c.ended {
			if err := a.already(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendEarlierFinish sends the finish of a choice that earlier attempts had completed.
func (a *attempt) already(index int) error {
	c := &a.choices[index]
	c.ended = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Finish: c.over}
	return a.sink(&a.delta)
}
