package frontend

import (
	"context"
	"errors"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// errEnough ends a call whose further tokens are not needed.
var errEnough = errors.New("frontend: every choice has ended")

// RunAttempt makes one attempt on the worker that was chosen and reserved for it. It returns nil when
// every choice is done.
func (g *generationTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	held := dispatch.HoldReservation(g.f.deps.Router, g.route.ID, number)
	defer held.Free()
	g.decision, g.accepted, g.unreportedTokens, g.attemptTokens, g.cached = d, false, 0, 0, engine.CachedReport{}
	g.workerNumerics = g.f.catalog.currentModel(g.model).NumericsOf(d.Worker.ID)
	g.request.Attempt = number
	if number > 1 {
		g.resumeAttempt()
	}
	if err := g.emitEvent(eventRouted, nil); err != nil {
		return err
	}

	body := engine.AppendRequest(*bufferPool.Get().(*[]byte), &g.request)
	err := dispatch.CallWorker(ctx, g.f.deps.Plane, g.f.cfg.StallTimeout, d, engine.MethodGenerate, body, g.handleFrame)
	recycleBuffer(body) // planes keep nothing of it
	if g.openChoices == 0 {
		held.FinishAnswer(g.attemptTokens / len(g.choices))
		return nil // the answer is complete, regardless of the call's error
	}
	return err
}

// resumeAttempt puts the tokens already sent into the next attempt's request.
func (g *generationTask) resumeAttempt() {
	g.request.Generated = g.request.Generated[:0]
	g.request.Done = g.request.Done[:0]
	for i := range g.choices {
		c := &g.choices[i]
		c.ended = c.done // this attempt's engine does not start it
		g.request.Generated = append(g.request.Generated, c.tokens)
		g.request.Done = append(g.request.Done, c.done)
	}
}

// handleFrame handles one frame of the current attempt.
func (g *generationTask) handleFrame(frame []byte) error {
	d := &g.delta
	if err := engine.DecodeDelta(frame, d); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if d.Attempt != g.request.Attempt {
		return nil // a late answer
	}
	if err := g.acceptAttempt(); err != nil || d.Accepted {
		return err
	}
	if d.Choice < 0 || d.Choice >= len(g.choices) {
		return engine.ContractError("an unknown choice", nil)
	}
	if err := g.handleReported(d); err != nil {
		return err
	}
	if c := &g.choices[d.Choice]; c.done { // by a stop string, which the engine does not know
		c.ended = c.ended || d.Finish != engine.NotFinished
		return nil
	}
	if err := g.handleOutput(d); err != nil {
		return err
	}
	if g.openChoices == 0 && !g.allEnded() {
		return errEnough
	}
	return nil
}

// acceptAttempt reports the attempt's first frame.
func (g *generationTask) acceptAttempt() error {
	if g.accepted {
		return nil
	}
	g.accepted = true
	return g.emitEvent(eventAccepted, nil)
}

// allEnded reports whether the engine itself ended every choice. Its call then ends without being
// canceled.
func (g *generationTask) allEnded() bool {
	for i := range g.choices {
		if !g.choices[i].ended {
			return false
		}
	}
	return true
}

// handleOutput takes the tokens of one delta and emits what can be sent.
func (g *generationTask) handleOutput(d *engine.Delta) error {
	c := &g.choices[d.Choice]
	if err := d.TrimDelivered(len(c.tokens), g.request.Logprobs); err != nil {
		return err
	}
	fresh := len(d.Tokens)
	if len(c.tokens)+fresh > g.request.Stop.MaxTokens {
		return engine.ContractError("more tokens than were asked for", nil)
	}
	if fresh > 0 {
		g.recordTokens(d, fresh)
	}

	reason := g.decodeOutput(c, d)
	if reason != api.NoReason {
		c.done = true
		g.openChoices--
		c.parseText(&g.rules)
		reason = c.parser.finishReason(reason)
	}
	return g.emitChoice(d.Choice, reason)
}

// decodeOutput pushes the tokens of d through the choice, and returns why the choice is finished; NoReason if
// it is not. A stop string ends a choice before the engine does, and so does the end of its only
// allowed call; tokens after either do not count.
func (g *generationTask) decodeOutput(c *answerChoice, d *engine.Delta) (reason api.FinishReason) {
	c.ended = d.Finish != engine.NotFinished
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
			return api.ReasonStop
		}
		c.parseText(&g.rules)
		if c.parser.inReasoning {
			c.reasoningTokens++
			g.counts.Reasoning++
		}
		if g.rules.oneCall && c.parser.hasCall() {
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
	spent := api.TokenCounts{Prompt: g.counts.Prompt, Completion: len(c.tokens), Cached: g.counts.Cached, Reasoning: c.reasoningTokens}
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
	err := g.emitEvent(eventOutput, chunks)
	c.markSent(len(text))
	return err
}

// emitEvent emits an event of the current attempt.
func (g *generationTask) emitEvent(kind generationEventKind, chunks []api.Chunk) error {
	g.event = generationEvent{
		kind:     kind,
		prompt:   g.index,
		attempt:  g.request.Attempt,
		decision: g.decision,
		numerics: g.workerNumerics,
		inexact:  g.isInexact(),
		tokens:   g.counts.Prompt,
		chunks:   chunks,
	}
	return g.emit(&g.event)
}

// isInexact reports whether the worker continues tokens from other numerics than its own, if both are
// known.
func (g *generationTask) isInexact() bool {
	return g.TokensDelivered() > 0 && g.workerNumerics != "" && g.firstNumerics != "" && g.workerNumerics != g.firstNumerics
}

// firstChoice is the index in the answer of this prompt's first choice.
func (g *generationTask) firstChoice() int { return g.index * len(g.choices) }

// handleReported takes the number of cached tokens in d. The answer gives the number of the first
// worker that sent tokens, because a later one computes the prompt again. It may arrive only with the
// end of a choice.
func (g *generationTask) handleReported(d *engine.Delta) error {
	cached, news := g.cached.ObserveDelta(d)
	if !news {
		return nil
	}
	if cached < engine.CachedUnknown || cached > g.counts.Prompt {
		return engine.ContractError("a number of cached tokens that cannot be", nil)
	}
	g.f.deps.Router.RecordFirstToken(g.route.ID, g.request.Attempt, cached)
	if g.cachedBy == 0 {
		g.cachedBy = g.request.Attempt
	}
	if g.cachedBy == g.request.Attempt {
		g.counts.Cached = cached
	}
	if cached == engine.CachedUnknown {
		return nil
	}
	g.event = generationEvent{kind: eventReported, prompt: g.index, attempt: g.request.Attempt, decision: g.decision, cached: cached}
	return g.emit(&g.event)
}

// recordTokens updates load and latency metrics with fresh tokens.
func (g *generationTask) recordTokens(d *engine.Delta, fresh int) {
	now := time.Now()
	g.attemptTokens += fresh
	if g.unreportedTokens += fresh; g.decision.BlockSize > 0 && g.unreportedTokens >= g.decision.BlockSize {
		g.f.deps.Router.RecordOutput(g.route.ID, g.request.Attempt, g.unreportedTokens)
		g.unreportedTokens = 0
	}
	if g.counts.Completion == 0 {
		g.firstToken.Observe(now.Sub(g.started).Seconds())
		g.firstNumerics = g.workerNumerics
	}
	if last := g.lastToken[d.Choice]; !last.IsZero() {
		each := now.Sub(last).Seconds() / float64(fresh)
		for range fresh {
			g.interToken.Observe(each)
		}
	}
	g.lastToken[d.Choice] = now
}
