package frontend

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/internal/bounded"
	"penstock/internal/edge/api"
	"penstock/internal/edge/keys"
)

// retrySoon is the Retry-After of requests refused because of load.
const retrySoon = time.Second

// serveGeneration serves the generation endpoint of a dialect.
func (f *Frontend) serveGeneration(d apiDialect) http.HandlerFunc {
	return f.withAccounting(d, func(c *apiCall) error { return c.serveGeneration(d) })
}

// withAccounting wraps serve with the accounting of calls to an endpoint.
func (f *Frontend) withAccounting(d apiDialect, serve func(*apiCall) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &apiCall{f: f, r: r, metrics: f.metrics.unknown, endpoint: d.endpoint, started: time.Now(), record: recordOf(r.Context())}
		c.id = f.ids.claim(w.Header().Get("X-Request-Id"))
		defer f.ids.release(c.id)
		d.setRequestID(w, c.id)
		c.answer = &answerWriter{w: w, controller: http.NewResponseController(w), timeout: f.cfg.WriteTimeout, keepAlive: f.cfg.KeepAlive, refuse: d.refuse}
		defer c.answer.close()
		defer c.releaseBody()
		defer c.releaseMedia()
		defer c.leaveKey()

		f.inflight.Add(1)
		f.metrics.inflight.Inc()
		defer f.inflight.Add(-1)
		defer f.metrics.inflight.Dec()

		err := bounded.RecoverPanic(func() error { return serve(c) })
		if err != nil {
			c.answer.sendError(err)
		}
		c.recordOutcome(err)
		c.fillRecord(err)
	}
}

// apiCall is one request to a model.
type apiCall struct {
	f              *Frontend
	r              *http.Request
	id             string
	endpoint       api.Endpoint
	started        time.Time
	model          string // "" until the model is known to exist
	metrics        *modelMetrics
	answer         *answerWriter
	heldBytes      int64 // of the body budget, in bytes
	statusOverride int   // of the answer, if it differs from the outcome's

	mediaReleases []func() // releases of the prompts' media

	record     *requestRecord  // nil if requests are not recorded
	enteredKey *keys.KeyClient // to be left at the end; nil if none
}

// serveGeneration answers a generation request, or returns why not.
func (c *apiCall) serveGeneration(d apiDialect) error {
	if err := c.admitRequest(); err != nil {
		return err
	}
	ctx, cancel := c.requestContext()
	defer cancel()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	c.answer.cancelBroken = broken
	req, writer, p, spare, err := c.decodeRequest(ctx, &d)
	switch {
	case err != nil:
		return err
	case p != nil && !spare:
		return p.serve(ctx)
	}
	m, err := c.findModel(c.f.catalog.findDecodable, req.Model)
	if err != nil {
		return err
	}
	c.answer.stream = req.Stream
	c.answer.responseHead = api.Head{ID: c.id, Model: req.Model, Created: c.started.Unix()}
	c.answer.writer = writer(&c.answer.responseHead)
	gens, err := c.planGenerations(ctx, req, m, p)
	switch {
	case err == nil:
	case p != nil:
		return p.passInstead(ctx, err)
	default:
		return err
	}
	if !req.HasMedia() { // they are tokens now
		req.Messages = nil
		c.releaseBody()
	}
	if form := req.Ext.Annotations.Query; form != api.NoQuery {
		return c.answerQuery(ctx, gens, form)
	}
	err = c.generateAll(ctx, gens)
	sum := c.countTokens(gens)
	switch {
	case err == nil:
		return c.answer.finishAnswer(sum)
	case p != nil:
		return p.passInstead(ctx, err)
	}
	return err
}

// decodeRequest reads the request. It only peeks at a passthrough request. spare says that p is only the
// fallback if the request cannot be served from tokens.
func (c *apiCall) decodeRequest(ctx context.Context, d *apiDialect) (req *api.Request, writer writerFactory, p *passthroughTask, spare bool, err error) {
	_, span := c.f.deps.Tracer.Start(ctx, "decode")
	req, err = decodeBody(c, func(body []byte) (q *api.Request, err error) {
		span.SetInt("penstock.body_bytes", int64(len(body)))
		if p, err = c.passthroughOf(body, d); p != nil || err != nil {
			return nil, err
		}
		if q, writer, err = d.decode(body); err != nil {
			return nil, err
		}
		p, spare, err = c.passMedia(body, d, q)
		return q, err
	})
	span.End(err)
	return req, writer, p, spare, err
}

// planGenerations makes the prompts of the request and plans their generations. spare is the request as a
// passthrough; nil if it cannot be passed through.
func (c *apiCall) planGenerations(ctx context.Context, req *api.Request, m *servedModel, spare *passthroughTask) ([]*generationTask, error) {
	ctx, span := c.f.deps.Tracer.Start(ctx, "preprocess")
	p := &requestPlanner{call: c, req: req, model: m, spare: spare}
	gens, err := p.planRequest(ctx)
	tokens := 0
	for _, g := range gens {
		tokens += g.counts.Prompt
	}
	c.spendTokens(tokens, 0)
	span.SetText("penstock.model", m.Card.Name)
	span.SetInt("penstock.prompts", int64(len(gens)))
	span.SetInt("penstock.prompt_tokens", int64(tokens))
	span.End(err)
	return gens, err
}

// requestContext returns the request's context, bounded by RequestTimeout. It carries the request's id,
// because encoders are shared by requests.
func (c *apiCall) requestContext() (context.Context, context.CancelFunc) {
	ctx := context.WithValue(c.r.Context(), requestIDKey{}, c.id)
	limit := c.f.cfg.RequestTimeout
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit,
		fault.New(fault.Deadline, "the request took longer than %v", limit))
}

// checkCapacity refuses a request when draining or full. The request is already counted.
func (f *Frontend) checkCapacity() error {
	switch {
	case f.isDraining.Load():
		f.metrics.rejections.WithLabelValues("draining").Inc()
		return &fault.Error{Code: fault.Unavailable, Message: "this frontend is shutting down: send the request again", RetryAfter: retrySoon}
	case f.inflight.Load() > int64(f.cfg.MaxInflight):
		f.metrics.rejections.WithLabelValues("inflight").Inc()
		return &fault.Error{Code: fault.Overloaded, Message: "too many requests in progress: try again later", RetryAfter: retrySoon}
	}
	return nil
}

// generateAll runs the generations, concurrently if there are several, until all are complete or one
// has failed.
func (c *apiCall) generateAll(ctx context.Context, gens []*generationTask) error {
	if len(gens) == 1 {
		gens[0].emit = c.answer.handleEvent
		return gens[0].run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	relay := make(chan emittedEvent)
	done := make(chan error, len(gens))
	for _, g := range gens {
		ack := make(chan error, 1)
		g.emit = func(e *generationEvent) error {
			select {
			case relay <- emittedEvent{e, ack}:
				return <-ack
			case <-ctx.Done():
				return contextError(ctx)
			}
		}
		go func() { done <- bounded.RecoverPanic(func() error { return g.run(ctx) }) }()
	}
	var first error
	for left := len(gens); left > 0; {
		select {
		case r := <-relay:
			r.ack <- c.answer.handleEvent(r.event)
		case err := <-done:
			left--
			if err != nil && first == nil {
				first = err
				cancel()
			}
		}
	}
	return first
}

// emittedEvent is an event sent to the one goroutine that writes the answer.
type emittedEvent struct {
	event *generationEvent
	ack   chan<- error // has room for the result
}

// countTokens returns and counts the usage of the whole request, also if it failed or its client
// disconnected: the tokens were computed. It leaves out prompts that got no tokens.
func (c *apiCall) countTokens(gens []*generationTask) api.TokenCounts {
	var sum api.TokenCounts
	cached := 0 // as far as it is known
	for _, g := range gens {
		if g.counts.Completion > 0 {
			sum.Add(g.counts)
			cached += max(0, g.counts.Cached)
		}
	}
	c.spendTokens(0, sum.Completion)
	if c.record != nil {
		c.record.tokens = sum
	}
	m := c.metrics
	m.prompt.WithLabelValues().Add(float64(sum.Prompt))
	m.output.WithLabelValues().Add(float64(sum.Completion))
	m.cached.WithLabelValues().Add(float64(cached))
	return sum
}

// recordOutcome counts a finished request, and logs failures that operators should know.
func (c *apiCall) recordOutcome(err error) {
	status := cmp.Or(c.statusOverride, http.StatusOK)
	if err != nil {
		status = fault.CodeOf(err).Class().Status
	}
	m := c.metrics
	m.requests.WithLabelValues(c.endpoint.String(), strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(c.endpoint.String()).Observe(time.Since(c.started).Seconds())
	code := fault.CodeOf(err)
	if status < http.StatusInternalServerError || code == fault.Unimplemented {
		return // the client's error
	}
	args := []any{
		"request", c.id, "endpoint", c.endpoint.String(), "model", c.model, "status", status,
		"attempts", len(c.answer.ext.Attempts), "error", err,
	}
	if cause := errors.Unwrap(err); cause != nil {
		args = append(args, "cause", cause)
	}
	if code == fault.Internal {
		c.f.deps.Log.Error("request failed", args...)
		return
	}
	c.f.throttled.Log(c.r.Context(), slog.LevelWarn, "request not served", args...)
}
