package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// Generation is a prompt that one worker after another continues: each goes on from the tokens that its
// predecessors delivered. One goroutine uses it.
type Generation struct {
	RoutedTask
	Request engine.Request // of the current attempt
	Sink    GenerationSink

	// Numerics are of the current attempt's worker; "" if unknown.
	Numerics string
	// Cached is how many tokens of the prompt the current attempt's worker, or that of its prefill leg, has reported as
	// cached.
	Cached int
	// PrefillWorker is the worker of the current attempt's prefill leg, once that has ended well; zero if there is none.
	PrefillWorker kv.Worker

	choices       []choiceProgress
	openChoices   int // choices not done
	delivered     int // tokens
	firstNumerics string

	// State of the current attempt.
	accepted bool
	failed   []engine.FailedObject // for which the worker refuses it
	report   engine.CachedReport
	delta    engine.Delta
	// legCached is what the worker of the prefill leg had cached before this request; engine.CachedUnknown if there was
	// no leg. toldCached says that the sink was told of Cached.
	legCached  int
	toldCached bool

	// failedLegs counts decode legs which failed, and failedPrefill are the prefill workers of this and earlier attempts
	// which are not to be called again. background has the calls of prefill legs and releases.
	failedLegs    int
	failedPrefill []disagg.Incarnation
	background    sync.WaitGroup
	// prefilled has for each prefill worker what it reported as cached with its first leg. A later leg finds what the
	// first one computed.
	prefilled map[disagg.Incarnation]int
}

// notePrefilled takes the result of a prefill leg which ended well.
func (g *Generation) notePrefilled(p *prefillLeg) {
	if _, again := g.prefilled[p.by]; !again {
		if g.prefilled == nil {
			g.prefilled = map[disagg.Incarnation]int{}
		}
		g.prefilled[p.by] = p.cached
	}
	g.legCached, g.PrefillWorker = g.prefilled[p.by], p.by.Worker
}

// GenerationSink takes what the attempts of a generation deliver. An error ends the generation and is its
// error.
type GenerationSink interface {
	// HandleAttempt is told how the current attempt goes on.
	HandleAttempt(event AttemptEvent) error
	// HandleOutput takes new tokens of a choice, at position d.Pos, or its end. It reports whether the
	// choice is done; if it is before its engine says so, it shortens d.Tokens to the tokens that count.
	HandleOutput(d *engine.Delta) (done bool, err error)
}

// AttemptEvent is a step of an attempt.
type AttemptEvent uint8

// The steps of an attempt.
const (
	AttemptRouted   AttemptEvent = iota // it goes to Decision's worker
	AttemptAccepted                     // the worker accepted it
	AttemptReported                     // Cached is known, or known to come later
)

// choiceProgress is the progress of one choice.
type choiceProgress struct {
	tokens []kv.Token // all delivered tokens, including the ones of earlier attempts
	done   bool
	ended  bool // by the engine of the current attempt, or before it
}

// errEnough ends a call whose further tokens are not needed.
var errEnough = errors.New("dispatch: every choice has ended")

// Generate makes attempts, numbered from first, until every choice is done. It returns after all calls which they made.
func (r *Dispatcher) Generate(ctx context.Context, g *Generation, first uint32) error {
	defer g.background.Wait()
	if router, ok := r.Router.(SplitRouter); ok { // what the caller asks for goes before what is set here
		g.Request.Split = g.Request.Split.Over(router.SplitSettings(&g.Route))
	}
	g.choices = make([]choiceProgress, g.Request.Choices)
	for i := range g.choices {
		c := &g.choices[i]
		if len(g.Request.Generated) > 0 {
			c.tokens = slices.Clone(g.Request.Generated[i])
		} else {
			c.tokens = make([]kv.Token, 0, min(max(g.Request.Stop.MaxTokens, 0), 64))
		}
		if c.done = len(g.Request.Done) > 0 && g.Request.Done[i]; !c.done {
			g.openChoices++
		}
	}
	return r.runRouted(ctx, g, &g.RoutedTask, first)
}

// TokensDelivered implements Task.
func (g *Generation) TokensDelivered() int { return g.delivered }

// MoveKind implements Task.
func (g *Generation) MoveKind() string { return MoveKind(g.delivered) }

// IsInexact reports whether the current attempt's worker continues tokens from other numerics than its own,
// if both are known.
func (g *Generation) IsInexact() bool {
	return g.delivered > 0 && g.Numerics != "" && g.firstNumerics != "" && g.Numerics != g.firstNumerics
}

// ChooseWorker asks the router for a worker that has not failed this prompt. Once tokens are delivered it
// prefers a worker of the same numerics, because only that one continues bit for bit; another one is better
// than none.
func (g *Generation) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	var strange []kv.WorkerID
	if g.firstNumerics != "" {
		strange = g.Workers().WorkersWhere(func(c *engine.Card) bool { return c.Numerics != g.firstNumerics })
	}
	return g.routeTask(ctx, number, failed, strange, g.lackedAbilities())
}

// lackedAbilities returns a function which reports whether a worker lacks what the request needs; nil if it needs nothing.
func (g *Generation) lackedAbilities() func(*engine.Card) bool {
	schema, lent := g.Request.OutputSchema != nil, !g.Request.FeaturesAt.IsZero()
	features := lent || len(g.Request.Features) > 0
	if !schema && !features {
		return nil
	}
	return func(c *engine.Card) bool {
		return schema && !c.StructuredOutput || features && !c.Features || lent && !c.Fetches
	}
}

// RunAttempt makes one attempt on the worker that was chosen and reserved for it. It returns nil when every
// choice is done.
func (g *Generation) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	held := g.startAttempt(number, d)
	defer held.Free()
	g.legCached, g.toldCached, g.PrefillWorker = engine.CachedUnknown, false, kv.Worker{}
	g.accepted, g.failed, g.report, g.Numerics = false, nil, engine.CachedReport{}, g.Workers().NumericsOf(d.Worker.ID)
	g.Request.Attempt = number
	g.resumeAttempt()
	g.Request.Prefill = g.prefillHint()
	if g.tellSink(AttemptRouted) != nil {
		return errSink
	}
	var err error
	if legs := g.planLegs(); legs != nil {
		err = legs.run(ctx)
		g.failedPrefill = append(g.failedPrefill, legs.machine.Failed()...)
	} else {
		err = g.callLeg(ctx, engine.LegWhole, nil, g.handleFrame)
	}
	switch {
	case g.sinkErr != nil:
		return errSink
	case g.accepted && g.openChoices == 0:
		held.FinishAnswer(g.outputTokens / len(g.choices))
		return nil // the answer is complete, regardless of the call's error
	case len(g.failed) > 0 && !g.accepted:
		return engine.ReceivedFailures(g.failed, g.Request.Objects, err)
	}
	return err
}

// prefillHint returns what the current attempt's worker is told of prefill workers, if it asks them itself.
func (g *Generation) prefillHint() engine.PrefillHint {
	all := g.Workers().Workers
	at := slices.IndexFunc(all, func(w *catalog.Worker) bool { return w.ID == g.Decision.Worker.ID })
	if at < 0 || all[at].Card.Exchange == nil {
		return engine.PrefillHint{}
	}
	return engine.PrefillHint{Pin: g.Route.PrefillPin, Holders: g.Decision.Prefill}
}

// resumeAttempt puts the tokens already delivered into the attempt's request.
func (g *Generation) resumeAttempt() {
	started := false
	for i := range g.choices {
		c := &g.choices[i]
		c.ended = c.done // this attempt's engine does not start it
		started = started || c.done || len(c.tokens) > 0
	}
	if !started {
		return
	}
	g.Request.Generated, g.Request.Done = make([][]kv.Token, len(g.choices)), make([]bool, len(g.choices))
	for i := range g.choices {
		g.Request.Generated[i], g.Request.Done[i] = g.choices[i].tokens, g.choices[i].done
	}
}

// handleFrame handles one frame of the current attempt.
func (g *Generation) handleFrame(frame []byte) error {
	d := &g.delta
	if err := engine.DecodeDelta(frame, d); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if d.Attempt != g.Request.Attempt {
		return nil // a late answer, or one which only says that the worker works
	}
	if len(d.Failures) > 0 {
		if slices.ContainsFunc(d.Failures, func(f engine.FailedObject) bool { return f.Index >= len(g.Request.Objects) }) {
			return engine.ContractError("the failure of a media object that there is not", nil)
		}
		g.failed = d.Failures
		return nil
	}
	if !g.accepted {
		g.accepted = true
		if err := g.tellSink(AttemptAccepted); err != nil {
			return err
		}
	}
	if d.Accepted {
		return nil
	}
	if d.Choice < 0 || d.Choice >= len(g.choices) || g.choices[d.Choice].ended {
		return engine.ContractError("tokens of a choice that there is not, or no longer", nil)
	}
	if d.Split != nil {
		g.recordSplit(d.Split)
	}
	if err := g.handleReported(d); err != nil {
		return err
	}
	d.Cached = max(d.Cached, g.legCached)
	c := &g.choices[d.Choice]
	c.ended = d.Finish != engine.NotFinished
	if c.done { // by a stop string, which the engine does not know
		return nil
	}
	if err := g.handleOutput(c, d); err != nil {
		return err
	}
	if g.openChoices == 0 && slices.ContainsFunc(g.choices, func(c choiceProgress) bool { return !c.ended }) {
		return errEnough
	}
	return nil
}

// recordSplit tells the router what the current attempt's worker has reported.
func (g *Generation) recordSplit(s *engine.SplitReport) {
	if router, ok := g.dispatcher.Router.(SplitRouter); ok {
		router.RecordSplit(g.Route.ID, g.Request.Attempt, s)
	}
}

// handleReported takes the number of cached tokens in d. It may arrive only with the end of a choice.
func (g *Generation) handleReported(d *engine.Delta) error {
	cached, news := g.report.ObserveDelta(d)
	if !news {
		return nil
	}
	if cached < engine.CachedUnknown || cached > len(g.Request.Prompt) {
		return engine.ContractError("a number of cached tokens that cannot be", nil)
	}
	g.dispatcher.Router.RecordFirstToken(g.Route.ID, g.Request.Attempt, cached)
	// Clients are told what the prefill leg had cached: the decode worker counts no blocks which came from there.
	cached = max(cached, g.legCached)
	if g.toldCached && cached == g.Cached {
		return nil
	}
	g.Cached, g.toldCached = cached, true
	return g.tellSink(AttemptReported)
}

// handleOutput takes what d continues a choice with.
func (g *Generation) handleOutput(c *choiceProgress, d *engine.Delta) error {
	if err := d.TrimDelivered(len(c.tokens), g.Request.Logprobs); err != nil {
		return err
	}
	if len(c.tokens)+len(d.Tokens) > g.Request.Stop.MaxTokens {
		return engine.ContractError("more tokens than were asked for", nil)
	}
	if len(d.Tokens) > 0 && g.firstNumerics == "" {
		g.firstNumerics = g.Numerics
	}
	g.recordOutput(g.Request.Attempt, len(d.Tokens))
	done, err := g.Sink.HandleOutput(d)
	c.tokens = append(c.tokens, d.Tokens...)
	g.delivered += len(d.Tokens)
	if done {
		c.done = true
		g.openChoices--
	}
	g.sinkErr = err
	return err
}

// tellSink tells the sink about the current attempt.
func (g *Generation) tellSink(event AttemptEvent) error {
	g.sinkErr = g.Sink.HandleAttempt(event)
	return g.sinkErr
}
