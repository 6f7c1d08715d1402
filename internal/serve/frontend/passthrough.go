package frontend

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// opaqueRequest is a request that goes to an engine as its client wrote it. The answer is sent as the
// engine wrote it: until its first byte is sent, another worker can be tried. One goroutine uses it.
type opaqueRequest struct {
	dispatch.Passthrough
	call    *apiCall
	dialect *apiDialect
	model   *servedModel // at the request's arrival
	peek    *requestPeek
	shown   *api.Request // the decoded request if it shows media to a model whose tokenizer is here; nil otherwise

	status      int
	contentType string // Content-Type
	body        []byte // an answer that is not a stream
	sentData    bool   // a byte is sent

	cached        int // tokens
	prompt        int // prompt tokens, from the engine or the tokenizer here
	countedPrompt int // prompt tokens already counted against the key
	lastPiece     time.Time
}

// decodeOpaque returns the request in body if only the engines of its model have the tokenizer; nil if not,
// or if that is unknown.
func (c *apiCall) decodeOpaque(body []byte, d *apiDialect) (generationRequest, error) {
	s := c.f.catalog.current.Load()
	if !s.hasOpaque {
		return nil, nil
	}
	e, err := peekRequest(body, promptFields(d.endpoint))
	if e == nil { // the API's decoder reports the error
		return nil, nil
	}
	if m := s.model(e.model); m == nil || !m.isOpaque() {
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
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and they take no requests of %s themselves: use another endpoint, or name the model's files with --model-path", m.Card.Name, d.path)
	case e.ext.Annotations.Query != api.NoQuery:
		return nil, fault.New(fault.Unimplemented, "'%s' needs the prompt's tokens, which only the engines of the model '%s' have: ask POST /v1/router/best_worker", api.QueryInstance, m.Card.Name)
	}
	return c.newOpaque(body, d, m, e)
}

// newOpaque returns a request that goes to an engine of m as it is.
func (c *apiCall) newOpaque(body []byte, d *apiDialect, m *servedModel, e *requestPeek) (*opaqueRequest, error) {
	pin, err := pinnedWorker(c.r.Header, e.ext)
	if err != nil {
		return nil, err
	}
	session, err := sessionOf(c.r.Header, e.ext)
	if err != nil {
		return nil, err
	}
	p := &opaqueRequest{call: c, dialect: d, model: m, peek: e, cached: engine.CachedUnknown}
	salt := kv.Salt{LoRA: m.adapterName(), Namespace: e.salt}
	p.Route = route.Request{
		ID: c.id, Model: m.Card.Name, Salt: salt, Pin: pin, Session: session,
		ExpectedOutput: e.ext.ExpectedOutput, Override: e.ext.Override, Allowed: e.ext.Allowed, Priority: e.ext.Priority,
		Client: c.clientShare(),
	}
	p.Request = engine.PassthroughRequest{ID: c.id, Model: m.Card.Name, Salt: salt, Path: d.path, Body: body, Stream: e.stream}
	p.Workers, p.Sink = c.f.catalog.latestWorkers(m), p
	return p, nil
}

// checkAnswerable refuses the fields of nvext which only Penstock knows and which an engine's own
// answer cannot honour.
func (p *opaqueRequest) checkAnswerable() error {
	e, name := p.peek, p.model.Card.Name
	const refused = "'%s' is not supported for this request, which an engine of the model '%s' answers itself: %s"
	switch annotation := e.ext.Annotations.FirstAnnotation(); {
	case annotation != "":
		return fault.InvalidParam("nvext.annotations", refused, annotation, name, "leave the annotation out")
	case e.ext.WorkerFields:
		return fault.InvalidParam("nvext.extra_fields", refused, "nvext.extra_fields", name, "the header x-penstock-worker names the worker")
	case e.ext.MediaFailure != api.FailRequest:
		return fault.InvalidParam("nvext.media_failure", refused, "nvext.media_failure", name, "leave it out")
	case e.greedy:
		return fault.InvalidParam("nvext.greed_sampling", refused, "nvext.greed_sampling", name, "give 'temperature': 0")
	case e.extSalt != "" && e.extSalt != e.salt:
		return fault.InvalidParam("nvext.cache_salt", refused, "nvext.cache_salt", name, "give 'cache_salt' beside 'model'")
	}
	return nil
}

// reserveBody takes room for the copy of the request that each attempt sends.
func (p *opaqueRequest) reserveBody() error {
	n := int64(len(p.Request.Body))
	if !p.call.f.bodies.TryReserve(n) {
		return p.call.f.noMemory()
	}
	p.call.heldBytes += n
	return nil
}

// serve answers the request, or returns why not.
func (p *opaqueRequest) serve(ctx context.Context) error {
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
func (p *opaqueRequest) serveTokenized(ctx context.Context) error {
	c := p.call
	c.answer.appendError = func(dst []byte, err error) []byte { return p.dialect.appendError(dst, c.id, err) }
	err := c.f.dispatcher.PassThrough(ctx, &p.Passthrough, 1)
	p.countTokens()
	if err != nil {
		return err
	}
	c.statusOverride = p.status
	if p.isStream() {
		return c.answer.sse.close()
	}
	if err := c.answer.acceptRequest(p.Decision, ""); err != nil {
		return err
	}
	return c.answer.sendBody(p.status, p.contentType, p.body)
}

// tokenizePrompt finds the tokens of the prompt, as far as possible. It fails if the request's media are
// refused, whatever its engine would say.
func (p *opaqueRequest) tokenizePrompt(ctx context.Context) error {
	ctx, span := p.call.f.deps.Tracer.Start(ctx, "preprocess")
	prompt, err := p.makePrompt(ctx)
	span.SetInt("penstock.prompt_tokens", int64(len(prompt.Tokens)))
	span.End(err)
	if err != nil && ctx.Err() == nil {
		p.call.f.throttled.Log(ctx, slog.LevelDebug, "a request is passed on without its tokens", "request", p.call.id, "model", p.model.Card.Name, "error", err)
	}
	var refused *prep.RefusedError
	if errors.As(err, &refused) {
		return err
	}
	p.call.keepMedia(&prompt)
	if p.shown != nil {
		p.call.countMedia(ctx, p.shown, &prompt)
		p.nameMedia(&prompt)
	}
	p.usePrompt(&prompt)
	return nil
}

// usePrompt takes the prompt of the request, as far as it is known.
func (p *opaqueRequest) usePrompt(prompt *prep.Prompt) {
	p.prompt = len(prompt.Tokens)
	p.Request.Prompt = prompt.Tokens
	p.Route.Tokens, p.Route.Media = prompt.Tokens, prompt.Media
}

// makePrompt returns the prompt as the model's engines see it; none if it is unknown.
func (p *opaqueRequest) makePrompt(ctx context.Context) (none prep.Prompt, err error) {
	if p.peek.ext.Tokens != nil {
		return prep.Prompt{Tokens: p.peek.ext.Tokens}, nil
	}
	if p.model.encoder == nil {
		return none, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.call.f.cfg.PromptWait)
	defer cancel()
	if p.shown != nil {
		return p.mediaPrompt(ctx)
	}
	body := p.peek.prompt
	if promptFields(p.dialect.endpoint) == nil {
		body = p.Request.Body
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

// StartAttempt implements dispatch.PassthroughSink.
func (p *opaqueRequest) StartAttempt() {
	p.body, p.cached, p.lastPiece = p.body[:0], engine.CachedUnknown, time.Time{}
	p.call.answer.recordAttempt(0, p.Request.Attempt, p.Decision, len(p.Request.Prompt))
}

// HandleChunk implements dispatch.PassthroughSink.
func (p *opaqueRequest) HandleChunk(piece *engine.PassthroughChunk) (sent bool, err error) {
	if piece.Accepted {
		return false, p.startAnswer(piece)
	}
	p.observeLatency(piece)
	if len(piece.Data) > 0 {
		err = p.sendData(piece.Data)
	}
	if piece.Last && err == nil {
		p.finishAnswer(piece)
	}
	return p.sentData, err
}

// startAnswer takes the status of an answer. The headers of a stream are sent with it; the streams of
// later attempts must have the same.
func (p *opaqueRequest) startAnswer(piece *engine.PassthroughChunk) error {
	a := p.call.answer
	status, kind := piece.Status, piece.Type
	a.stream = p.Request.Stream && status/100 == 2 && strings.HasPrefix(kind, "text/event-stream")
	if a.committed && !a.stream {
		return engine.ContractError("another kind of answer than the worker before", nil)
	}
	p.status, p.contentType = status, kind
	if !a.stream {
		return nil
	}
	a.contentType = kind
	return a.acceptRequest(p.Decision, "")
}

// isStream reports whether the answer is a stream.
func (p *opaqueRequest) isStream() bool { return p.call.answer.sse != nil }

// sendData sends data of a stream, and keeps the data of a whole answer until its end.
func (p *opaqueRequest) sendData(data []byte) error {
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
func (p *opaqueRequest) dropRequest() {
	p.Request.Body = nil
	p.call.releaseBody()
}

// observeLatency updates the latency metrics with the tokens of a piece. A whole answer arrives at once.
func (p *opaqueRequest) observeLatency(piece *engine.PassthroughChunk) {
	if piece.Tokens == 0 || !p.isStream() {
		return
	}
	m, now := p.call.metrics, time.Now()
	if p.lastPiece.IsZero() {
		m.firstToken.WithLabelValues().Observe(now.Sub(p.call.started).Seconds())
	} else {
		latency := m.interToken.WithLabelValues()
		for range piece.Tokens {
			latency.Observe(now.Sub(p.lastPiece).Seconds() / float64(piece.Tokens))
		}
	}
	p.lastPiece = now
}

// finishAnswer takes the engine's totals.
func (p *opaqueRequest) finishAnswer(piece *engine.PassthroughChunk) {
	if n := piece.PromptTokens; n != engine.CachedUnknown {
		p.comparePrompt(n)
		p.prompt = n
	}
	if p.cached = piece.Cached; p.cached != engine.CachedUnknown {
		p.call.answer.recordReported(0, p.Request.Attempt, p.cached, kv.Worker{})
	}
}

// countTokens counts the tokens of the answer, complete or not.
func (p *opaqueRequest) countTokens() {
	c := p.call
	output, complete := p.Output()
	tokens := api.TokenCounts{Prompt: p.prompt, Completion: output, Cached: p.cached}
	if output == 0 && !complete {
		tokens = api.TokenCounts{Cached: api.CachedUnknown} // nothing was computed, as far as is known
	}
	c.spendTokens(max(0, tokens.Prompt-p.countedPrompt), tokens.Completion)
	c.recordUsage(tokens, max(0, tokens.Cached))
}
