package remote

import (
	"math"
	"slices"

	"penstock/core/cachemodel"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
)

// attempt turns the events of a request's calls into deltas.
type attempt struct {
	base         *Base
	req          *engine.Request
	sink         func(*engine.Delta) error
	load         *requestLoad
	accepted     bool // the engine accepted the request
	probe        bool // a probe request: its reports are not recorded
	stops        []kv.Token
	choices      []choiceState
	unfinished   int          // choices that are not finished
	delta        engine.Delta // scratch
	calls        []*SubRequest
	cachedTokens int // cached tokens as reported by the engine, or CachedUnknown
	cachedOther  int // the same as reported by another call than the first
	// handoff is what the engine gave for the next leg; nil if it gave nothing.
	handoff *engine.Handoff
}

// choiceState is the state of one choice.
type choiceState struct {
	outputLen     int // tokens of output, Generated included
	maxOutput     int // limit of outputLen
	cachedSent    bool
	cachedPending bool // the first tokens were delivered with Cached unknown
	finish        engine.Finish
	finishSent    bool // the delta with its Finish was delivered
	held          bool // tokens and logprobs are its last, held back
	// tokens and probs are buffered for the next delta: the tokens of one read from the socket become one
	// delta, since delivering a delta costs more than reading it.
	tokens   []kv.Token
	logprobs []engine.Logprob
	// call is the call whose first choice this is: the engine caches its output.
	call *SubRequest
}

func newAttempt(b *Base, req *engine.Request, sink func(*engine.Delta) error) *attempt {
	a := &attempt{base: b, req: req, sink: sink, choices: make([]choiceState, req.Choices), cachedTokens: engine.CachedUnknown, cachedOther: engine.CachedUnknown, stops: req.Stop.Tokens}
	if !req.Stop.IgnoreEOS {
		a.stops = slices.Concat(req.Stop.Tokens, b.cfg.Card.EOS)
	}
	most := min(req.Stop.MaxTokens, b.cfg.Card.ContextLength-len(req.Prompt))
	for i := range a.choices {
		c := &a.choices[i]
		c.maxOutput, c.outputLen = most, len(a.deliveredTokens(i))
		if req.Leg == engine.LegPrefill {
			c.maxOutput = min(most, c.outputLen+1)
		}
		switch {
		case req.Done != nil && req.Done[i]:
			c.finishSent = true
		case c.outputLen > 0 && slices.Contains(a.stops, req.Generated[i][c.outputLen-1]):
			c.finish = engine.FinishStop
		case c.outputLen >= c.maxOutput:
			c.finish = engine.FinishLength
		default:
			a.unfinished++
		}
	}
	return a
}

// deliveredTokens returns the tokens of a choice that earlier attempts delivered.
func (a *attempt) deliveredTokens(i int) []kv.Token {
	if a.req.Generated == nil {
		return nil
	}
	return a.req.Generated[i]
}

// SubRequest is what one call to an engine asks for: one choice, or several that start at the same position.
type SubRequest struct {
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
	Template EventTemplate
	// Slot is the slot in which the engine is predicted to serve the call, -1 if unknown. Mixed says that the
	// slot may hold a sequence of another salt, so that the call must reuse nothing.
	Slot  int
	Mixed bool
	// Hole is the argument of the last ContinueWith; 0 in the first call.
	Hole int

	attempt        *attempt
	startLen       int  // output tokens before this call
	cachedReported bool // the cached tokens were compared
	continues      bool // another call follows
	idleHole       int  // Hole of an earlier call that gave no token, else -1
	lastToken      kv.Token
	hasLastToken   bool
	output         []kv.Token // output so far, if another call may follow
	ticket         cachemodel.Ticket
	eventMark      uint64 // of the event table, from before the call was sent
	expectedCached int    // prompt tokens that the engine should have cached, or noExpectation
}

// noExpectation is the expectedCached of a call that cannot be predicted.
const noExpectation = -1

// splitIntoParts divides the unfinished choices into calls.
func (a *attempt) splitIntoParts(how ChoiceMode) []*SubRequest {
	a.calls = a.divideChoices(how)
	return a.calls
}

func (a *attempt) divideChoices(how ChoiceMode) []*SubRequest {
	var open []int
	together := how == SingleCall || len(a.choices) == 1
	for i := range a.choices {
		c := &a.choices[i]
		if !c.finishSent && c.finish == engine.NotFinished {
			open = append(open, i)
		}
		together = together && c.outputLen == 0
	}
	if len(open) == 0 {
		return nil
	}
	// The engine numbers the choices of one call from 0: its draws must equal the draws of a call for all.
	if together && (len(open) == len(a.choices) || len(open) == 1 && open[0] == 0) {
		return []*SubRequest{a.newSubRequest(open)}
	}
	parts := make([]*SubRequest, len(open))
	for j, i := range open {
		parts[j] = a.newSubRequest([]int{i})
	}
	return parts
}

func (a *attempt) newSubRequest(choices []int) *SubRequest {
	first := &a.choices[choices[0]]
	left := first.maxOutput - first.outputLen
	return &SubRequest{
		Request: a.req, Choices: choices, Generated: a.deliveredTokens(choices[0]), attempt: a, Slot: -1, startLen: first.outputLen, idleHole: -1,
		MaxTokens: left, MinTokens: min(max(a.req.Stop.MinTokens-first.outputLen, 0), left),
		Seed: partSeed(a.req.Sampling.Seed, choices[0], first.outputLen), ID: a.base.newRequestID(a.req),
	}
}

// partSeed returns the seed of a call for a choice from a position on. At position 0 it is the seed that
// engines use for each choice of a call for several: the seed plus the choice's index.
func partSeed(seed uint64, choice, position int) uint64 {
	s := seed + uint64(choice)
	if position > 0 {
		s = splitmix.Mix(s + uint64(position)*splitmix.Step)
	}
	return s & math.MaxInt64
}

// PromptTokens returns the tokens from which the engine is to continue, in two pieces.
func (p *SubRequest) PromptTokens() (prompt, generated []kv.Token) {
	return p.Request.Prompt, p.Generated
}

// IsStopToken reports whether a token ends the choice, once it has its least number of tokens.
func (p *SubRequest) IsStopToken(t kv.Token) bool { return slices.Contains(p.attempt.stops, t) }

// allTokens returns the same in one piece, which the caller must not change.
func (p *SubRequest) allTokens() []kv.Token {
	if len(p.Generated) == 0 {
		return p.Request.Prompt
	}
	return append(append([]kv.Token(nil), p.Request.Prompt...), p.Generated...)
}

// isFinished reports whether all choices of the call have finished.
func (p *SubRequest) isFinished() bool {
	for _, i := range p.Choices {
		if p.attempt.choices[i].finish == engine.NotFinished {
			return false
		}
	}
	return true
}

// sendAccepted reports that the engine accepted the request.
func (a *attempt) sendAccepted() error {
	if a.accepted {
		return nil
	}
	a.accepted = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Accepted: true}
	return a.sink(&a.delta)
}

// DeliverTokens takes tokens of the i-th choice of the call, with their log-probabilities if the request
// asked for them, and the choice's Finish. It keeps no slices.
func (p *SubRequest) DeliverTokens(i int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	a := p.attempt
	if i < 0 || i >= len(p.Choices) {
		return engine.ContractError("tokens of a choice which was not asked for", nil)
	}
	index := p.Choices[i]
	c := &a.choices[index]
	if c.finish != engine.NotFinished || len(tokens) == 0 && finish == engine.NotFinished {
		return nil // an empty delta, or a repeated finish
	}
	if a.req.Logprobs < 0 {
		probs = nil
	} else if len(probs) != len(tokens) {
		return engine.ContractError("tokens without log-probabilities", nil)
	}
	if room := c.maxOutput - c.outputLen - len(c.tokens); len(tokens) > room { // more than requested
		tokens, finish = tokens[:room], engine.FinishLength
		probs = probs[:min(room, len(probs))]
	}
	for _, t := range tokens {
		if int64(t) >= int64(a.base.cfg.Card.VocabSize) {
			return engine.ContractError("a token outside the vocabulary", nil)
		}
	}
	if i == 0 {
		c.call = p
	}
	p.recordOutput(tokens)
	if finish == engine.NotFinished {
		return a.bufferOrFlush(index, tokens, probs)
	}
	return a.finishChoice(index, tokens, probs, finish)
}

// bufferOrFlush buffers tokens of an unfinished choice for flushChoices.
func (a *attempt) bufferOrFlush(index int, tokens []kv.Token, probs []engine.Logprob) error {
	a.bufferTokens(index, tokens, probs)
	if len(a.choices[index].tokens) >= maxGathered {
		return a.flushChoice(index)
	}
	return nil
}

// maxGathered bounds the buffered tokens of a delta.
const maxGathered = 256

// bufferTokens appends to the tokens of the next delta.
func (a *attempt) bufferTokens(index int, tokens []kv.Token, probs []engine.Logprob) {
	c := &a.choices[index]
	c.tokens = append(c.tokens, tokens...)
	for _, p := range probs {
		p.Top = slices.Clone(p.Top) // the dialect reuses its memory
		c.logprobs = append(c.logprobs, p)
	}
}

// flushChoices sends what was buffered: no more can be read without waiting.
func (a *attempt) flushChoices() error {
	for i := range a.choices {
		if c := &a.choices[i]; len(c.tokens) > 0 && !c.held {
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
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.outputLen, Tokens: c.tokens, Logprobs: c.logprobs}
	if !c.cachedSent {
		c.cachedSent, c.cachedPending = true, a.cachedTokens == engine.CachedUnknown
		a.delta.Cached = a.cachedTokens
	}
	return a.sendDelta(c)
}

// sendDelta sends a.delta, which has the buffered tokens of c.
func (a *attempt) sendDelta(c *choiceState) error {
	a.base.load.addOutput(a.load, len(c.tokens))
	if c.call != nil {
		a.base.cache.addOutput(c.call, c.tokens)
	}
	c.outputLen += len(c.tokens)
	c.tokens, c.logprobs = c.tokens[:0], c.logprobs[:0]
	return a.sink(&a.delta)
}

// finishChoice finishes a choice. The finish of the last choice waits for the engine's report of cached
// tokens if that is still missing, and for the handoff of a prefill leg: they come with the last event.
func (a *attempt) finishChoice(index int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	c := &a.choices[index]
	a.bufferTokens(index, tokens, probs)
	if finish == engine.FinishStop && len(tokens) > 0 && !slices.Contains(a.stops, tokens[len(tokens)-1]) || len(tokens) == 0 && len(c.tokens) > 0 {
		// The tokens have no stop token: they are text, and the finish is a delta of its own.
		if err := a.flushChoice(index); err != nil {
			return err
		}
	}
	c.finish = finish
	a.unfinished--
	if a.unfinished == 0 && (a.cachedTokens == engine.CachedUnknown || a.req.Leg == engine.LegPrefill) {
		c.held = true
		return nil
	}
	return a.sendFinish(index)
}

// sendFinish sends the finish of a choice with its buffered tokens.
func (a *attempt) sendFinish(index int) error {
	c := &a.choices[index]
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.outputLen, Tokens: c.tokens, Logprobs: c.logprobs, Finish: c.finish}
	if !c.cachedSent || c.cachedPending {
		a.delta.Cached = a.cachedTokens
	}
	if a.unfinished == 0 {
		a.delta.Handoff = a.handoff
	}
	c.cachedSent, c.finishSent, c.held = true, true, false
	return a.sendDelta(c)
}

// ReportCached takes the engine's report of the prompt tokens that it had cached.
func (p *SubRequest) ReportCached(n int) error {
	a := p.attempt
	if n < 0 || p.cachedReported {
		return nil // engines repeat it in every event
	}
	p.cachedReported = true
	a.base.noteCachedReport()
	p.compareCached(min(n, len(a.req.Prompt)+len(p.Generated)))
	if n = min(n, len(a.req.Prompt)); len(a.calls) > 0 && p != a.calls[0] {
		a.cachedOther = n // the first call computed the prompt for all: its report counts
		return nil
	}
	if a.cachedTokens == engine.CachedUnknown {
		a.cachedTokens = n
	}
	return a.sendHeldFinishes()
}

// compareCached compares the report with the prediction.
func (p *SubRequest) compareCached(n int) {
	p.attempt.base.cache.recordReport(p, n)
	if p == p.attempt.calls[0] && p.expectedCached != noExpectation && !p.attempt.probe {
		p.attempt.base.predictions.recordResult(p.expectedCached, n)
	}
}

// sendHeldFinishes sends the finishes which waited for the report of cached tokens.
func (a *attempt) sendHeldFinishes() error {
	for i := range a.choices {
		c := &a.choices[i]
		if !c.held {
			continue
		}
		if err := a.sendFinish(i); err != nil {
			return err
		}
	}
	return nil
}

// finishAttempt completes the attempt after its last call.
func (a *attempt) finishAttempt() error {
	if a.unfinished > 0 {
		// An engine that dies may end its response in order: it is probed as if it had broken off.
		return &fault.Error{Code: fault.Unavailable, Message: "the engine ended its answer before it was complete", Err: errBrokeOff}
	}
	a.load.completed = true
	switch {
	case a.cachedTokens != engine.CachedUnknown:
	case a.base.cachedIfMissing() == 0:
		a.cachedTokens = 0
		for _, p := range a.calls {
			if !p.cachedReported {
				p.compareCached(0)
			}
		}
	default:
		a.cachedTokens = a.cachedOther
	}
	if err := a.sendHeldFinishes(); err != nil {
		return err
	}
	if err := a.sendAccepted(); err != nil {
		return err
	}
	for i := range a.choices {
		if c := &a.choices[i]; !c.finishSent {
			if err := a.sendEarlierFinish(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendEarlierFinish sends the finish of a choice that earlier attempts had completed.
func (a *attempt) sendEarlierFinish(index int) error {
	c := &a.choices[index]
	c.finishSent = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.outputLen, Finish: c.finish}
	return a.sink(&a.delta)
}
