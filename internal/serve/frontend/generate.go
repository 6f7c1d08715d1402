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
	"penstock/internal/dispatch"
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
		c.id = f.ids.Claim(w.Header().Get("X-Request-Id"))
		defer f.ids.Release(c.id)
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
	mediaCounted  bool     // in the metrics

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
	req, err := c.decodeRequest(ctx, &d)
	if err != nil {
		return err
	}
	return req.serve(ctx)
}

// generationRequest is a request that was read: a [typedRequest], an [opaqueRequest] or a [mediaRequest].
// Which of them it is, is decided once, when it is read.
type generationRequest interface {
	// serve answers the request, or returns why not.
	serve(ctx context.Context) error
}

// decodeRequest reads the request, and decides how it is served.
func (c *apiCall) decodeRequest(ctx context.Context, d *apiDialect) (generationRequest, error) {
	_, span := c.f.deps.Tracer.Start(ctx, "decode")
	req, err := decodeBody(c, func(body []byte) (generationRequest, error) {
		span.SetInt("penstock.body_bytes", int64(len(body)))
		if p, err := c.decodeOpaque(body, d); p != nil || err != nil {
			return p, err
		}
		return c.decodeTyped(body, d)
	})
	span.End(err)
	return req, err
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
		return c.generate(ctx, gens[0])
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan emittedEvent)
	done := make(chan error, len(gens))
	for _, g := range gens {
		ack := make(chan error, 1)
		g.emit = func(event dispatch.AttemptEvent, g *generationTask) error {
			select {
			case events <- emittedEvent{event, g, ack}:
				return <-ack
			case <-ctx.Done():
				return contextError(ctx)
			}
		}
		go func() { done <- bounded.RecoverPanic(func() error { return c.generate(ctx, g) }) }()
	}
	var first error
	for left := len(gens); left > 0; {
		select {
		case e := <-events:
			e.ack <- c.answer.handleEvent(e.event, e.from)
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

// generate runs one generation.
func (c *apiCall) generate(ctx context.Context, g *generationTask) error {
	return g.clientGuideError(c.f.dispatcher.Generate(ctx, &g.Generation, max(g.firstAttempt, 1)))
}

// emittedEvent is an event sent to the one goroutine that writes the answer.
type emittedEvent struct {
	event dispatch.AttemptEvent
	from  *generationTask
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
	c.recordUsage(sum, cached)
	c.spendTokens(0, sum.Completion)
	return sum
}

// recordUsage records the tokens of an answer, complete or not; cached is what is known of them.
func (c *apiCall) recordUsage(tokens api.TokenCounts, cached int) {
	if c.record != nil {
		c.record.tokens = tokens
	}
	m := c.metrics
	m.prompt.WithLabelValues().Add(float64(tokens.Prompt))
	m.output.WithLabelValues().Add(float64(tokens.Completion))
	m.cached.WithLabelValues().Add(float64(cached))
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
