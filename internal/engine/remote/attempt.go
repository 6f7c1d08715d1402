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

// attempt turns what the calls of a request say into its deltas.
type attempt struct {
	b       *Base
	req     *engine.Request
	sink    func(*engine.Delta) error
	flight  *flight
	begun   bool // the engine took it
	probe   bool // it is a question of ours: nothing is learned from what is reported
	stops   []kv.Token
	choices []choice
	open    int          // choices that go on
	delta   engine.Delta // scratch
	calls   []*Part
	known   int // cached tokens by the engine's account, or CachedUnknown
	beside  int // the same by that of a call which was not the first
}

// choice is what became of one choice.
type choice struct {
	have    int // tokens of output, Generated included
	most    int // that it may have
	said    bool
	unsaid  bool // its first tokens were delivered while the cached ones were unknown
	over    engine.Finish
	ended   bool // the delta with its end was delivered
	holding bool // tokens and logprobs are its last, held back
	// tokens and probs are what was not handed on yet: what came with one read of the socket
	// goes on as one delta, since to hand it on costs more than to read it.
	tokens []kv.Token
	probs  []engine.Logprob
	// part is the call whose first choice this is: what it generates the engine caches.
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

// generated are the tokens that earlier attempts delivered of a choice.
func (a *attempt) generated(i int) []kv.Token {
	if a.req.Generated == nil {
		return nil
	}
	return a.req.Generated[i]
}

// Part is what one call to an engine asks for: one choice, or several that begin at the same
// place.
type Part struct {
	Request *engine.Request
	// Choices are those that it asks for: what the engine numbers i is Choices[i] of the request.
	Choices []int
	// Generated are the tokens of output that the prompt goes on with.
	Generated []kv.Token
	// MaxTokens and MinTokens are what is left of the request's.
	MaxTokens, MinTokens int
	// Seed is for what is drawn now, below 2^63: that of the request, changed by how far
	// the choice has come, so that draws are not repeated.
	Seed uint64
	ID   string // of the call

	// Tokens, Logprobs and Top are memory for a dialect to decode events into.
	Tokens   []kv.Token
	Logprobs []engine.Logprob
	Top      []engine.TokenLogprob
	// Alike is for a dialect to recognise events that are like the last one.
	Alike Alike
	// Slot is where an engine with slots is believed to serve it, -1 if that is unknown. Mixed says
	// that it may meet a sequence of another salt there, so that it must reuse nothing.
	Slot  int
	Mixed bool
	// Hole is what the dialect gave to Again; 0 in the first call.
	Hole int

	a        *attempt
	from     int  // tokens of output before this call
	counted  bool // the cached tokens were compared
	again    bool // another call follows
	idleHole int  // Hole of a call without a token before this one, else -1
	last     kv.Token
	hasLast  bool
	kept     []kv.Token // output up to now, if another call may follow
	ticket   shadow.Ticket
	mark     uint64 // of the feed's table, from before the call was sent
	guess    int    // prompt tokens that the engine should have in its cache, or noGuess
}

// noGuess is the guess where nothing can be known.
const noGuess = -1

// parts divides the choices that are to be generated into calls.
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
	// Several choices of one call are numbered from 0: the engine's draws must be those of a call
	// that asks for all.
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

// seedOf returns the seed of a call for a choice from a position on. From the beginning it is the
// one that engines give the choices of a call for several: the seed plus the choice's number.
func seedOf(seed uint64, choice, position int) uint64 {
	s := seed + uint64(choice)
	if position > 0 {
		s = splitmix.Mix(s + uint64(position)*splitmix.Step)
	}
	return s & math.MaxInt64
}

// Prompt returns the tokens that the engine is to go on from, in two pieces.
func (p *Part) Prompt() (prompt, generated []kv.Token) { return p.Request.Prompt, p.Generated }

// tokens returns the same in one piece, which is not to be changed.
func (p *Part) tokens() []kv.Token {
	if len(p.Generated) == 0 {
		return p.Request.Prompt
	}
	return append(append([]kv.Token(nil), p.Request.Prompt...), p.Generated...)
}

// over reports whether all choices of the part came to their end.
func (p *Part) over() bool {
	for _, i := range p.Choices {
		if p.a.choices[i].over == engine.NotFinished {
			return false
		}
	}
	return true
}

// accept tells the caller that the engine took the request.
func (a *attempt) accept() error {
	if a.begun {
		return nil
	}
	a.begun = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Accepted: true}
	return a.sink(&a.delta)
}

// Deliver takes tokens of the i-th choice of the part, with their log-probabilities if those were
// asked for, and how the choice ended, if it did. The slices are not kept.
func (p *Part) Deliver(i int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	a := p.a
	if i < 0 || i >= len(p.Choices) {
		return engine.Broken("tokens of a choice that nobody asked for", nil)
	}
	index := p.Choices[i]
	c := &a.choices[index]
	if c.over != engine.NotFinished || len(tokens) == 0 && finish == engine.NotFinished {
		return nil // an empty piece, or the echo of an end
	}
	if a.req.Logprobs < 0 {
		probs = nil
	} else if len(probs) != len(tokens) {
		return engine.Broken("tokens without log-probabilities", nil)
	}
	if room := c.most - c.have - len(c.tokens); len(tokens) > room { // more than was asked for
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

// deliver takes tokens of a choice that goes on, for flush.
func (a *attempt) deliver(index int, tokens []kv.Token, probs []engine.Logprob) error {
	a.keep(index, tokens, probs)
	if len(a.choices[index].tokens) >= maxGathered {
		return a.flushChoice(index)
	}
	return nil
}

// maxGathered bounds the tokens of a delta that were gathered.
const maxGathered = 256

// keep gathers tokens.
func (a *attempt) keep(index int, tokens []kv.Token, probs []engine.Logprob) {
	c := &a.choices[index]
	c.tokens = append(c.tokens, tokens...)
	for _, p := range probs {
		p.Top = slices.Clone(p.Top) // the dialect's memory
		c.probs = append(c.probs, p)
	}
}

// flush hands on what was gathered: nothing more is there to be read without waiting.
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

// flushChoice hands on what was gathered of a choice that goes on.
func (a *attempt) flushChoice(index int) error {
	c := &a.choices[index]
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Tokens: c.tokens, Logprobs: c.probs}
	if !c.said {
		c.said, c.unsaid = true, a.known == engine.CachedUnknown
		a.delta.Cached = a.known
	}
	return a.hand(c)
}

// hand hands on a.delta, which has what was gathered of c.
func (a *attempt) hand(c *choice) error {
	a.b.load.grew(a.flight, len(c.tokens))
	if c.part != nil {
		a.b.cache.grew(c.part, c.tokens)
	}
	c.have += len(c.tokens)
	c.tokens, c.probs = c.tokens[:0], c.probs[:0]
	return a.sink(&a.delta)
}

// finish ends a choice. The last one waits for the engine's account of cached tokens, if that has
// not come yet: it comes with the last word.
func (a *attempt) finish(index int, tokens []kv.Token, probs []engine.Logprob, finish engine.Finish) error {
	c := &a.choices[index]
	a.keep(index, tokens, probs)
	if finish == engine.FinishStop && len(tokens) > 0 && !slices.Contains(a.stops, tokens[len(tokens)-1]) || len(tokens) == 0 && len(c.tokens) > 0 {
		// The stop token is not among them: they are text, and the end comes by itself.
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

// last hands on the end of a choice, with what was gathered of it.
func (a *attempt) last(index int) error {
	c := &a.choices[index]
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Tokens: c.tokens, Logprobs: c.probs, Finish: c.over}
	if !c.said || c.unsaid {
		a.delta.Cached = a.known
	}
	c.said, c.ended, c.holding = true, true, false
	return a.hand(c)
}

// Cached takes the engine's account of the prompt tokens that it had in its cache.
func (p *Part) Cached(n int) error {
	a := p.a
	if n < 0 || p.counted {
		return nil // engines say it again with every event
	}
	p.counted = true
	a.b.reports()
	p.reported(min(n, len(a.req.Prompt)+len(p.Generated)))
	if n = min(n, len(a.req.Prompt)); len(a.calls) > 0 && p != a.calls[0] {
		a.beside = n // the first call computed the prompt for all: what it says counts
		return nil
	}
	if a.known == engine.CachedUnknown {
		a.known = n
	}
	return a.release()
}

// reported compares the account with what was expected.
func (p *Part) reported(n int) {
	p.a.b.cache.reported(p, n)
	if p == p.a.calls[0] && p.guess != noGuess && !p.a.probe {
		p.a.b.ledger.note(p.guess, n)
	}
}

// release hands on what waited for the account of cached tokens.
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

// end says that no call has anything more.
func (a *attempt) end() error {
	if a.open > 0 {
		// An engine that dies may end its answer in order: it is asked, as if it had broken it off.
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

// already says of a choice that earlier attempts had ended it.
func (a *attempt) already(index int) error {
	c := &a.choices[index]
	c.ended = true
	a.delta = engine.Delta{Attempt: a.req.Attempt, Choice: index, Pos: c.have, Finish: c.over}
	return a.sink(&a.delta)
}
