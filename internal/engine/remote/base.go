package remote

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// Dialect translates requests and responses for one make of engine. Its methods are called for one SubRequest
// of a request at a time.
type Dialect interface {
	// BuildCall fills in the path, the headers and the body (call.Large.B) of the call for p. It returns a
	// *fault.Error that names the field which the engine does not support.
	BuildCall(p *SubRequest, call *Call) error
	// HandleEvent decodes the data of one event of the response and passes the content on to p. It returns
	// io.EOF after the last event, or a *fault.Error.
	HandleEvent(p *SubRequest, data []byte) error
}

// Config is what an adapter found out about its engine.
type Config struct {
	Spec   Spec
	Card   engine.Card
	Client *Client
	Log    *slog.Logger
	// Dialect is for Generate; nil if the engine gives no tokens.
	Dialect Dialect
	// Features is the dialect for requests with Features, each choice in a call of its own; nil if the engine
	// takes none.
	Features Dialect
	// Choices says whether one call can ask for several choices of one prompt.
	Choices ChoiceMode
	// Continuations says whether a choice may take several calls.
	Continuations Continuations
	// CachedReporting says whether the engine reports cached tokens, and PassthroughReporting whether it does
	// so in passthrough responses; ReportUnknown means the same as CachedReporting.
	CachedReporting, PassthroughReporting CachedReporting
	// NoReportRemedy is the remedy of the warning about an engine that should report cached tokens and does
	// not; "" gives no warning.
	NoReportRemedy string
	// ScrapeLoad reads the engine's load into g, which is zero; nil if the engine reports none.
	ScrapeLoad func(ctx context.Context, g *LoadGauges) error
	// CheckAlive checks that the engine answers and is still the same instance.
	CheckAlive func(ctx context.Context) error
	// CheckSame checks only that the engine is still the same instance, by a request that costs the engine
	// nothing: it is called periodically while the engine answers. nil means CheckAlive.
	CheckSame func(ctx context.Context) error
	// ListAdapters returns the LoRA adapters that the engine serves, ascending; nil if the card's adapters do
	// not change.
	ListAdapters func(ctx context.Context) ([]string, error)
	// CacheSource follows the content of the engine's cache; nil reports it as always empty.
	CacheSource CacheSource
	// Warnings are known from the start and permanent.
	Warnings []engine.Warning
	// PassthroughPaths are the paths whose client requests are passed through, ascending. UpstreamModel
	// returns the engine's name of an adapter, or of the model for ""; nil keeps names. Headers are sent with
	// each request.
	PassthroughPaths []string
	UpstreamModel    func(lora string) string
	Headers          []string
	// MediaCounting says how media token counts are compared; nil compares none.
	MediaCounting *MediaCounting
	// Salts and PassthroughSalts say what is known of cache salts for token requests, and of the cache_salt
	// of passthrough requests. SaltsRemedy is the remedy for an engine that does not isolate salts; "" means
	// a newer engine version.
	Salts, PassthroughSalts SaltSupport
	SaltsRemedy             string
	// SaltsReportRemedy says how to make the engine report cached tokens, which the proof of salts needs; ""
	// means NoReportRemedy.
	SaltsReportRemedy string
	// TakesEncodings says that the engine takes media which other engines encoded, see [Base.UseEncoders].
	TakesEncodings bool
	// ProveSalts starts the proof that the engine isolates salts with Run, not with the first request that
	// has a salt.
	ProveSalts bool
}

// ChoiceMode says how the choices of a request are divided into calls.
type ChoiceMode uint8

// The values of ChoiceMode.
const (
	// LeaderFirst makes one call for each choice: the first computes the prompt, and the others start after
	// it.
	LeaderFirst ChoiceMode = iota
	Parallel               // one call for each choice, all at once: sequences of the engine share nothing
	SingleCall             // one call, if all choices start at the same position
	// SingleCallIfSampled is SingleCall for requests that sample at random: there is one most likely token,
	// and the engine refuses to return it twice.
	SingleCallIfSampled
)

// forRequest resolves the mode for a request.
func (c ChoiceMode) forRequest(req *engine.Request) ChoiceMode {
	switch {
	case len(req.Features) > 0:
		return LeaderFirst
	case c != SingleCallIfSampled:
		return c
	case req.Sampling.Temperature > 0:
		return SingleCall
	}
	return LeaderFirst
}

// CachedReporting says how an engine reports cached tokens.
type CachedReporting uint8

// The values of CachedReporting.
const (
	ReportUnknown  CachedReporting = iota // not known yet: the first report settles it
	ReportsNonzero                        // a response without a report means 0 cached tokens
	ReportsNever
	ReportsAlways // every response has a report, also of 0: a missing one means unknown
)

// LoadGauges are an engine's own metrics of its load. Fields that it does not report stay zero.
type LoadGauges struct {
	Running, Waiting int
	// Partial says that a request whose prompt is computed may be in neither.
	Partial     bool
	Usage       float64 // share of its blocks used by sequences, 0 to 1
	Preemptions uint64
	Tokens      uint64 // prompt and output tokens computed so far, or another count of work
	// Adapters are the LoRA adapters in memory; if AdapterSlots is not 0, the ones in use now, of the AdapterSlots which
	// were used last and stay in memory.
	Adapters     []string
	AdapterSlots int
}

// Base is the common part of the adapters of engine servers; each embeds one. Create it with [New].
type Base struct {
	cfg         Config
	log         *slog.Logger
	lifecycle   *lifecycle
	health      *healthMonitor
	load        *loadTracker
	cache       *cacheTracker
	predictions *predictionCheck
	salts       *saltGuard
	// adapters are the LoRA adapters of the card as of now.
	adapters    *adapterList
	mediaCounts *mediaCounts
	nextID      atomic.Uint64
	// encoders have media encoded; nil if none do.
	encoders MediaEncoders
	counters callCounters

	mu struct {
		sync.Mutex
		cached CachedReporting
		silent int // responses without cached tokens since the last one with them
		// unfeatured counts refusals of Features.
		unfeatured incidents
	}
}

// Compile-time guards.
var (
	_ engine.Engine            = (*Base)(nil)
	_ engine.KVSource          = (*Base)(nil)
	_ engine.LoadSource        = (*Base)(nil)
	_ engine.WarningSource     = (*Base)(nil)
	_ engine.AdapterSource     = (*Base)(nil)
	_ engine.AdapterWatcher    = (*Base)(nil)
	_ engine.MediaCountWatcher = (*Base)(nil)
	_ engine.StartChecker      = (*Base)(nil)
	_ engine.PassthroughEngine = (*Base)(nil)
	_ engine.HealthWatcher     = (*Base)(nil)
)

// New returns a Base that does nothing until Run.
func New(cfg Config) (*Base, error) {
	if cfg.Dialect == nil {
		// No tokens go in or out, whether or not the model's tokenizer is known here.
		cfg.Card.Tokenizer = engine.TokenizerRef{Kind: engine.TokenizerOfEngine}
	}
	if err := cfg.Card.Validate(); err != nil {
		return nil, err
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.CacheSource == nil {
		cfg.CacheSource = noCacheSource{}
	}
	b := &Base{cfg: cfg, log: cfg.Log, lifecycle: &lifecycle{running: make(chan struct{})}}
	b.health = newHealthMonitor(cfg.Client.root.Host, b.log)
	b.load = newLoadTracker(cfg.Card.BlockSize, cfg.Card.Blocks)
	b.cache = newCacheTracker(cfg.Card.Blocks, cfg.CacheSource)
	b.cache.noteHeard = cfg.Client.noteHeard
	b.predictions = newPredictionCheck(cfg.Card.BlockSize)
	b.salts = newSaltGuard(&cfg)
	b.adapters = newAdapterList(cfg.Card.Adapters)
	b.mediaCounts = newMediaCounts()
	b.mu.cached = cfg.CachedReporting
	return b, nil
}

// Card describes the model served, with the current adapters.
func (b *Base) Card() engine.Card {
	card := b.cfg.Card
	card.Adapters, _ = b.adapters.current()
	return card
}

// Client returns the client of the engine.
func (b *Base) Client() *Client { return b.cfg.Client }

// Run follows the engine's events, load and health until ctx ends.
func (b *Base) Run(ctx context.Context) error {
	b.lifecycle.run(ctx, b.runEncoders, b.watchHealth, b.watchLoad, b.watchCache, b.watchAdapters, b.watchSalts, b.watchMediaCounts)
	b.cache.broadcaster.StopWatches()
	b.cfg.Client.Close()
	return nil
}

// Load is the engine's load: this adapter's requests, which are always up to date, and the requests of others
// according to the engine's metrics, at most a few seconds old.
func (b *Base) Load() engine.Load { return b.load.currentLoad() }

// HealthReport implements [engine.HealthSource].
func (b *Base) HealthReport() engine.HealthReport {
	s := engine.HealthReport{Live: b.health.liveness(), Remote: true, LastHeard: b.cfg.Client.lastHeard(), ProbedSince: b.health.unansweredSince()}
	b.load.fillHealth(&s)
	return s
}

// WatchHealth implements [engine.HealthWatcher].
func (b *Base) WatchHealth(ctx context.Context, changed func()) { b.health.watchLiveness(ctx, changed) }

// LoadedAdapters returns the LoRA adapters of the card that are in the engine's memory.
func (b *Base) LoadedAdapters() []string {
	names, _ := b.adapters.current()
	return b.load.loadedAdapters(names)
}

// WatchKV reports the content of the engine's cache; see [engine.KVSource].
func (b *Base) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return b.cache.watchEvents(ctx, sink)
}

// StartCall starts a call that is no generation: it waits for Run, and fails at once while the engine does
// not answer. The context that it returns ends with ctx and with the engine; done takes the call's error and
// returns the error for its caller.
func (b *Base) StartCall(ctx context.Context) (inside context.Context, done func(error) error, err error) {
	inside, leave, err := b.lifecycle.enterCall(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := b.health.downError(); err != nil {
		leave()
		return nil, nil, err
	}
	return inside, func(err error) error {
		err = callError(inside, err)
		leave()
		if fault.CodeOf(err) == fault.EngineError && ctx.Err() == nil {
			err = b.confirmEngineError(ctx, err)
		}
		b.health.noteCallError(ctx, err)
		return err
	}, nil
}

// Generate serves a request over the engine's own API; see [engine.Engine]. It appends tokens that earlier
// attempts delivered to the prompt, and reduces the limits by their number.
func (b *Base) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := b.checkSupported(req); err != nil {
		return err
	}
	inside, done, err := b.StartCall(ctx)
	if err != nil {
		return err
	}
	if err := b.admitSalt(inside, b.saltRouteOf(req), req.Salt.Namespace); err != nil {
		return done(err)
	}
	return done(b.runAttempt(inside, newAttempt(b, req, func(d *engine.Delta) error {
		if inside.Err() != nil { // drop buffered events after the end
			return inside.Err()
		}
		return sink(d)
	})))
}

// checkSupported returns an error for a request that the engine can never serve.
func (b *Base) checkSupported(req *engine.Request) error {
	card := &b.cfg.Card
	if err := card.CheckRequest(req); err != nil {
		return err
	}
	switch {
	case b.cfg.Dialect == nil:
		return fault.New(fault.Unimplemented, "the engine of %.100q takes no tokens: send it texts and conversations as they are", card.Name)
	case len(req.Media) > 0 && !card.AcceptsObjects && len(req.Features) == 0:
		return fault.InvalidParam("messages", "the engine of %.100q takes images only in the client's own request, and this one was made into tokens; set its mode to %s", card.Name, ModePassthrough)
	case req.Leg == engine.LegPrefill && card.KVConnector == "":
		return refuseLeg("the engine of %.100q keeps no KV blocks for others: set kv-connector of the engine, if it has one", card.Name)
	case req.Leg == engine.LegPrefill && req.Choices > 1:
		return refuseLeg("the engine of %.100q hands over one choice of a request, not %d", card.Name, req.Choices)
	case req.Leg == engine.LegEncode:
		return refuseLeg("the engine of %.100q encodes no media for others", card.Name)
	case req.OutputSchema != nil && isResumed(req):
		f := fault.New(fault.Unimplemented, "the engine of %.100q cannot go on in the middle of an answer that is held to a schema; ask again", card.Name)
		f.Param = engine.SchemaParam
		return f
	}
	return nil
}

// refuseLeg is the error for a leg which the engine cannot serve.
func refuseLeg(format string, args ...any) error {
	err := fault.New(fault.Unimplemented, format, args...)
	err.Param = "leg"
	return err
}

// isResumed reports whether earlier attempts delivered anything.
func isResumed(req *engine.Request) bool {
	return slices.ContainsFunc(req.Generated, func(g []kv.Token) bool { return len(g) > 0 })
}

// runAttempt makes the calls of an attempt.
func (b *Base) runAttempt(ctx context.Context, a *attempt) error {
	flight := b.load.startRequest(a)
	defer b.load.finishRequest(flight)
	a.load = flight
	defer func() {
		for _, p := range a.calls {
			b.cache.finishCall(p)
		}
	}()
	parts := a.splitIntoParts(b.cfg.Choices.forRequest(a.req))
	switch len(parts) {
	case 0:
		return a.finishAttempt()
	case 1:
		return b.runSingle(ctx, a, parts[0])
	}
	return b.runParallel(ctx, a, parts)
}

// runSingle runs an attempt of one SubRequest in the caller's goroutine.
func (b *Base) runSingle(ctx context.Context, a *attempt, p *SubRequest) error {
	for more := true; more; {
		err := b.runCall(ctx, p, a.sendAccepted, func(data []byte, more bool) error {
			return a.handleEvent(p, data, more)
		})
		if err != nil {
			return err
		}
		if more, err = p.prepareNext(); err != nil {
			return err
		}
	}
	return a.finishAttempt()
}

// handleEvent handles an event of a SubRequest, and flushes unless more is available.
func (a *attempt) handleEvent(p *SubRequest, data []byte, more bool) error {
	err := a.base.dialectFor(a.req).HandleEvent(p, data)
	if more && err == nil {
		return nil
	}
	if failed := a.flushChoices(); failed != nil {
		return failed
	}
	return err
}

// runCall makes one call of a SubRequest.
func (b *Base) runCall(ctx context.Context, p *SubRequest, accepted func() error, take func(data []byte, more bool) error) error {
	answer, err := b.sendCall(ctx, p)
	if err != nil {
		return err
	}
	defer answer.Close()
	if err := accepted(); err != nil {
		return err
	}
	return b.mapFeaturesError(p, b.readEvents(ctx, answer, take))
}

// sendCall sends the call of a SubRequest. A refusal by the engine is an error.
func (b *Base) sendCall(ctx context.Context, p *SubRequest) (*Response, error) {
	b.cache.startCall(p)
	call := &Call{ID: p.ID, Large: NewBody()}
	defer call.Large.Release()
	if err := b.dialectFor(p.Request).BuildCall(p, call); err != nil {
		return nil, err
	}
	if call.Wait == 0 {
		call.Wait = b.cfg.Client.maxSilence // servers that queue requests may do so before the header
	}
	b.counters.calls.Add(1)
	answer, err := b.cfg.Client.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	if !answer.OK() {
		defer answer.Close()
		if p.Request.Salt.LoRA != "" && answer.Status == http.StatusNotFound {
			b.adapters.requestRecheck()
		}
		return nil, b.mapFeaturesError(p, answer.RefusalError())
	}
	return answer, nil
}

// readEvents calls take with the events of a response until take returns io.EOF; more says that another event
// is available.
func (b *Base) readEvents(ctx context.Context, answer *Response, take func(data []byte, more bool) error) error {
	if strings.HasPrefix(answer.Type, "application/json") {
		return b.readWhole(ctx, answer, take)
	}
	events := NewEventReader(answer)
	defer events.Release()
	for {
		data, err := events.Next()
		switch {
		case ctx.Err() != nil:
			return ctx.Err() // the caller no longer wants the event
		case err == io.EOF:
			return nil
		case err != nil:
			return answer.ReadError(ctx, err)
		}
		switch err := take(data, events.HasBuffered()); err {
		case nil:
		case ErrEnough:
			return nil
		case io.EOF:
			answer.DrainAndClose()
			return nil
		default:
			return answer.contextError(ctx, err)
		}
	}
}

// readWhole calls take with a response that is no stream.
func (b *Base) readWhole(ctx context.Context, answer *Response, take func(data []byte, more bool) error) error {
	body, err := io.ReadAll(io.LimitReader(answer, MaxEvent+1))
	switch {
	case err != nil:
		return answer.ReadError(ctx, err)
	case len(body) > MaxEvent:
		return engine.ContractError("an answer that is too long", nil)
	}
	if err := take(body, false); err != nil && err != io.EOF && err != ErrEnough {
		return answer.contextError(ctx, err)
	}
	return nil
}

// contextError returns ctx's error if it ended, else err.
func (a *Response) contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// subEvent is sent by the goroutine of a call to the goroutine of the request: the data of an event, or the
// start or end of the call.
type subEvent struct {
	part *SubRequest
	kind subEventKind
	data []byte
	more bool // another event is available
	err  error
}

type subEventKind uint8

const (
	subAccepted subEventKind = iota
	subData
	subEnd
)

// runParallel runs an attempt of several calls. Each call has a goroutine; this one handles their events in
// sequence. The first call leads: the others are sent after its first tokens, so that they find the prompt in
// the engine's cache.
func (b *Base) runParallel(ctx context.Context, a *attempt, parts []*SubRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	items, taken := make(chan subEvent), make(chan error)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	hand := func(it subEvent) error {
		select {
		case items <- it:
		case <-ctx.Done():
			return ctx.Err()
		}
		return <-taken
	}
	led := make(chan struct{}) // closed when the others may start
	lead := sync.OnceFunc(func() { close(led) })
	if b.cfg.Choices == Parallel {
		lead()
	}
	for i, p := range parts {
		wg.Go(func() {
			if i > 0 {
				select {
				case <-led:
				case <-ctx.Done():
				}
			}
			err := b.runSubRequest(ctx, p, hand)
			_ = hand(subEvent{part: p, kind: subEnd, err: err})
		})
	}
	for left := len(parts); left > 0; {
		var it subEvent
		select {
		case it = <-items:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := it.err
		switch {
		case err != nil:
		case it.kind == subEnd:
			left--
		case it.kind == subData:
			err = a.handleEvent(it.part, it.data, it.more)
		default:
			err = a.sendAccepted()
		}
		if err != nil && err != io.EOF && err != ErrEnough {
			cancel()
			taken <- err
			return err
		}
		taken <- err
		if it.part == parts[0] && (it.kind == subEnd || it.kind == subData && parts[0].isPromptComputed()) {
			lead()
		}
	}
	return a.finishAttempt()
}

// runSubRequest makes the calls of one of several SubRequests.
func (b *Base) runSubRequest(ctx context.Context, p *SubRequest, hand func(subEvent) error) error {
	for more := true; more; {
		err := b.runCall(ctx, p,
			func() error { return hand(subEvent{part: p, kind: subAccepted}) },
			func(data []byte, more bool) error {
				return hand(subEvent{part: p, kind: subData, data: data, more: more})
			})
		if err != nil {
			return err
		}
		if more, err = p.prepareNext(); err != nil {
			return err
		}
	}
	return nil
}

// noteCachedReport records that the engine reports cached tokens.
func (b *Base) noteCachedReport() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.silent = 0
	if b.mu.cached != ReportsAlways {
		b.mu.cached = ReportsNonzero
	}
}

// cachedIfMissing returns the meaning of a response without a report of cached tokens.
func (b *Base) cachedIfMissing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.cached == ReportsNonzero {
		return 0
	}
	b.mu.silent++
	return engine.CachedUnknown
}

// cachedIfMissingPassthrough is cachedIfMissing for a passthrough response.
func (b *Base) cachedIfMissingPassthrough() int {
	switch b.cfg.PassthroughReporting {
	case ReportUnknown:
		return b.cachedIfMissing()
	case ReportsNonzero:
		return 0
	}
	return engine.CachedUnknown
}

// missingReportLimit is the number of consecutive responses without cached tokens that triggers a warning.
const missingReportLimit = 3

// noReportWarnings warns of an engine that does not report cached tokens.
func (b *Base) noReportWarnings() []engine.Warning {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.NoReportRemedy == "" || b.mu.silent < missingReportLimit {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnNoCachedTokens, Remedy: b.cfg.NoReportRemedy,
		Detail: "the engine does not report cached tokens: what is predicted cannot be checked",
	}}
}

// Warnings returns the current warnings.
func (b *Base) Warnings() []engine.Warning {
	out := append([]engine.Warning(nil), b.cfg.Warnings...)
	switch err := b.health.downError(); {
	case errors.Is(err, errDifferentEngine):
		out = append(out, engine.Warning{
			Code: engine.WarnUnreachable, Detail: "the engine at " + b.health.host + " is not the one that it was",
			Remedy: "if it is not opened again by itself, start this worker again",
		})
	case err != nil:
		out = append(out, engine.Warning{
			Code: engine.WarnUnreachable, Detail: "the engine at " + b.health.host + " does not answer",
			Remedy: "see whether it runs, and whether this machine reaches it",
		})
	}
	out = append(out, b.noReportWarnings()...)
	out = append(out, b.featureWarnings()...)
	out = append(out, b.saltWarnings()...)
	out = append(out, b.mediaCounts.countWarnings()...)
	out = append(out, b.load.loadWarnings()...)
	out = append(out, b.cache.cacheWarnings()...)
	return append(out, b.predictions.predictionWarnings(b.cache.nothingStored())...)
}

// upstreamModel returns the engine's name of an adapter, or of the model for "".
func (b *Base) upstreamModel(lora string) string {
	if b.cfg.UpstreamModel != nil {
		return b.cfg.UpstreamModel(lora)
	}
	return cmp.Or(lora, b.cfg.Card.Name)
}

// newRequestID returns a unique name for an upstream request.
func (b *Base) newRequestID(req *engine.Request) string {
	return cmp.Or(sanitizeHeader(req.ID), "penstock") + "-" + formatBase36(uint64(req.Attempt)) + "-" + formatBase36(b.nextID.Add(1))
}
