package dispatch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/core/stall"
	"penstock/internal/bounded"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// LegsConfig says how requests are divided whose engines move KV blocks themselves. Zero fields have defaults.
type LegsConfig struct {
	// MaxAttempts is how many prefill legs are called in one attempt of a request, and in how many of its attempts a
	// decode leg may fail before the request is divided no more; 0 means 2.
	MaxAttempts int
	// PrefillWait bounds a prefill leg with the choice of its worker, and FirstTokenWait the wait for the first token of
	// a decode leg; 0 means StallTimeout. Budget bounds all prefill legs of an attempt; 0 means twice PrefillWait.
	//
	// PrefillWait is less if the router predicts a time to the first token at the prefill worker: see boundPrefill.
	// FirstTokenWait is never less: a decode engine may queue its leg until it has memory for it, of which the prediction
	// knows nothing, and a leg which is given up has the prompt computed again.
	PrefillWait, FirstTokenWait, Budget time.Duration
	// HandoffWait is how long after the end of its prefill leg an engine must have taken a decode leg; 0 means 15 s. It
	// must be shorter than engines keep blocks for which no engine has asked (vLLM: 30 s): another prompt's values are
	// where they were, and no engine notices.
	HandoffWait time.Duration
	// ReleaseWait bounds the release of a handoff; 0 means 10 s.
	ReleaseWait time.Duration
	// Outcomes counts attempts which could be divided by their "outcome": "remote" or why they were not; nil counts none.
	Outcomes *prometheus.CounterVec
}

// legPatience is how many times as long as predicted a prefill leg may take. One which takes longer is rather lost than
// slow.
const legPatience = 8

// boundPrefill returns how long a prefill leg of so many tokens may take at a worker for which d predicts a time to the
// first token; 0 if none is predicted. A first prediction may be far off, since nothing is learned before, and a leg which
// is given up teaches nothing: so it has at least the time which a prompt may take at an unknown engine. StallTimeout is
// the most.
func (r *Dispatcher) boundPrefill(d *route.Decision, tokens int) time.Duration {
	if d.TTFT <= 0 {
		return 0
	}
	return min(max(legPatience*d.TTFT, stall.UnlearnedFirstLimit(tokens)), r.StallTimeout)
}

// machineConfig returns the bounds of a machine.
func (r *Dispatcher) machineConfig(order disagg.LegOrder) disagg.LegsConfig {
	c := &r.Legs
	wait := cmp.Or(c.PrefillWait, r.StallTimeout)
	return disagg.LegsConfig{
		Order: order, MaxAttempts: min(cmp.Or(c.MaxAttempts, 2), maxLegAttempts), LocalWait: time.Second, PrefillWait: wait,
		FirstTokenWait: cmp.Or(c.FirstTokenWait, r.StallTimeout), Budget: cmp.Or(c.Budget, 2*wait),
	}
}

// legsRun is the shell of [disagg.Legs]: it serves one attempt of a generation as a prefill leg on one worker and a decode
// leg on the attempt's own. The goroutine of the attempt owns it.
//
// An engine which has taken a decode leg owns the handoff: it fetches the blocks, or frees them when the leg is
// aborted. So a handoff is released only if no engine is known to have taken its decode leg, by a decode leg of one
// token whose answer is dropped. If the engine dies, its blocks are free at the end of their lease.
//
// No engine gets a handoff which is older than HandoffWait, or of an earlier epoch of its prefill worker.
type legsRun struct {
	g       *Generation
	model   *catalog.Model
	card    *engine.Card // of the decode worker
	cfg     disagg.LegsConfig
	machine *disagg.Legs
	born    time.Time
	todo    []disagg.HandoffEffect
	prefill *prefillLeg // the last one
	// reached says that the engine of the decode leg has the handoff, and lost that the decode worker does not answer.
	reached, lost bool
}

// planLegs returns how the current attempt is divided; nil if it is not.
func (g *Generation) planLegs() *legsRun {
	m := g.Workers()
	at := slices.IndexFunc(m.Workers, func(w *catalog.Worker) bool { return w.ID == g.Decision.Worker.ID })
	if at < 0 || len(m.PrefillWorkers) == 0 || g.Request.Choices != 1 || g.Request.Stop.MaxTokens-len(g.choices[0].tokens) < 2 {
		return nil
	}
	card := m.Workers[at].Card
	order, ok := card.KVConnector.LegOrder()
	cfg := g.dispatcher.machineConfig(order)
	if !ok || card.Router || g.failedLegs >= cfg.MaxAttempts {
		return nil
	}
	return &legsRun{g: g, model: m, card: card, cfg: cfg, born: time.Now()}
}

func (r *legsRun) now() kv.Mono { return kv.Mono(time.Since(r.born)) }

// tokens returns the length of the prompt with the tokens which earlier attempts generated.
func (r *legsRun) tokens() int { return len(r.g.Request.Prompt) + len(r.g.choices[0].tokens) }

// run serves the attempt, and returns as a call of the worker does.
func (r *legsRun) run(ctx context.Context) error {
	r.machine, r.todo = disagg.StartLegs(r.now(), r.cfg, r.g.dispatcher.nextLegs(), r.tokens(), nil)
	defer r.giveUp(ctx)
	for len(r.todo) > 0 {
		e := r.todo[0]
		r.todo = r.todo[1:]
		switch e.Kind {
		case disagg.LookUpPrefix:
			d := r.decide(e.Tokens)
			r.todo = r.machine.HandlePrefix(r.now(), &d, r.todo)
		case disagg.CallPrefill:
			r.callPrefill(ctx, e.Ref)
		case disagg.CallDecode:
			if ended, err := r.callDecode(ctx, e); ended {
				return err
			}
		case disagg.CallWhole:
			r.countOutcome(e.Reason.String())
			r.g.legCached, r.g.PrefillWorker = engine.CachedUnknown, kv.Worker{}
			return r.g.callLeg(ctx, engine.LegWhole, nil, r.g.handleFrame)
		case disagg.DeliverPrefill:
			r.countOutcome("remote")
			return r.deliverPrefill()
		default:
			r.end(ctx, &e)
		}
	}
	return ctx.Err() // only a request which was cancelled has nothing to do
}

// end does what ends a leg.
func (r *legsRun) end(ctx context.Context, e *disagg.HandoffEffect) {
	switch e.Kind {
	case disagg.AbortPrefill:
		if r.prefill != nil {
			r.prefill.cancel()
		}
	case disagg.ReleaseHandoff:
		if p := r.prefill; p != nil && p.handoff != nil && !r.reached && r.isFresh(p) {
			r.release(ctx, p.handoff)
		}
	}
}

// handoffWait returns for how long a handoff is good.
func (r *legsRun) handoffWait() time.Duration {
	return cmp.Or(r.g.dispatcher.Legs.HandoffWait, 15*time.Second)
}

// isFresh reports whether the blocks of a prefill leg are surely still where its handoff says.
func (r *legsRun) isFresh(p *prefillLeg) bool {
	return r.now().Sub(p.ended) < r.handoffWait() && !isLost(r.g.dispatcher.View(), p.by)
}

// giveUp ends what still runs at the end of the attempt.
func (r *legsRun) giveUp(ctx context.Context) {
	for _, e := range r.machine.CancelLegs(nil) {
		r.end(ctx, &e)
	}
}

func (r *legsRun) countOutcome(outcome string) {
	if c := r.g.dispatcher.Legs.Outcomes; c != nil {
		c.WithLabelValues(strings.ReplaceAll(outcome, " ", "_")).Inc()
	}
}

// decide decides about a request of so many tokens.
func (r *legsRun) decide(tokens int) disagg.Decision {
	in := disagg.SplitInputs{
		Tokens: tokens, Cached: r.g.Decision.CachedTokens(tokens), BlockSize: max(1, cmp.Or(r.g.Decision.BlockSize, r.card.BlockSize)),
	}
	for _, w := range r.model.PrefillWorkers {
		if r.card.CanPair(w.Card) {
			in.PrefillWorkers++
		}
	}
	cfg := r.g.Request.Split.Apply(disagg.DefaultSplit())
	return disagg.DecideLegs(&cfg, &in)
}

// prefillLeg is a call of a prefill leg. Its fields are valid once done is closed.
type prefillLeg struct {
	ref    disagg.AttemptRef
	by     disagg.Incarnation
	cancel context.CancelFunc
	done   chan struct{}
	ended  kv.Mono // when it ended

	frames  [][]byte // which have a token or the end
	tokens  int
	cached  int
	finish  engine.Finish
	handoff *engine.Handoff
	err     error
}

// gave returns what the leg gave.
func (p *prefillLeg) gave() disagg.LegResult {
	switch {
	case p.handoff != nil:
		return disagg.GaveHandoff
	case p.finish == engine.FinishStop:
		return disagg.GaveAnswer
	}
	return disagg.GaveNothing
}

// callPrefill calls the prefill leg of ref at a worker which it chooses. It returns when the leg has ended.
func (r *legsRun) callPrefill(ctx context.Context, ref disagg.AttemptRef) {
	deadline, _ := r.machine.Deadline()
	within, cancel := context.WithTimeout(ctx, max(0, deadline.Sub(r.now())))
	d, err := r.choosePrefill(within, ref)
	if err != nil {
		cancel()
		switch {
		case ctx.Err() != nil:
			r.todo = r.machine.CancelLegs(r.todo)
		case within.Err() != nil:
			r.todo = r.machine.Tick(max(r.now(), deadline), r.todo)
		default:
			r.todo = r.machine.HandleNoPrefillWorker(ref, r.todo)
		}
		return
	}
	epoch, _ := r.g.dispatcher.View().WorkerEpoch(d.Worker.ID)
	by := disagg.Incarnation{Worker: d.Worker, Epoch: epoch}
	r.todo = r.machine.HandlePrefillPlaced(r.now(), ref, by, r.g.dispatcher.boundPrefill(&d, r.tokens()), r.todo)
	deadline, _ = r.machine.Deadline()
	within, release := context.WithTimeout(within, max(0, deadline.Sub(r.now())))
	defer release()
	running, abandon := context.WithCancelCause(within)
	p := &prefillLeg{ref: ref, by: by, cancel: cancel, done: make(chan struct{}), cached: engine.CachedUnknown}
	if r.prefill == nil {
		// The prompt is no load of the decode worker, and its first token does not say how fast that worker prefills.
		r.g.dispatcher.Router.MarkPrefilled(r.g.Route.ID, r.g.Request.Attempt, engine.CachedUnknown)
	}
	r.prefill, r.reached = p, false
	req := r.g.Request
	req.Leg, req.Hints = engine.LegPrefill, nil
	body, attempt := engine.AppendRequest(nil, &req), req.Attempt
	r.g.background.Go(func() {
		defer close(p.done)
		defer cancel()
		defer abandon(nil)
		r.runPrefill(running, p, d, attempt, body)
	})
	r.g.background.Go(func() {
		r.g.dispatcher.watchPrefillWorker(running, p.by, func() { abandon(errPrefillLost) })
	})
	<-p.done
	p.ended = r.now()
	switch {
	case ctx.Err() != nil:
		if p.handoff != nil { // it is released
			r.todo = r.machine.HandlePrefilled(r.now(), ref, p.by, disagg.GaveHandoff, 0, r.todo)
			r.todo = r.todo[:0] // the decode leg is not called
		}
		r.todo = r.machine.CancelLegs(r.todo)
	case p.err == nil:
		r.g.notePrefilled(p)
		r.todo = r.machine.HandlePrefilled(r.now(), ref, p.by, p.gave(), 0, r.todo)
	case errors.Is(context.Cause(running), errPrefillLost):
		r.todo = r.machine.HandlePrefillFailed(r.now(), ref, p.by, r.todo)
	case errors.Is(within.Err(), context.DeadlineExceeded):
		r.todo = r.machine.Tick(max(r.now(), deadline), r.todo)
	case !migrate.CanMigrate(fault.CodeOf(p.err)) && fault.CodeOf(p.err) != fault.Internal && fault.CodeOf(p.err) != fault.Unimplemented:
		r.todo = r.machine.HandleNoPrefillWorker(ref, r.todo) // the request is to blame: the decode worker says so to the client
	default:
		r.todo = r.machine.HandlePrefillFailed(r.now(), ref, p.by, r.todo)
	}
}

// choosePrefill asks the router for a prefill worker which hands over to the decode worker, and has not failed the request.
func (r *legsRun) choosePrefill(ctx context.Context, ref disagg.AttemptRef) (route.Decision, error) {
	g := r.g
	req := g.Route
	req.ID, req.Attempt, req.Role = g.Route.ID+prefillSuffix, ref.Attempt, route.PrefillWorkers
	req.Pin, req.Allowed, req.Session, req.ExpectedOutput = kv.Worker{ID: g.Route.PrefillPin}, nil, route.Session{}, 1
	lacks := g.lackedAbilities()
	req.Exclude = nil
	fits := func(w *catalog.Worker) bool {
		return r.card.CanPair(w.Card) && (lacks == nil || !lacks(w.Card))
	}
	for _, w := range r.model.PrefillWorkers {
		if !fits(w) {
			req.Exclude = append(req.Exclude, w.ID)
		}
	}
	for _, failed := range slices.Concat(r.machine.Failed(), g.failedPrefill) {
		req.Exclude = append(req.Exclude, failed.Worker.ID)
	}
	d, err := g.dispatcher.routeTraced(ctx, &req)
	if err != nil {
		return d, err
	}
	if !slices.ContainsFunc(r.model.PrefillWorkers, func(w *catalog.Worker) bool { return w.ID == d.Worker.ID && fits(w) }) {
		g.dispatcher.Router.FreeReservation(req.ID, req.Attempt, 0)
		return d, fault.New(fault.Unavailable, "worker %d, which is to compute the prompt, is no prefill worker", d.Worker.ID)
	}
	return d, nil
}

// prefillSuffix ends the ids of the reservations of prefill legs.
const prefillSuffix = " prefill"

// runPrefill runs a prefill leg at the worker which was chosen and reserved for it. body is the request of an attempt.
func (r *legsRun) runPrefill(ctx context.Context, p *prefillLeg, d route.Decision, attempt uint32, body []byte) {
	g := r.g
	id := g.Route.ID + prefillSuffix
	held := HoldReservation(g.dispatcher.Router, id, p.ref.Attempt)
	defer held.Free()
	err := CallWorker(ctx, g.dispatcher.Plane, r.cfg.PrefillWait, d, engine.MethodGenerate, body, func(frame []byte) error {
		return p.handleFrame(frame, attempt)
	})
	if p.finish != engine.NotFinished {
		g.dispatcher.Router.RecordFirstToken(id, p.ref.Attempt, p.cached)
		held.FinishAnswer(1)
		return
	}
	p.err = asUnavailable(d, err)
	if code := fault.CodeOf(p.err); ctx.Err() == nil && migrate.CanMigrate(code) {
		g.dispatcher.Router.ReportFailure(d.Worker, p.err)
		g.dispatcher.Log.Log(ctx, slog.LevelWarn, "a worker failed under a prefill leg",
			"request", g.Route.ID, "worker", uint64(d.Worker.ID), "error", p.err)
	}
}

// handleFrame handles one frame of the leg.
func (p *prefillLeg) handleFrame(frame []byte, attempt uint32) error {
	var d engine.Delta
	if err := engine.DecodeDelta(frame, &d); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	switch {
	case d.Attempt != attempt || d.Accepted || len(d.Failures) > 0:
		return nil
	case d.Choice != 0 || p.finish != engine.NotFinished:
		return engine.ContractError("more of a prefill leg than its end", nil)
	}
	if len(d.Tokens) > 0 || d.Finish != engine.NotFinished {
		p.cached = max(p.cached, d.Cached)
		p.frames = append(p.frames, slices.Clone(frame))
	}
	if p.tokens += len(d.Tokens); p.tokens > 1 || len(p.frames) > 2 {
		return engine.ContractError("more than one token of a prefill leg", nil)
	}
	if d.Handoff != nil {
		if err := d.Handoff.Validate(); err != nil {
			return engine.ContractError("a handoff that is none", err)
		}
		p.handoff = d.Handoff
	}
	p.finish = d.Finish
	return nil
}

// deliverPrefill delivers the answer of the prefill leg as that of the attempt.
func (r *legsRun) deliverPrefill() error {
	for _, frame := range r.prefill.frames {
		if err := r.g.handleFrame(frame); err != nil {
			return err
		}
	}
	return nil
}

// errPrefillLost is the cause of a leg's end when its prefill worker went away before the first token.
var errPrefillLost = errors.New("dispatch: the prefill worker of a decode leg is gone")

// isLost reports whether a prefill worker is gone, or lives in another epoch.
func isLost(v WorkerView, by disagg.Incarnation) bool {
	epoch, known := v.WorkerEpoch(by.Worker.ID)
	return !known || epoch != by.Epoch
}

// watchPrefillWorker calls lost when the worker of a prefill leg goes away, until ctx ends.
func (r *Dispatcher) watchPrefillWorker(ctx context.Context, by disagg.Incarnation, lost func()) {
	for {
		view := r.View()
		if isLost(view, by) {
			lost()
			return
		}
		select {
		case <-view.Superseded():
		case <-ctx.Done():
			return
		}
	}
}

// errHandoffOld is the cause of a decode leg's end when no engine had taken it in time.
var errHandoffOld = errors.New("dispatch: no engine took a decode leg in time")

// errFirstTokenSlow is the cause of a decode leg's end when its first token did not come in time.
var errFirstTokenSlow = errors.New("dispatch: the first token of a decode leg did not come in time")

// callDecode calls the decode leg. ended says that the attempt has ended with err; else the machine knows how it goes on.
func (r *legsRun) callDecode(ctx context.Context, e disagg.HandoffEffect) (ended bool, err error) {
	g, p := r.g, r.prefill
	if !r.isFresh(p) {
		r.todo = r.machine.HandlePrefillFailed(r.now(), e.Ref, p.by, r.todo)
		return false, nil
	}
	deadline, _ := r.machine.Deadline()
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(max(0, deadline.Sub(r.now())), func() { cancel(errFirstTokenSlow) })
	defer late.Stop()
	old := time.AfterFunc(r.handoffWait()-r.now().Sub(p.ended), func() { cancel(errHandoffOld) })
	defer old.Stop()
	waiting, stopWatch := context.WithCancel(within)
	defer stopWatch()
	g.background.Go(func() {
		g.dispatcher.watchPrefillWorker(waiting, p.by, func() { cancel(errPrefillLost) })
	})
	first := false
	err = g.callLeg(within, engine.LegDecode, p.handoff, func(frame []byte) error {
		err := g.handleFrame(frame)
		if g.accepted && !r.reached {
			r.reached = true
			old.Stop()
		}
		if !first && (g.outputTokens > 0 || g.choices[0].ended) {
			first = true
			late.Stop()
			stopWatch()
			r.todo = r.machine.HandleFirstToken(e.Ref, r.todo)
		}
		return err
	})
	why := context.Cause(within)
	slow, gone := errors.Is(why, errFirstTokenSlow), errors.Is(why, errPrefillLost)
	if errors.Is(why, errHandoffOld) {
		err = fault.New(fault.Unavailable, "worker %d took no decode leg within %v", g.Decision.Worker.ID, r.handoffWait())
	}
	code := fault.CodeOf(err)
	r.reached = r.reached || code == fault.EngineError // the engine says what it thinks of the leg
	switch {
	case first:
		r.countOutcome("remote")
		if (slow || gone) && ctx.Err() == nil { // at the moment of the first token
			err = fault.New(fault.Unavailable, "the decode leg of worker %d was given up", g.Decision.Worker.ID)
		}
		return true, err
	case ctx.Err() != nil || g.sinkErr != nil || len(g.failed) > 0:
		return true, err
	case gone:
		r.todo = r.machine.HandlePrefillFailed(r.now(), e.Ref, p.by, r.todo)
		return false, nil
	case slow:
		r.todo = r.machine.Tick(max(r.now(), deadline), r.todo)
		return false, nil
	}
	if g.failedLegs++; code == fault.EngineError || code == fault.Conflict || code == fault.TransferFailed {
		g.dispatcher.Log.Log(ctx, slog.LevelWarn, "an engine failed on a decode leg: the prompt is computed again",
			"request", g.Route.ID, "worker", uint64(g.Decision.Worker.ID), "prefill_worker", uint64(p.by.Worker.ID), "error", err)
		r.todo = r.machine.HandleDecodeFailed(r.now(), e.Ref, r.todo)
		return false, nil
	}
	// Another worker decodes: the request's next attempt has legs of its own.
	r.countOutcome("decode worker lost")
	r.lost = true
	return true, err
}

// release has a decode worker fetch what a prefill leg keeps, and drops the answer: engines free the blocks then. It
// does not matter whether it works: they are free at the end of their lease. Another engine may have fetched them
// nevertheless, and another prompt's values may be there. So the prompt is a single token: it fills no block, and nothing
// of what is fetched gets into a prefix cache.
func (r *legsRun) release(ctx context.Context, h *engine.Handoff) {
	g, to := r.g, r.g.Decision
	if r.lost {
		at := slices.IndexFunc(r.model.Workers, func(w *catalog.Worker) bool {
			return w.ID != g.Decision.Worker.ID && w.Card.KVConnector == r.card.KVConnector && !w.Card.Router
		})
		if at < 0 {
			return
		}
		to = route.Decision{Worker: kv.Worker{ID: r.model.Workers[at].ID}, Addr: r.model.Workers[at].Addr}
	}
	req := engine.Request{
		ID: g.Request.ID, Attempt: g.Request.Attempt, Model: g.Request.Model, Salt: g.Request.Salt, Prompt: []kv.Token{0},
		Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true}, Leg: engine.LegDecode, Handoff: h,
	}
	body := engine.AppendRequest(nil, &req)
	g.background.Go(func() {
		wait := cmp.Or(g.dispatcher.Legs.ReleaseWait, 10*time.Second)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
		defer cancel()
		_ = CallWorker(ctx, g.dispatcher.Plane, wait, to, engine.MethodGenerate, body, func([]byte) error { return nil })
	})
}

// callLeg calls the current attempt's worker for a leg.
func (g *Generation) callLeg(ctx context.Context, leg engine.Leg, h *engine.Handoff, recv func(frame []byte) error) error {
	g.Request.Leg, g.Request.Handoff, g.Request.Hints = leg, h, g.hintsForRouter()
	body := engine.AppendRequest(bounded.TakeBuffer(), &g.Request)
	g.Request.Leg, g.Request.Handoff = engine.LegWhole, nil
	err := g.callRouted(ctx, engine.MethodGenerate, body, recv)
	bounded.RecycleBuffer(body) // planes keep nothing of it
	return err
}
