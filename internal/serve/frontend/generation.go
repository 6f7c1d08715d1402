package frontend

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// generationTask is one prompt of a request: it turns what workers generate into the text of its choices.
// One goroutine uses it.
type generationTask struct {
	dispatch.Generation
	model *servedModel // at the request's arrival
	index int          // of the prompt
	// firstAttempt is the number of its first attempt; 0 is 1.
	firstAttempt uint32
	started      time.Time
	emit         func(dispatch.AttemptEvent, *generationTask) error // reports an event; chunks are valid until it returns

	rules textRules
	// guideParam is the client's field that the guide was made from.
	guideParam string
	echo       string
	sendsRole  bool // choices begin with a role chunk
	choices    []answerChoice

	counts    api.TokenCounts
	cachedBy  uint32 // the attempt whose cached tokens count: the first with tokens; 0 before
	lastToken []time.Time
	chunks    []api.Chunk

	firstToken prometheus.Observer
	interToken prometheus.Observer
}

// eventOutput is the event of chunks which continue the answer.
const eventOutput = dispatch.AttemptReported + 1

// HandleAttempt implements dispatch.GenerationSink.
func (g *generationTask) HandleAttempt(event dispatch.AttemptEvent) error {
	if event == dispatch.AttemptReported {
		// The answer gives the number of the first worker that sent tokens, because a later one computes the
		// prompt again.
		if g.cachedBy == 0 {
			g.cachedBy = g.Request.Attempt
		}
		if g.cachedBy == g.Request.Attempt {
			g.counts.Cached = g.Cached
		}
		if g.Cached == engine.CachedUnknown {
			return nil
		}
	}
	return g.emit(event, g)
}

// HandleOutput implements dispatch.GenerationSink: it emits what can be sent.
func (g *generationTask) HandleOutput(d *engine.Delta) (done bool, err error) {
	c := &g.choices[d.Choice]
	if len(d.Tokens) > 0 {
		g.observeLatency(d)
	}
	reason := g.decodeOutput(c, d)
	if reason != api.NoReason {
		c.done = true
		c.parseText(&g.rules)
		reason = c.parser.finishReason(reason)
	}
	return c.done, g.emitChoice(d.Choice, reason)
}

// decodeOutput pushes the tokens of d through the choice, and returns why the choice is finished; NoReason if
// it is not. A stop string ends a choice before the engine does, and so does the end of its only
// allowed call; tokens after either do not count.
func (g *generationTask) decodeOutput(c *answerChoice, d *engine.Delta) (reason api.FinishReason) {
	for i := range d.Tokens {
		g.counts.Completion++
		last := i == len(d.Tokens)-1
		if last && d.Finish == engine.FinishStop && !g.keepsStop(c, d.Tokens[i]) {
			c.pushStop(&g.rules, d.Tokens[i])
			break
		}
		var lp *engine.Logprob
		if g.rules.logprobs {
			lp = &d.Logprobs[i]
		}
		if c.pushToken(&g.rules, d.Tokens[i], lp) {
			d.Tokens = d.Tokens[:i+1]
			return api.ReasonStop
		}
		c.parseText(&g.rules)
		if c.parser.inReasoning {
			c.reasoningTokens++
			g.counts.Reasoning++
		}
		if g.rules.oneCall && c.parser.hasCall() {
			d.Tokens = d.Tokens[:i+1]
			return api.ReasonCalls
		}
	}
	if d.Finish == engine.NotFinished {
		return api.NoReason
	}
	if c.finishTokens(&g.rules) || d.Finish == engine.FinishStop {
		return api.ReasonStop
	}
	return api.ReasonLength
}

// keepsStop reports whether the text of the stop token t belongs to the choice. The text of a special
// token does not: a choice with a parser has special tokens in its text, which other choices leave out.
func (g *generationTask) keepsStop(c *answerChoice, t kv.Token) bool {
	return g.rules.keepStop && (c.parser.parser == nil || !g.rules.tokenizer.IsSpecial(t))
}

// emitChoice emits the new output of a choice.
func (g *generationTask) emitChoice(index int, reason api.FinishReason) error {
	c := &g.choices[index]
	n := g.firstChoice() + index
	spent := api.TokenCounts{Prompt: g.counts.Prompt, Completion: c.tokens, Cached: g.counts.Cached, Reasoning: c.reasoningTokens}
	chunks := g.chunks[:0]
	if !c.started {
		c.started = true
		if g.sendsRole {
			chunks = append(chunks, api.Chunk{Kind: api.Role, Choice: n})
		}
		if g.echo != "" {
			chunks = append(chunks, api.Chunk{Kind: api.Text, Choice: n, Text: []byte(g.echo)})
		}
	}
	text, logprobs := c.pendingText()
	if c.parser.parser != nil {
		chunks = c.parser.appendChunks(chunks, n, logprobs, &g.rules)
	} else if len(text) > 0 || len(logprobs) > 0 {
		chunks = append(chunks, api.Chunk{Kind: api.Text, Choice: n, Text: text, Logprobs: logprobs})
	}
	if reason != api.NoReason {
		chunks = append(chunks, api.Chunk{Kind: api.Finish, Choice: n, Reason: reason, StopString: c.stopText})
	}
	g.chunks = chunks
	if len(chunks) == 0 {
		return nil
	}
	for i := range chunks {
		if chunks[i].Tokens = spent; chunks[i].Kind == api.Role { // the role chunk comes before all tokens
			chunks[i].Tokens.Completion, chunks[i].Tokens.Reasoning = 0, 0
		}
	}
	err := g.emit(eventOutput, g)
	c.markSent(len(text))
	return err
}

// firstChoice is the index in the answer of this prompt's first choice.
func (g *generationTask) firstChoice() int { return g.index * len(g.choices) }

// observeLatency updates the latency metrics with the tokens of d.
func (g *generationTask) observeLatency(d *engine.Delta) {
	now := time.Now()
	if g.counts.Completion == 0 {
		g.firstToken.Observe(now.Sub(g.started).Seconds())
	}
	if last := g.lastToken[d.Choice]; !last.IsZero() {
		each := now.Sub(last).Seconds() / float64(len(d.Tokens))
		for range d.Tokens {
			g.interToken.Observe(each)
		}
	}
	g.lastToken[d.Choice] = now
}

// contextError returns why a request's context ended: the cause that the frontend gave, or that the
// client disconnected.
func contextError(ctx context.Context) error {
	var f *fault.Error
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return &fault.Error{Code: fault.Canceled, Message: "the client closed the connection", Err: context.Cause(ctx)}
}
