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

// Dialect is how one make of engine is asked for tokens, and what it answers. Its methods are
// called for one part at a time of each request.
type Dialect interface {
	// Call fills in the path, the headers and the body (call.Large.B) of the call that asks for
	// p. It returns a *fault.Error that names the field which the engine has no equal of.
	Call(p *Part, call *Call) error
	// Event takes the data of one event of the answer and tells p what it says. It returns
	// io.EOF after the last one, or a *fault.Error.
	Event(p *Part, data []byte) error
}

// Config is what an adapter has found out about its engine.
type Config struct {
	Spec   Spec
	Card   engine.Card
	Client *Client
	Log    *slog.Logger
	// Dialect is for Generate; nil if the engine has no tokens to give.
	Dialect Dialect
	// Features is for those requests that have some, each choice by a call of its own; nil if the engine takes none.
	Features Dialect
	// Choices says whether one call can ask for several choices of one prompt.
	Choices Choices
	// Legs says whether a choice may take several calls.
	Legs Legs
	// Cached says whether the engine reports cached tokens, and Passed whether it does in answers to requests
	// that are passed on; where that is ReportUnknown it is as Cached.
	Cached, Passed Report
	// NoReport is what to do about an engine that should report cached tokens and does not, for the warning;
	// "" is without one.
	NoReport string
	// Scrape reads the engine's load into g, which is zero; nil if it tells none.
	Scrape func(ctx context.Context, g *Gauges) error
	// Alive asks whether the engine answers, and is the one that it was.
	Alive func(ctx context.Context) error
	// Same asks only whether the engine is the one that it was, in what costs it nothing: this is asked from time to time of
	// an engine that answers. nil is Alive.
	Same func(ctx context.Context) error
	// List asks which LoRA adapters the engine serves, ascending; nil if those of the card do not change.
	List func(ctx context.Context) ([]string, error)
	// Cache follows what the engine's cache does; nil reports it as always empty.
	Cache Source
	// Warnings are known from the beginning and do not end.
	Warnings []engine.Warning
	// Passes are the paths of which clients' requests are taken as they are, ascending. Model is what the
	// engine calls an adapter, or for "" the model; nil leaves names as they are. Headers go with each.
	Passes  []string
	Model   func(lora string) string
	Headers []string
	// Salts and PassSalts say what is known of cache salts where tokens go in and out, and of the cache_salt of what is
	// passed on. SaltsRemedy is what to do about an engine that does not keep salts apart; "" is to take a newer one.
	Salts, PassSalts Salts
	SaltsRemedy      string
	// SaltsReport is how to have the engine report cached tokens, by which salts are proven; "" is NoReport.
	SaltsReport string
	// ProveSalts has the proof that the engine keeps salts apart begin with Run, and not with the first request that
	// has one.
	ProveSalts bool
}

// Choices says how the choices of a request are asked for.
type Choices uint8

// The ways.
const (
	// OneByOne is a call for each: the first computes the prompt, and the others begin when it has.
	OneByOne Choices = iota
	Apart            // a call for each, all at once: sequences of the engine share nothing
	Together         // one call, as long as all begin at the same place
	// TogetherDrawn is Together for what is drawn at random: of the most likely token there is
	// one, and the engine refuses to give it twice.
	TogetherDrawn
)

// of settles how the choices of a request are asked for.
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

// Report says what an engine tells of cached tokens.
type Report uint8

// What it tells.
const (
	ReportUnknown Report = iota // nobody knows yet: one that was seen settles it
	ReportsAll                  // an answer without them means none
	ReportsNever
	ReportsEach // every answer has them, also if they are none: one without says nothing
)

// Gauges are an engine's own account of its load. Fields that it does not tell stay zero.
type Gauges struct {
	Running, Waiting int
	// Partial says that a request whose prompt is computed may be in neither of them.
	Partial     bool
	Usage       float64 // of its blocks by sequences, 0 to 1
	Preemptions uint64
	Tokens      uint64   // of prompts and answers computed so far, or another count of its work
	Adapters    []string // LoRA adapters in memory
}

// Base is what the adapters of engines that are servers share; each embeds one. Create it with
// [New].
type Base struct {
	cfg    Config
	log    *slog.Logger
	life   *life
	health *health
	load   *load
	cache  *cache
	ledger *ledger
	salts  *saltGuard
	// adapters are those of the card, as they are now.
	adapters *adapters
	ids      atomic.Uint64
	stats    stats

	mu struct {
		sync.Mutex
		cached Report
		silent int // answers without cached tokens since the last one that had them
		// unfeatured counts refusals of what a processor made.
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
	_ engine.Passer         = (*Base)(nil)
	_ engine.SignWatcher    = (*Base)(nil)
)

// New returns a Base that does nothing until Run.
func New(cfg Config) (*Base, error) {
	if cfg.Dialect == nil {
		// Whatever there is of the model's tokenizer here, tokens neither go in nor come out.
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
	b.mu.cached = cfg.Cached
	return b, nil
}

// Card describes the model served, with the adapters that there are now.
func (b *Base) Card() engine.Card {
	card := b.cfg.Card
	card.Adapters, _ = b.adapters.now()
	return card
}

// Client returns the connection with the engine.
func (b *Base) Client() *Client { return b.cfg.Client }

// Run follows the engine's events and load, and whether it answers, until ctx ends.
func (b *Base) Run(ctx context.Context) error {
	b.life.run(ctx, b.watchHealth, b.watchLoad, b.watchCache, b.watchAdapters, b.watchSalts)
	b.cache.stop()
	b.cfg.Client.Close()
	return nil
}

// Load is the engine's load: the requests of this adapter, known at every moment, and those of
// others by the engine's own account, at most a few seconds old.
func (b *Base) Load() engine.Load { return b.load.now() }

// Signs is what the engine shows by itself of whether it works.
func (b *Base) Signs() engine.Signs {
	s := engine.Signs{Live: b.health.live(), Remote: true, Heard: b.cfg.Client.lastHeard(), Asked: b.health.unanswered()}
	b.load.signs(&s)
	return s
}

// WatchSigns implements [engine.SignWatcher].
func (b *Base) WatchSigns(ctx context.Context, changed func()) { b.health.watch(ctx, changed) }

// Adapters returns those of the card's LoRA adapters that the engine has in its memory.
func (b *Base) Adapters() []string {
	names, _ := b.adapters.now()
	return b.load.adapters(names)
}

// WatchKV reports the engine's cache, as [engine.KVSource] says.
func (b *Base) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return b.cache.watch(ctx, sink)
}

// Enter begins a call that is no generation: it waits for Run, and fails at once while the
// engine does not answer. The context that it returns ends with ctx and with the engine; done
// takes what the call ended with, and returns what its caller is told.
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

// Generate serves a request over the engine's own API, as [engine.Engine] says. Tokens that earlier
// attempts delivered are put to the end of the prompt, and the limits reduced by them.
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
		if inside.Err() != nil { // what has come already is for nobody
			return inside.Err()
		}
		return sink(d)
	})))
}

// refuse returns what the engine could never serve.
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

// resumed reports whether earlier attempts delivered anything.
func resumed(req *engine.Request) bool {
	for _, g := range req.Generated {
		if len(g) > 0 {
			return true
		}
	}
	return false
}

// generate runs the calls of an attempt.
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

// alone runs an attempt of one part in the caller's goroutine.
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

// event takes an event of a part, and hands on what was gathered unless more is at hand.
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

// leg runs one call of a part.
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

// open sends the call of a part. What the engine refuses is an error.
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

// stream hands the events of an answer to take until that returns io.EOF; more says that
// another one is at hand.
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
			return ctx.Err() // what was read before is not wanted any more
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

// whole hands an answer that is no stream to take.
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

// failed returns ctx's error if it ended, else err.
func (a *Answer) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// item is what the goroutine of a call has for the one that serves the request: the data of an
// event, or the call's beginning or end.
type item struct {
	part *Part
	kind itemKind
	data []byte
	more bool // another event is at hand
	err  error
}

type itemKind uint8

const (
	itemAccepted itemKind = iota
	itemEvent
	itemEnd
)

// several runs an attempt of several calls, each read by a goroutine of its own, whose events
// this one takes one after another. The first of them leads: the others are sent when it has its
// first tokens, so that they find the prompt in the engine's cache.
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
	led := make(chan struct{}) // closed when the others may begin
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

// follow runs the calls of one part of several.
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

// reports notes that the engine reported cached tokens, which settles whether it does.
func (b *Base) reports() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.silent = 0
	if b.mu.cached != ReportsEach {
		b.mu.cached = ReportsAll
	}
}

// unreported is what an answer without cached tokens means.
func (b *Base) unreported() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.cached == ReportsAll {
		return 0
	}
	b.mu.silent++
	return engine.CachedUnknown
}

// unreportedPass is unreported of an answer to a request that was passed on.
func (b *Base) unreportedPass() int {
	switch b.cfg.Passed {
	case ReportUnknown:
		return b.unreported()
	case ReportsAll:
		return 0
	}
	return engine.CachedUnknown
}

// mute is how many answers in a row come without cached tokens until somebody should know.
const mute = 3

// noReport warns of an engine that does not report cached tokens.
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

// Warnings returns what is wrong now.
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
	out = append(out, b.load.warnings()...)
	out = append(out, b.cache.warnings()...)
	return append(out, b.ledger.warnings(b.cache.silent())...)
}

// upstream is what the engine calls an adapter, or for "" the model.
func (b *Base) upstream(lora string) string {
	if b.cfg.Model != nil {
		return b.cfg.Model(lora)
	}
	return cmp.Or(lora, b.cfg.Card.Name)
}

// requestID returns a name for an upstream request that no other has at the same time.
func (b *Base) requestID(req *engine.Request) string {
	return cmp.Or(headerText(req.ID), "penstock") + "-" + itoa(uint64(req.Attempt)) + "-" + itoa(b.ids.Add(1))
}
