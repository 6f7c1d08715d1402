package remote

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
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
	Call(p *Part, call *Call) error
	// HandleEvent decodes the data of one event of the response and passes the content on to p. It returns
	// io.EOF after the last event, or a *fault.Error.
	Event(p *Part, data []byte) error
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
	Choices Choices
	// Continuations says whether a choice may take several calls.
	Legs Legs
	// CachedReporting says whether the engine reports cached tokens, and PassthroughReporting whether it does
	// so in passthrough responses; ReportUnknown means the same as CachedReporting.
	Cached, Passed Report
	// NoReportRemedy is the remedy of the warning about an engine that should report cached tokens and does
	// not; "" gives no warning.
	NoReport string
	// ScrapeLoad reads the engine's load into g, which is zero; nil if the engine reports none.
	Scrape func(ctx context.Context, g *Gauges) error
	// CheckAlive checks that the engine answers and is still the same instance.
	Alive func(ctx context.Context) error
	// CheckSame checks only that the engine is still the same instance, by a request that costs the engine
	// nothing: it is called periodically while the engine answers. nil means CheckAlive.
	Same func(ctx context.Context) error
	// ListAdapters returns the LoRA adapters that the engine serves, ascending; nil if the card's adapters do
	// not change.
	List func(ctx context.Context) ([]string, error)
	// CacheSource follows the content of the engine's cache; nil reports it as always empty.
	Cache Source
	// Warnings are known from the start and permanent.
	Warnings []engine.Warning
	// PassthroughPaths are the paths whose client requests are passed through, ascending. UpstreamModel
	// returns the engine's name of an adapter, or of the model for ""; nil keeps names. Headers are sent with
	// each request.
	Passes  []string
	Model   func(lora string) string
	Headers []string
	// MediaCounting says how media token counts are compared; nil compares none.
	Counting *Counting
	// Salts and PassthroughSalts say what is known of cache salts for token requests, and of the cache_salt
	// of passthrough requests. SaltsRemedy is the remedy for an engine that does not isolate salts; "" means
	// a newer engine version.
	Salts, PassSalts Salts
	SaltsRemedy      string
	// SaltsReportRemedy says how to make the engine report cached tokens, which the proof of salts needs; ""
	// means NoReportRemedy.
	SaltsReport string
	// ProveSalts starts the proof that the engine isolates salts with Run, not with the first request that
	// has a salt.
	ProveSalts bool
}

// ChoiceMode says how the choices of a request are divided into calls.
type Choices uint8

// The values of ChoiceMode.
const (
	// LeaderFirst makes one call for each choice: the first computes the prompt, and the others start after
	// it.
	OneByOne Choices = iota
	Apart            // one call for each choice, all at once: sequences of the engine share nothing
	Together         // one call, if all choices start at the same position
	// SingleCallIfSampled is SingleCall for requests that sample at random: there is one most likely token,
	// and the engine refuses to return it twice.
	TogetherDrawn
)

// forRequest resolves the mode for a request.
func (c Choices) of(req *engine.Request) Choices {
	switch {
	case len(req.Features) > 0:
		return OneByOne
	case c != TogetherDrawn:
		return c
	case req.Sampling.Temperature > 0:
		return Together
	}
	return OneByOne
}

// CachedReporting says how an engine reports cached tokens.
type Report uint8

// The values of CachedReporting.
const (
	ReportUnknown Report = iota // not known yet: the first report settles it
	ReportsAll                  // a response without a report means 0 cached tokens
	ReportsNever
	ReportsEach // every response has a report, also of 0: a missing one means unknown
)

// LoadGauges are an engine's own metrics of its load. Fields that it does not report stay zero.
type Gauges struct {
	Running, Waiting int
	// Partial says that a request whose prompt is computed may be in neither.
	Partial     bool
	Usage       float64 // share of its blocks used by sequences, 0 to 1
	Preemptions uint64
	Tokens      uint64   // prompt and output tokens computed so far, or another count of work
	Adapters    []string // LoRA adapters in memory
}

// Base is the common part of the adapters of engine servers; each embeds one. Create it with [New].
type Base struct {
	cfg    Config
	log    *slog.Logger
	life   *life
	health *health
	load   *load
	cache  *cache
	ledger *ledger
	salts  *saltGuard
	// adapters are the LoRA adapters of the card as of now.
	adapters *adapters
	counts   *counts
	ids      atomic.Uint64
	stats    stats

	mu struct {
		sync.Mutex
		cached Report
		silent int // responses without cached tokens since the last one with them
		// unfeatured counts refusals of Features.
		unfeatured mishap
	}
}

// Compile-time guards.
var (
	_ engine.Engine         = (*Base)(nil)
	_ engine.KVSource       = (*Base)(nil)
	_ engine.LoadSource     = (*Base)(nil)
	_ engine.WarningSource  = (*Base)(nil)
	_ engine.AdapterSource  = (*Base)(nil)
	_ engine.AdapterWatcher = (*Base)(nil)
	_ engine.CountWatcher   = (*Base)(nil)
	_ engine.Passer         = (*Base)(nil)
	_ engine.SignWatcher    = (*Base)(nil)
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
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Cache == nil {
		cfg.Cache = nothing{}
	}
	b := &Base{cfg: cfg, log: cfg.Log, life: newLife()}
	b.health = newHealth(cfg.Client.root.Host, b.log)
	b.load = newLoad(cfg.Card.BlockSize, cfg.Card.Blocks)
	b.cache = newCache(cfg.Card.Blocks, cfg.Cache)
	b.cache.heard = cfg.Client.heard
	b.ledger = newLedger(cfg.Card.BlockSize)
	b.salts = newSaltGuard(&cfg)
	b.adapters = newAdapters(cfg.Card.Adapters)
	b.counts = newCounts()
	b.mu.cached = cfg.Cached
	return b, nil
}

// Card describes the model served, with the current adapters.
func (b *Base) Card() engine.Card {
	card := b.cfg.Card
	card.Adapters, _ = b.adapters.now()
	return card
}

// Client returns the client of the engine.
func (b *Base) Client() *Client { return b.cfg.Client }

// Run follows the engine's events, load and health until ctx ends.
func (b *Base) Run(ctx context.Context) error {
	b.life.run(ctx, b.watchHealth, b.watchLoad, b.watchCache, b.watchAdapters, b.watchSalts, b.watchCounts)
	b.cache.stop()
	b.cfg.Client.Close()
	return nil
}

// Load is the engine's load: this adapter's requests, which are always up to date, and the requests of others
// according to the engine's metrics, at most a few seconds old.
func (b *Base) Load() engine.Load { return b.load.now() }

// HealthReport implements [engine.HealthSource].
func (b *Base) Signs() engine.Signs {
	s := engine.Signs{Live: b.health.live(), Remote: true, Heard: b.cfg.Client.lastHeard(), Asked: b.health.unanswered()}
	b.load.signs(&s)
	return s
}

// WatchHealth implements [engine.HealthWatcher].
func (b *Base) WatchSigns(ctx context.Context, changed func()) { b.health.watch(ctx, changed) }

// LoadedAdapters returns the LoRA adapters of the card that are in the engine's memory.
func (b *Base) Adapters() []string {
	names, _ := b.adapters.now()
	return b.load.adapters(names)
}

// WatchKV reports the content of the engine's cache; see [engine.KVSource].
func (b *Base) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return b.cache.watch(ctx, sink)
}

// StartCall starts a call that is no generation: it waits for Run, and fails at once while the engine does
// not answer. The context that it returns ends with ctx and with the engine; done takes the call's error and
// returns the error for its caller.
func (b *Base) Enter(ctx context.Context) (inside context.Context, done func(error) error, err error) {
	inside, leave, err := b.life.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := b.health.down(); err != nil {
		leave()
		return nil, nil, err
	}
	return inside, func(err error) error {
		err = cause(inside, err)
		leave()
		if fault.Of(err) == fault.EngineError && ctx.Err() == nil {
			err = b.answersFor(ctx, err)
		}
		b.health.note(ctx, err)
		return err
	}, nil
}

// Generate serves a request over the engine's own API; see [engine.Engine]. It appends tokens that earlier
// attempts delivered to the prompt, and reduces the limits by their number.
func (b *Base) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := b.refuse(req); err != nil {
		return err
	}
	inside, done, err := b.Enter(ctx)
	if err != nil {
		return err
	}
	if err := b.admitSalt(inside, b.wayOf(req), req.Salt.Namespace); err != nil {
		return done(err)
	}
	return done(b.generate(inside, newAttempt(b, req, func(d *engine.Delta) error {
		if inside.Err() != nil { // drop buffered events after the end
			return inside.Err()
		}
		return sink(d)
	})))
}

// checkSupported returns an error for a request that the engine can never serve.
func (b *Base) refuse(req *engine.Request) error {
	card := &b.cfg.Card
	if err := card.Fits(req); err != nil {
		return err
	}
	switch {
	case b.cfg.Dialect == nil:
		return fault.New(fault.Unimplemented, "the engine of %.100q takes no tokens: send it texts and conversations as they are", card.Name)
	case len(req.Media) > 0 && !card.Attaches && len(req.Features) == 0:
		return fault.Param("messages", "the engine of %.100q takes images only in the client's own request, and this one was made into tokens; set its mode to %s", card.Name, ModePass)
	case req.Guide != nil && resumed(req):
		f := fault.New(fault.Unimplemented, "the engine of %.100q cannot go on in the middle of an answer that is held to a schema; ask again", card.Name)
		f.Param = engine.GuideParam
		return f
	}
	return nil
}

// isResumed reports whether earlier attempts delivered anything.
func resumed(req *engine.Request) bool {
	for _, g := range req.Generated {
		if len(g) > 0 {
			return true
		}
	}
	return false
}

// runAttempt makes the calls of an attempt.
func (b *Base) generate(ctx context.Context, a *attempt) error {
	flight := b.load.begin(a)
	defer b.load.end(flight)
	a.flight = flight
	defer func() {
		for _, p := range a.calls {
			b.cache.end(p)
		}
	}()
	parts := a.parts(b.cfg.Choices.of(a.req))
	switch len(parts) {
	case 0:
		return a.end()
	case 1:
		return b.alone(ctx, a, parts[0])
	}
	return b.several(ctx, a, parts)
}

// runSingle runs an attempt of one SubRequest in the caller's goroutine.
func (b *Base) alone(ctx context.Context, a *attempt, p *Part) error {
	for more := true; more; {
		err := b.leg(ctx, p, a.accept, func(data []byte, more bool) error {
			return a.event(p, data, more)
		})
		if err != nil {
			return err
		}
		if more, err = p.next(); err != nil {
			return err
		}
	}
	return a.end()
}

// handleEvent handles an event of a SubRequest, and flushes unless more is available.
func (a *attempt) event(p *Part, data []byte, more bool) error {
	err := a.b.dialect(a.req).Event(p, data)
	if more && err == nil {
		return nil
	}
	if failed := a.flush(); failed != nil {
		return failed
	}
	return err
}

// runCall makes one call of a SubRequest.
func (b *Base) leg(ctx context.Context, p *Part, accepted func() error, take func(data []byte, more bool) error) error {
	answer, err := b.open(ctx, p)
	if err != nil {
		return err
	}
	defer answer.Close()
	if err := accepted(); err != nil {
		return err
	}
	return b.featured(p, b.stream(ctx, answer, take))
}

// sendCall sends the call of a SubRequest. A refusal by the engine is an error.
func (b *Base) open(ctx context.Context, p *Part) (*Answer, error) {
	b.cache.begin(p)
	call := &Call{ID: p.ID, Large: NewBody()}
	defer call.Large.Release()
	if err := b.dialect(p.Request).Call(p, call); err != nil {
		return nil, err
	}
	if call.Wait == 0 {
		call.Wait = b.cfg.Client.silence // servers that queue requests may do so before the header
	}
	b.stats.calls.Add(1)
	answer, err := b.cfg.Client.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	if !answer.OK() {
		defer answer.Close()
		if p.Request.Salt.LoRA != "" && answer.Status == http.StatusNotFound {
			b.adapters.missing()
		}
		return nil, b.featured(p, answer.Refused())
	}
	return answer, nil
}

// readEvents calls take with the events of a response until take returns io.EOF; more says that another event
// is available.
func (b *Base) stream(ctx context.Context, answer *Answer, take func(data []byte, more bool) error) error {
	if strings.HasPrefix(answer.Type, "application/json") {
		return b.whole(ctx, answer, take)
	}
	events := NewEvents(answer)
	defer events.Release()
	for {
		data, err := events.Next()
		switch {
		case ctx.Err() != nil:
			return ctx.Err() // the caller no longer wants the event
		case err == io.EOF:
			return nil
		case err != nil:
			return answer.Broken(ctx, err)
		}
		switch err := take(data, events.More()); err {
		case nil:
		case ErrEnough:
			return nil
		case io.EOF:
			answer.Finish()
			return nil
		default:
			return answer.failed(ctx, err)
		}
	}
}

// readWhole calls take with a response that is no stream.
func (b *Base) whole(ctx context.Context, answer *Answer, take func(data []byte, more bool) error) error {
	body, err := io.ReadAll(io.LimitReader(answer, MaxEvent+1))
	switch {
	case err != nil:
		return answer.Broken(ctx, err)
	case len(body) > MaxEvent:
		return engine.Broken("an answer that is too long", nil)
	}
	if err := take(body, false); err != nil && err != io.EOF && err != ErrEnough {
		return answer.failed(ctx, err)
	}
	return nil
}

// contextError returns ctx's error if it ended, else err.
func (a *Answer) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// subEvent is sent by the goroutine of a call to the goroutine of the request: the data of an event, or the
// start or end of the call.
type item struct {
	part *Part
	kind itemKind
	data []byte
	more bool // another event is available
	err  error
}

type itemKind uint8

const (
	itemAccepted itemKind = iota
	itemEvent
	itemEnd
)

// runParallel runs an attempt of several calls. Each call has a goroutine; this one handles their events in
// sequence. The first call leads: the others are sent after its first tokens, so that they find the prompt in
// the engine's cache.
func (b *Base) several(ctx context.Context, a *attempt, parts []*Part) error {
	ctx, cancel := context.WithCancel(ctx)
	items, taken := make(chan item), make(chan error)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	hand := func(it item) error {
		select {
		case items <- it:
		case <-ctx.Done():
			return ctx.Err()
		}
		return <-taken
	}
	led := make(chan struct{}) // closed when the others may start
	lead := sync.OnceFunc(func() { close(led) })
	if b.cfg.Choices == Apart {
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
			err := b.follow(ctx, p, hand)
			_ = hand(item{part: p, kind: itemEnd, err: err})
		})
	}
	for left := len(parts); left > 0; {
		var it item
		select {
		case it = <-items:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := it.err
		switch {
		case err != nil:
		case it.kind == itemEnd:
			left--
		case it.kind == itemEvent:
			err = a.event(it.part, it.data, it.more)
		default:
			err = a.accept()
		}
		if err != nil && err != io.EOF && err != ErrEnough {
			cancel()
			taken <- err
			return err
		}
		taken <- err
		if it.part == parts[0] && (it.kind == itemEnd || it.kind == itemEvent && parts[0].begun()) {
			lead()
		}
	}
	return a.end()
}

// runSubRequest makes the calls of one of several SubRequests.
func (b *Base) follow(ctx context.Context, p *Part, hand func(item) error) error {
	for more := true; more; {
		err := b.leg(ctx, p,
			func() error { return hand(item{part: p, kind: itemAccepted}) },
			func(data []byte, more bool) error {
				return hand(item{part: p, kind: itemEvent, data: data, more: more})
			})
		if err != nil {
			return err
		}
		if more, err = p.next(); err != nil {
			return err
		}
	}
	return nil
}

// noteCachedReport records that the engine reports cached tokens.
func (b *Base) reports() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.silent = 0
	if b.mu.cached != ReportsEach {
		b.mu.cached = ReportsAll
	}
}

// cachedIfMissing returns the meaning of a response without a report of cached tokens.
func (b *Base) unreported() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.cached == ReportsAll {
		return 0
	}
	b.mu.silent++
	return engine.CachedUnknown
}

// cachedIfMissingPassthrough is cachedIfMissing for a passthrough response.
func (b *Base) unreportedPass() int {
	switch b.cfg.Passed {
	case ReportUnknown:
		return b.unreported()
	case ReportsAll:
		return 0
	}
	return engine.CachedUnknown
}

// missingReportLimit is the number of consecutive responses without cached tokens that triggers a warning.
const mute = 3

// noReportWarnings warns of an engine that does not report cached tokens.
func (b *Base) noReport() []engine.Warning {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.NoReport == "" || b.mu.silent < mute {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnNoReport, Remedy: b.cfg.NoReport,
		Detail: "the engine does not report cached tokens: what is predicted cannot be checked",
	}}
}

// Warnings returns the current warnings.
func (b *Base) Warnings() []engine.Warning {
	out := append([]engine.Warning(nil), b.cfg.Warnings...)
	switch err := b.health.down(); {
	case errors.Is(err, errAnother):
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
	out = append(out, b.noReport()...)
	out = append(out, b.noFeatures()...)
	out = append(out, b.noSalts()...)
	out = append(out, b.counts.miscounted()...)
	out = append(out, b.load.warnings()...)
	out = append(out, b.cache.warnings()...)
	return append(out, b.ledger.warnings(b.cache.silent())...)
}

// upstreamModel returns the engine's name of an adapter, or of the model for "".
func (b *Base) upstream(lora string) string {
	if b.cfg.Model != nil {
		return b.cfg.Model(lora)
	}
	return cmp.Or(lora, b.cfg.Card.Name)
}

// newRequestID returns a unique name for an upstream request.
func (b *Base) requestID(req *engine.Request) string {
	return cmp.Or(headerText(req.ID), "penstock") + "-" + itoa(uint64(req.Attempt)) + "-" + itoa(b.ids.Add(1))
}
