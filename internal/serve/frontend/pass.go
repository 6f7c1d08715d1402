package frontend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// promptTime bounds the wait for the tokens of a passthrough request. Only the choice of a worker needs
// them: without them the worker is chosen by load.
const promptTime = 2 * time.Second

// passthroughTask is a request that goes to an engine as its client wrote it. The answer is sent as the
// engine wrote it: until its first byte is sent, another worker can be tried. One goroutine uses it.
type passing struct {
	c        *call
	d        *dialect
	model    *model // at the request's arrival; each attempt looks up the current one
	envelope *envelope
	shown    *api.Request       // the decoded request if it shows media to a model whose tokenizer is here; nil otherwise
	ships    bool               // it goes with processed media if possible
	request  engine.PassRequest // of the current attempt
	route    route.Request

	// State of the current attempt.
	decision  route.Decision
	order     engine.PassOrder
	prefilled bool
	grown     int // tokens not yet reported to the router
	piece     engine.PassPiece

	status int
	kind   string // Content-Type
	whole  []byte // an answer that is not a stream
	out    bool   // a byte is sent
	done   bool   // the answer is complete
	broken error  // failure after the first byte was sent

	output, cached int // tokens
	prompt         int // prompt tokens, from the engine or the tokenizer here
	spent          int // prompt tokens already counted against the key
	last           time.Time
}

// errBroken ends the attempts of a request whose answer failed after its first byte.
var errBroken = errors.New("frontend: the answer broke, and cannot move")

// passthroughOf returns the request in body if it is passed through; nil if not, or if that is unknown.
func (c *call) passing(body []byte, d *dialect) (*passing, error) {
	s := c.f.catalog.snap.Load()
	if !s.opaque {
		return nil, nil
	}
	e, err := openEnvelope(body, promptFields(d.endpoint))
	if e == nil { // the API's decoder reports the error
		return nil, nil
	}
	if m := s.names[e.model]; m == nil || !m.opaque() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := c.find(c.f.catalog.named, e.model)
	switch {
	case err != nil:
		return nil, err
	case !m.passes(d.path):
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and they take no requests of %s themselves: use another endpoint, or name the model's files with --model-path", m.card.Name, d.path)
	case e.ext.Annotations.Query != api.NoQuery:
		return nil, fault.New(fault.Unimplemented, "'%s' needs the prompt's tokens, which only the engines of the model '%s' have: ask POST /v1/router/best_worker", api.QueryInstance, m.card.Name)
	}
	return c.pass(body, d, m, e)
}

// newPassthrough returns the task of a passthrough request.
func (c *call) pass(body []byte, d *dialect, m *model, e *envelope) (*passing, error) {
	p := &passing{c: c, d: d, model: m, envelope: e, cached: engine.CachedUnknown}
	salt := kv.Salt{LoRA: m.adapter, Namespace: e.salt}
	p.request = engine.PassRequest{ID: c.id, Model: m.card.Name, Salt: salt, Path: d.path, Body: body, Stream: e.stream}
	p.route = route.Request{
		ID: c.id, Model: m.card.Name, Salt: salt,
		ExpectedOutput: e.ext.ExpectedOutput, Override: e.ext.Override, Allowed: e.ext.Allowed, Priority: e.ext.Priority,
	}
	plan := &planner{call: c, req: &api.Request{Ext: e.ext}, model: m}
	var err error
	if p.route.Pin, err = plan.pin(); err == nil {
		p.route.Session, err = plan.session()
	}
	p.request.Hints = attempt.Hints(&p.route)
	return p, err
}

// checkAnswerable refuses the fields of nvext which only Penstock knows and which an engine's own
// answer cannot honour.
func (p *passing) answerable() error {
	e, name := p.envelope, p.model.card.Name
	const refused = "'%s' is not supported for this request, which an engine of the model '%s' answers itself: %s"
	switch annotation := e.ext.Annotations.First(); {
	case annotation != "":
		return fault.Param("nvext.annotations", refused, annotation, name, "leave the annotation out")
	case e.ext.WorkerFields:
		return fault.Param("nvext.extra_fields", refused, "nvext.extra_fields", name, "the header x-penstock-worker names the worker")
	case e.greedy:
		return fault.Param("nvext.greed_sampling", refused, "nvext.greed_sampling", name, "give 'temperature': 0")
	case e.extSalt != "" && e.extSalt != e.salt:
		return fault.Param("nvext.cache_salt", refused, "nvext.cache_salt", name, "give 'cache_salt' beside 'model'")
	}
	return nil
}

// reserveBody takes room for the copy of the request that each attempt sends.
func (p *passing) reserve() error {
	n := int64(len(p.request.Body))
	if !p.c.f.bodies.Take(n) {
		return p.c.f.noMemory()
	}
	p.c.held += n
	return nil
}

// serve answers the request, or returns why not.
func (p *passing) serve(ctx context.Context) error {
	c := p.c
	if err := p.answerable(); err != nil {
		return err
	}
	if err := p.reserve(); err != nil {
		return err
	}
	c.answer.head = api.Head{ID: c.id, Model: p.envelope.model, Created: c.started.Unix()}
	if err := p.tokenize(ctx); err != nil {
		return err
	}
	return p.begun(ctx)
}

// serveTokenized answers the request, whose tokens are known as far as possible.
func (p *passing) begun(ctx context.Context) error {
	c := p.c
	c.answer.writer = passedWriter{p}
	err := c.f.attempts(ctx, p, p.route.Pin.ID != 0)
	p.count()
	switch {
	case ctx.Err() != nil && err != nil:
		return ended(ctx)
	case errors.Is(err, errBroken):
		return p.cut()
	case err != nil:
		return err
	}
	c.status = p.status
	if p.streams() {
		return c.answer.out.close()
	}
	if err := c.answer.accept(&event{decision: p.decision}); err != nil {
		return err
	}
	return c.answer.wholeOf(p.status, p.kind, p.whole)
}

// brokenError is the client's error when the answer failed after its first byte.
func (p *passing) cut() error {
	f := api.Fault(p.broken)
	code := f.Code
	switch code {
	case fault.EngineError:
		return f
	case fault.Draining: // an internal matter of the fleet
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Message: "the engine did not finish its answer, which only it can go on with: send the request again", Err: p.broken}
}

// passthroughWriter writes only how the engine's answer failed.
type passedWriter struct{ p *passing }

// Append implements api.Writer.
func (w passedWriter) Append(dst []byte, _ *api.Chunk) []byte { return dst }

// End implements api.Writer.
func (w passedWriter) End(dst []byte) []byte { return dst }

// Fail implements api.Writer.
func (w passedWriter) Fail(dst []byte, err error) []byte { return w.p.d.broke(dst, w.p.c.id, err) }

// tokenizePrompt finds the tokens of the prompt, as far as possible. It fails if the request's media are
// refused, whatever its engine would say.
func (p *passing) tokenize(ctx context.Context) error {
	ctx, span := p.c.f.deps.Tracer.Start(ctx, "preprocess")
	prompt, err := p.tokens(ctx)
	span.Int("penstock.prompt_tokens", int64(len(prompt.Tokens)))
	span.End(err)
	if err != nil && ctx.Err() == nil {
		p.c.f.throttled.Log(ctx, slog.LevelDebug, "a request is passed on without its tokens", "request", p.c.id, "model", p.model.card.Name, "error", err)
	}
	var refused *prep.Refused
	if errors.As(err, &refused) {
		return err
	}
	p.c.borrow(&prompt)
	if p.shown != nil {
		p.c.shows(ctx, p.shown, &prompt)
	}
	p.adopt(&prompt)
	return nil
}

// usePrompt takes the prompt of the request, as far as it is known.
func (p *passing) adopt(prompt *prep.Prompt) {
	if p.shown != nil {
		p.request.Media, p.request.Objects = prompt.Media, keysOf(prompt.Objects)
		p.shown = nil // the prompt has a copy of the media
	}
	p.prompt = len(prompt.Tokens)
	p.request.Prompt = prompt.Tokens
	p.route.Tokens, p.route.Media = prompt.Tokens, prompt.Media
}

// makePrompt returns the prompt as the model's engines see it; none if it is unknown.
func (p *passing) tokens(ctx context.Context) (none prep.Prompt, err error) {
	if p.envelope.ext.Tokens != nil {
		return prep.Prompt{Tokens: p.envelope.ext.Tokens}, nil
	}
	if p.model.encoder == nil {
		return none, nil
	}
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	if p.shown != nil {
		return p.mediaTokens(ctx)
	}
	body := p.envelope.prompt
	if promptFields(p.d.endpoint) == nil {
		body = p.request.Body
	}
	q, _, err := p.d.decode(body)
	if err != nil {
		return none, err
	}
	if !q.Endpoint.Talks() && len(q.Prompts) != 1 {
		return none, nil // each prompt would have its own best worker
	}
	all, err := p.model.prompts(ctx, q)
	if err != nil {
		return none, err
	}
	if q.HasMedia() {
		p.c.shows(ctx, q, &all[0])
	}
	return all[0], nil
}

// TokensDelivered implements dispatch.Task. It returns 0, because an answer cannot move after its first
// byte.
func (p *passing) Tokens() int { return 0 }

// MoveKind implements dispatch.Task.
func (p *passing) Kind() string { return attempt.NewRequest }

// ChooseWorker asks the router for a worker whose engine takes such requests.
func (p *passing) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := p.c.f.catalog.current(p.model)
	req := p.route
	req.Attempt = number
	return attempt.Route(ctx, p.c.f.decides, &req, nil, slices.Concat(m.unfit, m.without(p.request.Path), failed))
}

// RunAttempt implements dispatch.Task.
func (p *passing) Try(ctx context.Context, number uint32, d route.Decision) error {
	f := p.c.f
	defer attempt.Hold(f.deps.Router, p.route.ID, number)()
	p.decision, p.order, p.prefilled, p.grown, p.whole = d, engine.PassOrder{}, false, 0, p.whole[:0]
	p.output, p.cached, p.last = 0, engine.CachedUnknown, time.Time{}
	p.request.Attempt = number
	if err := p.c.answer.take(&event{kind: routed, attempt: number, decision: d, tokens: len(p.request.Prompt)}); err != nil {
		return err
	}
	err := attempt.Call(ctx, f.deps.Plane, f.cfg.StallTimeout, d, engine.MethodPass, engine.AppendPassRequest(nil, &p.request), p.take)
	switch {
	case p.done:
		return nil // the answer is complete, regardless of the call's error
	case !p.out || ctx.Err() != nil:
		return err
	}
	p.broken = err
	if migrate.Movable(fault.Of(err)) {
		f.deps.Router.Failed(d.Worker, err)
	}
	return errBroken
}

// handleFrame handles one frame of the current attempt.
func (p *passing) take(frame []byte) error {
	if err := engine.DecodePassPiece(frame, &p.piece); err != nil {
		return engine.Broken("a frame that cannot be read", err)
	}
	if p.piece.Attempt != p.request.Attempt {
		return nil // a late answer
	}
	if err := p.order.Take(&p.piece); err != nil {
		return err
	}
	if p.piece.Accepted {
		return p.begin()
	}
	return p.extend()
}

// startAnswer takes the status of an answer. The headers of a stream are sent with it; the streams of
// later attempts must have the same.
func (p *passing) begin() error {
	a := p.c.answer
	status, kind := p.piece.Status, p.piece.Type
	a.stream = p.request.Stream && status/100 == 2 && strings.HasPrefix(kind, "text/event-stream")
	if a.committed && !a.stream {
		return engine.Broken("another kind of answer than the worker before", nil)
	}
	p.status, p.kind = status, kind
	if !a.stream {
		return nil
	}
	a.kind = kind
	return a.accept(&event{decision: p.decision})
}

// isStream reports whether the answer is a stream.
func (p *passing) streams() bool { return p.c.answer.out != nil }

// handlePiece takes more of the answer.
func (p *passing) extend() error {
	p.observe()
	if len(p.piece.Data) > 0 {
		if err := p.put(p.piece.Data); err != nil {
			return err
		}
	}
	if p.piece.Last {
		p.end()
	}
	return nil
}

// sendData sends data of a stream, and keeps the data of a whole answer until its end.
func (p *passing) put(data []byte) error {
	a := p.c.answer
	if !p.streams() {
		if int64(len(p.whole)+len(data)) > p.c.f.cfg.MaxBodyBytes {
			return fault.New(fault.Internal, "the engine's answer is larger than %d bytes: ask for a stream", p.c.f.cfg.MaxBodyBytes)
		}
		p.whole = append(p.whole, data...)
		return nil
	}
	if a.first.IsZero() {
		a.first = time.Now()
	}
	if !p.out {
		p.out = true
		p.letGo()
	}
	return a.out.put(data)
}

// dropRequest drops the request's body: there is no further attempt.
func (p *passing) letGo() {
	p.request.Body = nil
	p.c.release()
}

// recordTokens updates load and latency metrics with a piece.
func (p *passing) observe() {
	router, now, fresh := p.c.f.deps.Router, time.Now(), p.piece.Tokens
	switch {
	case p.piece.Last && (!p.prefilled || p.piece.Cached != engine.CachedUnknown):
		p.prefilled = true
		router.Prefilled(p.route.ID, p.request.Attempt, p.piece.Cached)
	case !p.prefilled && fresh > 0:
		p.prefilled = true
		router.Prefilled(p.route.ID, p.request.Attempt, engine.CachedUnknown)
	}
	if fresh == 0 {
		return
	}
	if p.grown += fresh; p.decision.BlockSize > 0 && p.grown >= p.decision.BlockSize && !p.piece.Last {
		router.Grown(p.route.ID, p.request.Attempt, p.grown)
		p.grown = 0
	}
	p.output += fresh
	if !p.streams() {
		return // all of it arrives at once
	}
	m := p.c.metrics
	if p.last.IsZero() {
		m.firstToken.WithLabelValues().Observe(now.Sub(p.c.started).Seconds())
	} else {
		latency := m.interToken.WithLabelValues()
		for range fresh {
			latency.Observe(now.Sub(p.last).Seconds() / float64(fresh))
		}
	}
	p.last = now
}

// finishAnswer takes the engine's totals.
func (p *passing) end() {
	p.done = true
	p.compare()
	if n := p.piece.PromptTokens; n != engine.CachedUnknown {
		p.prompt = n
	}
	if n := p.piece.OutputTokens; n != engine.CachedUnknown {
		p.output = n
	}
	if p.cached = p.piece.Cached; p.cached != engine.CachedUnknown {
		p.c.answer.reported(&event{attempt: p.request.Attempt, cached: p.cached})
	}
}

// countTokens counts the tokens of the answer, complete or not.
func (p *passing) count() {
	c, m := p.c, p.c.metrics
	tokens := api.TokenCounts{Prompt: p.prompt, Completion: p.output, Cached: p.cached}
	if p.output == 0 && !p.done {
		tokens = api.TokenCounts{Cached: api.CachedUnknown} // nothing was computed, as far as is known
	}
	c.spend(max(0, tokens.Prompt-p.spent), tokens.Completion)
	if c.visit != nil {
		c.visit.tokens = tokens
	}
	m.prompt.WithLabelValues().Add(float64(tokens.Prompt))
	m.output.WithLabelValues().Add(float64(tokens.Completion))
	m.cached.WithLabelValues().Add(float64(max(0, tokens.Cached)))
}
