// Package sglang is the adapter of SGLang's server. Tokens go in and come out by /generate;
// clients' own requests pass through its OpenAI API. What the server is and has, its cache
// events among it, it says itself: see Open.
package sglang

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"penstock/core/enginefeed"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/zmtp"
)

// Config says which server, and what is known here of its model.
type Config = remote.Opening

// Engine is one data-parallel rank of an SGLang server.
type Engine struct {
	*remote.Base
	model  string // what the server calls it
	client *remote.Client
}

// Compile-time guards.
var (
	_ engine.Engine         = (*Engine)(nil)
	_ engine.KVSource       = (*Engine)(nil)
	_ engine.LoadSource     = (*Engine)(nil)
	_ engine.WarningSource  = (*Engine)(nil)
	_ engine.AdapterSource  = (*Engine)(nil)
	_ engine.AdapterWatcher = (*Engine)(nil)
	_ engine.Preprocessor   = (*Engine)(nil)
	_ engine.Passer         = (*Engine)(nil)
	_ remote.Dialect        = (*dialect)(nil)
)

// dialect speaks /generate.
type dialect struct {
	rank int // that requests are pinned to, -1 for none
	// salts are the fields that keep caches apart.
	salts []string
	// places are the placeholders of media, by kind; 0 for what is not given with tokens.
	places [media.Audio + 1]kv.Token
}

// defaultBlock is how many tokens a block has where the engine's pages are single tokens, which
// is how SGLang comes.
const defaultBlock = 32

// Open asks the server what it is and has, waiting while it loads its model, and returns an engine that
// does nothing until Run. What does not fit together is an error that says what to set; what makes the
// server serve worse than it could becomes a warning.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	p := &probe{cfg: &cfg, client: remote.NewClient(&cfg.Spec)}
	e, err := p.open(ctx)
	if err != nil {
		p.client.Close()
		return nil, err
	}
	return e, nil
}

// open finds out everything and makes the engine.
func (p *probe) open(ctx context.Context) (*Engine, error) {
	if err := remote.Await(ctx, &p.cfg.Spec, p.cfg.Log, p.findModel); err != nil {
		return nil, err
	}
	if err := p.findServer(ctx); err != nil {
		return nil, err
	}
	card, err := p.card()
	if err != nil {
		return nil, err
	}
	d, err := p.tokens(ctx, &card)
	if err != nil {
		return nil, err
	}
	passes, err := p.passes(ctx)
	if err != nil {
		return nil, err
	}
	p.cfg.See(&card, p.sees(ctx), "")
	p.warnings = append(p.warnings, p.cfg.Uncounted(&card, remote.RemedyUncounted)...)
	if d != nil {
		d.attach(p.cfg, &card)
	}
	source, err := p.source(&card)
	if err != nil {
		return nil, err
	}
	scrape, err := p.scraper(ctx)
	if err != nil {
		return nil, err
	}
	card.Guided = d != nil && p.server.GrammarBackend != "none"
	passed := p.passed(d != nil)
	e := &Engine{model: p.model, client: p.client}
	cfg := remote.Config{
		Spec: p.cfg.Spec, Card: card, Client: p.client, Log: p.cfg.Log, Cached: remote.ReportsEach, Passed: passed,
		NoReport: "take a newer SGLang: /generate should say meta_info.cached_tokens",
		Scrape:   scrape, Alive: p.alive, Same: p.same, List: p.lister(), Cache: source, Warnings: p.warnings, Passes: passes, Model: e.upstream,
		Headers: p.pinned(), Counting: p.counting(&card, d),
	}
	if d != nil { // a nil pointer in an interface is something
		cfg.Dialect = d
	}
	p.salts(&cfg)
	e.Base, err = remote.New(cfg)
	return e, err
}

// salts enters what is known of cache salts.
func (p *probe) salts(cfg *remote.Config) {
	cfg.ProveSalts = p.cfg.ProveSalts
	cfg.SaltsRemedy = "take SGLang 0.5.18 or later, or ask without cache_salt; its own /v1/messages takes none in any version"
	if cfg.Dialect == nil {
		cfg.SaltsReport = "start SGLang with --enable-cache-report"
	}
	if _, cfg.Salts = saltFields(p.server.Version); p.server.DisableRadixCache {
		cfg.Salts = remote.SaltsMoot
	}
	cfg.PassSalts = cfg.Salts
}

// passed is what the engine's OpenAI API says of cached tokens: nothing unless it was told to, and then
// nothing where there are none. Where that is all there is, it is warned of.
func (p *probe) passed(tokens bool) remote.Report {
	switch {
	case p.server.CacheReport:
		return remote.ReportsAll
	case !tokens && !p.server.DisableRadixCache:
		p.warn(engine.WarnNoReport, "start SGLang with --enable-cache-report", "the engine does not report cached tokens in answers to requests that are passed on: what is predicted cannot be checked")
	}
	return remote.ReportsNever
}

// upstream is what the server's OpenAI API calls the model of a request: an adapter behind the model's own
// name. By the adapter's name alone it would answer with the model.
func (e *Engine) upstream(lora string) string {
	if lora != "" {
		return e.model + ":" + lora
	}
	return e.model
}

// pinned are the headers that pin a request which is passed on to a data-parallel rank; older versions have no such
// header and pass it over.
func (p *probe) pinned() []string {
	if spec := &p.cfg.Spec; spec.Rank != remote.AnyRank && spec.Ranks > 1 {
		return []string{"X-Data-Parallel-Rank", strconv.Itoa(spec.Rank)}
	}
	return nil
}

// alive asks whether the server answers and has begun to serve, for which it generates a token, and serves the same model by
// the same version, with what was relied on of its settings.
func (p *probe) alive(ctx context.Context) error {
	if _, err := p.client.Read(ctx, &remote.Call{Method: http.MethodGet, Path: "/health"}, 1<<16); err != nil {
		return err
	}
	if err := p.same(ctx); err != nil {
		return err
	}
	now, host := probe{cfg: p.cfg, client: p.client}, p.cfg.Spec.URL.Host
	switch err := now.findServer(ctx); {
	case err != nil:
		return err
	case now.server.Version != p.server.Version: // it decides which field has the salt, and what events tell
		return remote.Another(host, "by another version of SGLang")
	case p.server.DisableRadixCache && !now.server.DisableRadixCache: // its cache must be followed, and its salts proven
		return remote.Another(host, "with other settings (the radix cache is on)")
	}
	return nil
}

// same asks, at no cost to the engine, whether the server serves the same model: it does not look at the name of the
// model in what it is asked.
func (p *probe) same(ctx context.Context) error {
	now := probe{cfg: p.cfg, client: p.client}
	switch err := now.findModel(ctx); {
	case err != nil:
		return err
	case now.model != p.model:
		return remote.Another(p.cfg.Spec.URL.Host, "another model")
	case now.length != p.length:
		return remote.Another(p.cfg.Spec.URL.Host, "another context length")
	}
	return nil
}

// card describes the model served.
func (p *probe) card() (engine.Card, error) {
	size, err := p.blockSize()
	if err != nil {
		return engine.Card{}, err
	}
	cfg := p.cfg
	card := engine.Card{
		Name: cmp.Or(cfg.Spec.Name, p.model), Engine: "sglang", BlockSize: size, Ranks: 1,
		ContextLength: cmp.Or(p.window(), cfg.ContextLength), VocabSize: cmp.Or(cfg.VocabSize, remote.UnknownVocabulary),
		EOS: cfg.EOS, Defaults: cfg.Defaults, Adapters: p.adapters, Tokenizer: cfg.Tokenizer,
		Numerics: "sglang-" + p.server.Version + "-" + p.server.ModelPath,
	}
	if card.Name != p.model {
		card.Aliases = []string{p.model}
	}
	if card.Tokenizer.Kind == "" {
		card.Tokenizer.Kind = "engine"
	}
	if card.ContextLength == 0 {
		return card, fmt.Errorf("the engine at %s does not say how long its context is; name the directory of its model with --model-path", cfg.Spec.URL.Host)
	}
	card.Blocks = max(cmp.Or(p.tokenRoom(), card.ContextLength)/size, 1)
	return card, card.Validate()
}

// blockSize returns how many tokens our blocks have: the engine's pages, or so many of them.
func (p *probe) blockSize() (int, error) {
	page, set := p.page(), p.cfg.Spec.BlockSize
	switch {
	case set == 0 && page < 2:
		return defaultBlock, nil
	case set == 0:
		return page, nil
	case page > 0 && set%page != 0:
		return 0, fmt.Errorf("block-size is %d, and the engine's pages have %d tokens: set it to a multiple of that, or leave it out", set, page)
	}
	return set, nil
}

// tokens returns what speaks tokens with the engine, nil if requests can only be passed on.
func (p *probe) tokens(ctx context.Context, card *engine.Card) (*dialect, error) {
	spec := &p.cfg.Spec
	if spec.Mode == remote.ModePass || spec.Mode == remote.ModeAuto && card.Tokenizer.Kind == "engine" {
		return nil, nil
	}
	d := &dialect{rank: -1}
	d.salts, _ = saltFields(p.server.Version)
	if spec.Ranks > 1 {
		d.rank = spec.Rank
	}
	seen, err := remote.Ask(ctx, p.client, card, d, []kv.Token{1, 2})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && seen.Tokens > 0:
		return d, nil
	case fault.Of(err) == fault.Overloaded:
		return nil, err
	case spec.Mode == remote.ModeTokens:
		return nil, fmt.Errorf("the engine at %s gives no token ids by /generate; take a newer SGLang, or set mode=%s: %w", spec.URL.Host, remote.ModePass, err)
	}
	p.warn(engine.WarnText, "take a newer SGLang", "the engine gives no token ids by /generate: requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// passes returns which of clients' requests can be passed on.
func (p *probe) passes(ctx context.Context) ([]string, error) {
	return p.client.Existing(ctx, "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
}

// source returns what follows the engine's cache: its events, else a model of it.
func (p *probe) source(card *engine.Card) (remote.Source, error) {
	if card.NoReuse = p.server.DisableRadixCache; card.NoReuse {
		p.warn(engine.WarnNoCache, "start SGLang without --disable-radix-cache", "the engine's radix cache is off: it reuses nothing")
		return nil, nil
	}
	events, err := p.eventsAt()
	if err != nil {
		return nil, err
	}
	replay, err := p.replayAt()
	if err != nil {
		return nil, err
	}
	if events.IsZero() && !p.cfg.Spec.Replay.IsZero() {
		return nil, fmt.Errorf("replay=%s is set, and the engine does not say where it publishes its cache events; set events=tcp://HOST:PORT too", p.cfg.Spec.Replay)
	}
	if !events.IsZero() {
		table := enginefeed.Config{
			BlockSize: card.BlockSize, EngineBlock: p.page(), Clears: enginefeed.ClearsAll, Capacity: card.Blocks,
			HidesAdapters: hidesAdapters(p.server.Version), ReloadForgets: true,
		}
		p.cfg.Events(&table, enginefeed.PadsOfKeys)
		return remote.EventFeed(remote.FeedConfig{
			Events: events, Replay: replay, Snapshot: p.cfg.Spec.Snapshot, Log: p.cfg.Log,
			Table: table,
		})
	}
	card.KVGuessed = true
	p.warn(engine.WarnNoEvents, p.remedyNoEvents(),
		"the engine publishes no cache events: what it has cached is guessed from the requests sent to it")
	m, err := shadow.NewBlocks(shadow.BlocksConfig{BlockSize: card.BlockSize, Capacity: card.Blocks})
	if err != nil {
		return nil, err
	}
	return remote.Shadow(m), nil
}

// remedyNoEvents says how to get the engine's cache events: of a release that does not announce where it publishes,
// both sides have to be told.
func (p *probe) remedyNoEvents() string {
	remedy := `start SGLang with --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557"}'`
	if v, ok := parseVersion(p.server.Version); ok && v.before(tellsEvents) {
		remedy += ", and name that with events=tcp://HOST:5557"
	}
	return remedy
}

// eventsAt returns where the engine publishes: what the settings say, else what it says itself.
func (p *probe) eventsAt() (zmtp.Endpoint, error) {
	ev := p.server.KVEvents
	if !p.cfg.Spec.Events.IsZero() || ev == nil || ev.Publisher != "zmq" || ev.Port == 0 {
		return p.cfg.Spec.Events, nil
	}
	at, err := p.ownEndpoint(ev.Port)
	if err != nil {
		return at, fmt.Errorf("the engine says that it publishes its cache events where nobody can subscribe (%w); set events=tcp://HOST:PORT", err)
	}
	return at, nil
}

// replayAt returns where the engine repeats its events: what the settings say, else what it says itself.
func (p *probe) replayAt() (zmtp.Endpoint, error) {
	ev := p.server.KVEvents
	if !p.cfg.Spec.Replay.IsZero() || ev == nil || ev.Replay == 0 {
		return p.cfg.Spec.Replay, nil
	}
	at, err := p.ownEndpoint(ev.Replay)
	if err != nil {
		return at, fmt.Errorf("the engine says that it repeats its cache events where nobody can ask (%w); set replay=tcp://HOST:PORT", err)
	}
	p.cfg.Log.Info("the engine repeats its cache events; it was asked where", "replay", at.String())
	return at, nil
}

// ownEndpoint returns the endpoint of the rank on a host that the engine names, or that of its URL if it names all
// interfaces. port is that of rank 0.
func (p *probe) ownEndpoint(port int) (zmtp.Endpoint, error) {
	host := p.server.KVEvents.Host
	if ip := net.ParseIP(host); host == "" || host == "*" || ip != nil && ip.IsUnspecified() {
		host = p.cfg.Spec.URL.Hostname()
	}
	at, err := zmtp.ParseEndpoint("tcp://" + net.JoinHostPort(host, strconv.Itoa(port)))
	return at.Rank(max(p.cfg.Spec.Rank, 0)), err
}
