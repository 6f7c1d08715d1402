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
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// promptTime bounds the wait for the tokens of a passthrough request. Only the choice of a worker needs
// them: without them the worker is chosen by load.
const promptTime = 2 * time.Second

// passthroughTask is a request that goes to an engine as its client wrote it. The answer is sent as the
// engine wrote it: until its first byte is sent, another worker can be tried. One goroutine uses it.
type passthroughTask struct {
	call          *apiCall
	dialect       *apiDialect
	model         *servedModel // at the request's arrival; each attempt looks up the current one
	peek          *requestPeek
	mediaRequest  *api.Request              // the decoded request if it shows media to a model whose tokenizer is here; nil otherwise
	shipsFeatures bool                      // it goes with processed media if possible
	request       engine.PassthroughRequest // of the current attempt
	route         route.Request

	// State of the current attempt.
	decision         route.Decision
	order            engine.PassthroughOrder
	prefilled        bool
	unreportedTokens int // tokens not yet reported to the router
	piece            engine.PassthroughChunk

	status      int
	contentType string // Content-Type
	body        []byte // an answer that is not a stream
	sentData    bool   // a byte is sent
	done        bool   // the answer is complete
	streamErr   error  // failure after the first byte was sent

	output, cached int // tokens
	prompt         int // prompt tokens, from the engine or the tokenizer here
	countedPrompt  int // prompt tokens already counted against the key
	lastPiece      time.Time
}

// errBroken ends the attempts of a request whose answer failed after its first byte.
var errBroken = errors.New("frontend: the answer broke, and cannot move")

// passthroughOf returns the request in body if it is passed through; nil if not, or if that is unknown.
func (c *apiCall) passthroughOf(body []byte, d *apiDialect) (*passthroughTask, error) {
	s := c.f.catalog.current.Load()
	if !s.hasOpaque {
		return nil, nil
	}
	e, err := peekRequest(body, promptFields(d.endpoint))
	if e == nil { // the API's decoder reports the error
		return nil, nil
	}
	if m := s.byName[e.model]; m == nil || !m.isOpaque() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := c.findModel(c.f.catalog.findServed, e.model)
	switch {
	case err != nil:
		return nil, err
	case !m.passesThrough(d.path):
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and they take no requests of %s themselves: use another endpoint, or name the model's files with --model-path", m.card.Name, d.path)
	case e.ext.Annotations.Query != api.NoQuery:
		return nil, fault.New(fault.Unimplemented, "'%s' needs the prompt's tokens, which only the engines of the model '%s' have: ask POST /v1/router/best_worker", api.QueryInstance, m.card.Name)
	}
	return c.newPassthrough(body, d, m, e)
}

// newPassthrough returns the task of a passthrough request.
func (c *apiCall) newPassthrough(body []byte, d *apiDialect, m *servedModel, e *requestPeek) (*passthroughTask, error) {
	p := &passthroughTask{call: c, dialect: d, model: m, peek: e, cached: engine.CachedUnknown}
	salt := kv.Salt{LoRA: m.adapter, Namespace: e.salt}
	p.request = engine.PassthroughRequest{ID: c.id, Model: m.card.Name, Salt: salt, Path: d.path, Body: body, Stream: e.stream}
	p.route = route.Request{
		ID: c.id, Model: m.card.Name, Salt: salt,
		ExpectedOutput: e.ext.ExpectedOutput, Override: e.ext.Override, Allowed: e.ext.Allowed, Priority: e.ext.Priority,
		Client: c.clientShare(),
	}
	plan := &requestPlanner{call: c, req: &api.Request{Ext: e.ext}, model: m}
	var err error
	if p.route.Pin, err = plan.pinnedWorker(); err == nil {
		p.route.Session, err = plan.sessionOf()
	}
	p.request.Hints = dispatch.EncodeHints(&p.route)
	return p, err
}

// checkAnswerable refuses the fields of nvext which only Penstock knows and which an engine's own
// answer cannot honour.
func (p *passthroughTask) checkAnswerable() error {
	e, name := p.peek, p.model.card.Name
	const refused = "'%s' is not supported for this request, which an engine of the model '%s' answers itself: %s"
	switch annotation := e.ext.Annotations.FirstAnnotation(); {
	case annotation != "":
		return fault.InvalidParam("nvext.annotations", refused, annotation, name, "leave the annotation out")
	case e.ext.WorkerFields:
		return fault.InvalidParam("nvext.extra_fields", refused, "nvext.extra_fields", name, "the header x-penstock-worker names the worker")
	case e.greedy:
		return fault.InvalidParam("nvext.greed_sampling", refused, "nvext.greed_sampling", name, "give 'temperature': 0")
	case e.extSalt != "" && e.extSalt != e.salt:
		return fault.InvalidParam("nvext.cache_salt", refused, "nvext.cache_salt", name, "give 'cache_salt' beside 'model'")
	}
	return nil
}

// reserveBody takes room for the copy of the request that each attempt sends.
func (p *passthroughTask) reserveBody() error {
	n := int64(len(p.request.Body))
	if !p.call.f.bodies.TryReserve(n) {
		return p.call.f.noMemory()
	}
	p.call.heldBytes += n
	return nil
}

// serve answers the request, or returns why not.
func (p *passthroughTask) serve(ctx context.Context) error {
	c := p.call
	if err := p.checkAnswerable(); err != nil {
		return err
	}
	if err := p.reserveBody(); err != nil {
		return err
	}
	c.answer.responseHead = api.Head{ID: c.id, Model: p.peek.model, Created: c.started.Unix()}
	if err := p.tokenizePrompt(ctx); err != nil {
		return err
	}
	return p.serveTokenized(ctx)
}

// serveTokenized answers the request, whose tokens are known as far as possible.
func (p *passthroughTask) serveTokenized(ctx context.Context) error {
	c := p.call
	c.answer.writer = passthroughWriter{p}
	err := c.f.runAttempts(ctx, p, p.route.Pin.ID != 0)
	p.countTokens()
	switch {
	case ctx.Err() != nil && err != nil:
		return contextError(ctx)
	case errors.Is(err, errBroken):
		return p.brokenError()
	case err != nil:
		return err
	}
	c.statusOverride = p.status
	if p.isStream() {
		return c.answer.sse.close()
	}
	if err := c.answer.acceptRequest(&generationEvent{decision: p.decision}); err != nil {
		return err
	}
	return c.answer.sendBody(p.status, p.contentType, p.body)
}

// brokenError is the client's error when the answer failed after its first byte.
func (p *passthroughTask) brokenError() error {
	f := api.AsFault(p.streamErr)
	code := f.Code
	switch code {
	case fault.EngineError:
		return f
	case fault.Draining: // an internal matter of the fleet
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Message: "the engine did not finish its answer, which only it can go on with: send the request again", Err: p.streamErr}
}

// passthroughWriter writes only how the engine's answer failed.
type passthroughWriter struct{ p *passthroughTask }

// Append implements api.Writer.
func (w passthroughWriter) Append(dst []byte, _ *api.Chunk) []byte { return dst }

// End implements api.Writer.
func (w passthroughWriter) End(dst []byte) []byte { return dst }

// Fail implements api.Writer.
func (w passthroughWriter) Fail(dst []byte, err error) []byte {
	return w.p.dialect.appendError(dst, w.p.call.id, err)
}

// tokenizePrompt finds the tokens of the prompt, as far as possible. It fails if the request's media are
// refused, whatever its engine would say.
func (p *passthroughTask) tokenizePrompt(ctx context.Context) error {
	ctx, span := p.call.f.deps.Tracer.Start(ctx, "preprocess")
	prompt, err := p.makePrompt(ctx)
	span.SetInt("penstock.prompt_tokens", int64(len(prompt.Tokens)))
	span.End(err)
	if err != nil && ctx.Err() == nil {
		p.call.f.throttled.Log(ctx, slog.LevelDebug, "a request is passed on without its tokens", "request", p.call.id, "model", p.model.card.Name, "error", err)
	}
	var refused *prep.RefusedError
	if errors.As(err, &refused) {
		return err
	}
	p.call.keepMedia(&prompt)
	if p.mediaRequest != nil {
		p.call.countMedia(ctx, p.mediaRequest, &prompt)
	}
	p.usePrompt(&prompt)
	return nil
}

// usePrompt takes the prompt of the request, as far as it is known.
func (p *passthroughTask) usePrompt(prompt *prep.Prompt) {
	if p.mediaRequest != nil {
		p.request.Media, p.request.Objects = prompt.Media, keysOf(prompt.Objects)
		p.mediaRequest = nil // the prompt has a copy of the media
	}
	p.prompt = len(prompt.Tokens)
	p.request.Prompt = prompt.Tokens
	p.route.Tokens, p.route.Media = prompt.Tokens, prompt.Media
}

// makePrompt returns the prompt as the model's engines see it; none if it is unknown.
func (p *passthroughTask) makePrompt(ctx context.Context) (none prep.Prompt, err error) {
	if p.peek.ext.Tokens != nil {
		return prep.Prompt{Tokens: p.peek.ext.Tokens}, nil
	}
	if p.model.encoder == nil {
		return none, nil
	}
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	if p.mediaRequest != nil {
		return p.mediaPrompt(ctx)
	}
	body := p.peek.prompt
	if promptFields(p.dialect.endpoint) == nil {
		body = p.request.Body
	}
	q, _, err := p.dialect.decode(body)
	if err != nil {
		return none, err
	}
	if !q.Endpoint.IsConversation() && len(q.Prompts) != 1 {
		return none, nil // each prompt would have its own best worker
	}
	all, err := p.model.makePrompts(ctx, q)
	if err != nil {
		return none, err
	}
	if q.HasMedia() {
		p.call.countMedia(ctx, q, &all[0])
	}
	return all[0], nil
}

// TokensDelivered implements dispatch.Task. It returns 0, because an answer cannot move after its first
// byte.
func (p *passthroughTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (p *passthroughTask) MoveKind() string { return dispatch.MoveNewRequest }

// ChooseWorker asks the router for a worker whose engine takes such requests.
func (p *passthroughTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := p.call.f.catalog.currentModel(p.model)
	req := p.route
	req.Attempt = number
	return dispatch.RouteAvoiding(ctx, p.call.f.router, &req, nil, slices.Concat(m.unfitWorkers, m.withoutPath(p.request.Path), failed))
}

// RunAttempt implements dispatch.Task.
func (p *passthroughTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	f := p.call.f
	held := dispatch.HoldReservation(f.deps.Router, p.route.ID, number)
	defer held.Free()
	p.decision, p.order, p.prefilled, p.unreportedTokens, p.body = d, engine.PassthroughOrder{}, false, 0, p.body[:0]
	p.output, p.cached, p.lastPiece = 0, engine.CachedUnknown, time.Time{}
	p.request.Attempt = number
	if err := p.call.answer.handleEvent(&generationEvent{kind: eventRouted, attempt: number, decision: d, tokens: len(p.request.Prompt)}); err != nil {
		return err
	}
	err := dispatch.CallWorker(ctx, f.deps.Plane, f.cfg.StallTimeout, d, engine.MethodPassthrough, engine.AppendPassthroughRequest(nil, &p.request), p.handleFrame)
	switch {
	case p.done:
		held.FinishAnswer(p.output)
		return nil // the answer is complete, regardless of the call's error
	case !p.sentData || ctx.Err() != nil:
		return err
	}
	p.streamErr = err
	if migrate.CanMigrate(fault.CodeOf(err)) {
		f.deps.Router.ReportFailure(d.Worker, err)
	}
	return errBroken
}

// handleFrame handles one frame of the current attempt.
func (p *passthroughTask) handleFrame(frame []byte) error {
	if err := engine.DecodePassthroughChunk(frame, &p.piece); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if p.piece.Attempt != p.request.Attempt {
		return nil // a late answer
	}
	if err := p.order.AcceptChunk(&p.piece); err != nil {
		return err
	}
	if p.piece.Accepted {
		return p.startAnswer()
	}
	return p.handlePiece()
}

// startAnswer takes the status of an answer. The headers of a stream are sent with it; the streams of
// later attempts must have the same.
func (p *passthroughTask) startAnswer() error {
	a := p.call.answer
	status, kind := p.piece.Status, p.piece.Type
	a.stream = p.request.Stream && status/100 == 2 && strings.HasPrefix(kind, "text/event-stream")
	if a.committed && !a.stream {
		return engine.ContractError("another kind of answer than the worker before", nil)
	}
	p.status, p.contentType = status, kind
	if !a.stream {
		return nil
	}
	a.contentType = kind
	return a.acceptRequest(&generationEvent{decision: p.decision})
}

// isStream reports whether the answer is a stream.
func (p *passthroughTask) isStream() bool { return p.call.answer.sse != nil }

// handlePiece takes more of the answer.
func (p *passthroughTask) handlePiece() error {
	p.recordTokens()
	if len(p.piece.Data) > 0 {
		if err := p.sendData(p.piece.Data); err != nil {
			return err
		}
	}
	if p.piece.Last {
		p.finishAnswer()
	}
	return nil
}

// sendData sends data of a stream, and keeps the data of a whole answer until its end.
func (p *passthroughTask) sendData(data []byte) error {
	a := p.call.answer
	if !p.isStream() {
		if int64(len(p.body)+len(data)) > p.call.f.cfg.MaxBodyBytes {
			return fault.New(fault.Internal, "the engine's answer is larger than %d bytes: ask for a stream", p.call.f.cfg.MaxBodyBytes)
		}
		p.body = append(p.body, data...)
		return nil
	}
	if a.firstOutput.IsZero() {
		a.firstOutput = time.Now()
	}
	if !p.sentData {
		p.sentData = true
		p.dropRequest()
	}
	return a.sse.put(data)
}

// dropRequest drops the request's body: there is no further attempt.
func (p *passthroughTask) dropRequest() {
	p.request.Body = nil
	p.call.releaseBody()
}

// recordTokens updates load and latency metrics with a piece.
func (p *passthroughTask) recordTokens() {
	router, now, fresh := p.call.f.deps.Router, time.Now(), p.piece.Tokens
	switch {
	case p.piece.Last && (!p.prefilled || p.piece.Cached != engine.CachedUnknown):
		p.prefilled = true
		router.MarkPrefilled(p.route.ID, p.request.Attempt, p.piece.Cached)
	case !p.prefilled && fresh > 0:
		p.prefilled = true
		router.RecordFirstToken(p.route.ID, p.request.Attempt, engine.CachedUnknown)
	}
	if fresh == 0 {
		return
	}
	if p.unreportedTokens += fresh; p.decision.BlockSize > 0 && p.unreportedTokens >= p.decision.BlockSize && !p.piece.Last {
		router.RecordOutput(p.route.ID, p.request.Attempt, p.unreportedTokens)
		p.unreportedTokens = 0
	}
	p.output += fresh
	if !p.isStream() {
		return // all of it arrives at once
	}
	m := p.call.metrics
	if p.lastPiece.IsZero() {
		m.firstToken.WithLabelValues().Observe(now.Sub(p.call.started).Seconds())
	} else {
		latency := m.interToken.WithLabelValues()
		for range fresh {
			latency.Observe(now.Sub(p.lastPiece).Seconds() / float64(fresh))
		}
	}
	p.lastPiece = now
}

// finishAnswer takes the engine's totals.
func (p *passthroughTask) finishAnswer() {
	p.done = true
	p.comparePrompt()
	if n := p.piece.PromptTokens; n != engine.CachedUnknown {
		p.prompt = n
	}
	if n := p.piece.OutputTokens; n != engine.CachedUnknown {
		p.output = n
	}
	if p.cached = p.piece.Cached; p.cached != engine.CachedUnknown {
		p.call.answer.recordReported(&generationEvent{attempt: p.request.Attempt, cached: p.cached})
	}
}

// countTokens counts the tokens of the answer, complete or not.
func (p *passthroughTask) countTokens() {
	c, m := p.call, p.call.metrics
	tokens := api.TokenCounts{Prompt: p.prompt, Completion: p.output, Cached: p.cached}
	if p.output == 0 && !p.done {
		tokens = api.TokenCounts{Cached: api.CachedUnknown} // nothing was computed, as far as is known
	}
	c.spendTokens(max(0, tokens.Prompt-p.countedPrompt), tokens.Completion)
	if c.record != nil {
		c.record.tokens = tokens
	}
	m.prompt.WithLabelValues().Add(float64(tokens.Prompt))
	m.output.WithLabelValues().Add(float64(tokens.Completion))
	m.cached.WithLabelValues().Add(float64(max(0, tokens.Cached)))
}
