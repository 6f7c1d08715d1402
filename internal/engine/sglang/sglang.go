// Package sglang is the adapter of SGLang's server. Tokens go in and come out by /generate; client requests
// pass through its OpenAI API. The server itself reports its settings, including its cache events: see Open.
package sglang

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/zmtp"
)

// Config names the server and what is known of its model.
type Config = remote.OpenConfig

// Engine is one data-parallel rank of an SGLang server.
type Engine struct {
	*remote.Base
	model  string // the server's name of it
	client *remote.Client
}

// Compile-time guards.
var (
	_ engine.Engine            = (*Engine)(nil)
	_ engine.KVSource          = (*Engine)(nil)
	_ engine.LoadSource        = (*Engine)(nil)
	_ engine.WarningSource     = (*Engine)(nil)
	_ engine.AdapterSource     = (*Engine)(nil)
	_ engine.AdapterWatcher    = (*Engine)(nil)
	_ engine.Preprocessor      = (*Engine)(nil)
	_ engine.PassthroughEngine = (*Engine)(nil)
	_ remote.Dialect           = (*generateDialect)(nil)
)

// generateDialect speaks /generate.
type generateDialect struct {
	rank int // data-parallel rank to which requests are pinned, -1 for none
	// saltFields are the request fields that isolate cache salts.
	saltFields []string
	// placeholders are the placeholder tokens of media, by kind; 0 for a kind that is not sent with tokens.
	placeholders [media.Audio + 1]kv.Token
}

// defaultBlock is the block size for an engine whose pages are single tokens, which is SGLang's default.
const defaultBlock = 32

// Open probes the server, see [remote.Probe.Open].
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	probe, err := remote.NewProbe(&cfg)
	if err != nil {
		return nil, err
	}
	p := &serverProbe{Probe: probe}
	base, err := p.Open(ctx, remote.Steps{
		FindModel: p.findModel, FindServer: p.findServer, BuildCard: p.buildCard, FindDialect: p.findTokenDialect,
		PassthroughPaths: []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}, Complete: p.complete,
	})
	if err != nil {
		return nil, err
	}
	return &Engine{Base: base, model: p.Model, client: p.Client}, nil
}

// complete sets what is particular to SGLang.
func (p *serverProbe) complete(ctx context.Context, rc *remote.Config) (err error) {
	card := &rc.Card
	p.Config.SetMediaFields(card, p.mediaKinds(ctx), "")
	p.Warnings = append(p.Warnings, p.Config.UncountedMedia(card, remote.UncountedRemedy)...)
	d, tokens := rc.Dialect.(*generateDialect)
	if tokens {
		d.enableObjects(p.Config, card)
	}
	if rc.CacheSource, err = p.cacheSource(card); err != nil {
		return err
	}
	if rc.ScrapeLoad, err = p.newLoadScraper(ctx); err != nil {
		return err
	}
	card.StructuredOutput = tokens && p.server.GrammarBackend != "none"
	rc.CachedReporting, rc.PassthroughReporting = remote.ReportsAlways, p.passthroughReporting(tokens)
	rc.NoReportRemedy = "take a newer SGLang: /generate should say meta_info.cached_tokens"
	rc.CheckAlive, rc.CheckSame, rc.ListAdapters = p.checkAlive, p.CheckSame, p.adapterLister()
	rc.UpstreamModel, rc.Headers, rc.MediaCounting = p.upstreamModel, p.rankHeaders(), p.mediaCounting(card, d)
	p.setSaltSupport(rc)
	return nil
}

// setSaltSupport sets what is known of cache salts.
func (p *serverProbe) setSaltSupport(cfg *remote.Config) {
	cfg.SaltsRemedy = "take SGLang 0.5.18 or later, or ask without cache_salt; its own /v1/messages takes none in any version"
	if cfg.Dialect == nil {
		cfg.SaltsReportRemedy = "start SGLang with --enable-cache-report"
	}
	if _, cfg.Salts = saltFields(p.server.Version); p.server.DisableRadixCache {
		cfg.Salts = remote.SaltsUnneeded
	}
	cfg.PassthroughSalts = cfg.Salts
}

// passthroughReporting returns how the engine's OpenAI API reports cached tokens: only if configured, and
// then not if there are none. If the engine gives no tokens, a missing report adds a warning.
func (p *serverProbe) passthroughReporting(tokens bool) remote.CachedReporting {
	switch {
	case p.server.CacheReport:
		return remote.ReportsNonzero
	case !tokens && !p.server.DisableRadixCache:
		p.AddWarning(engine.WarnNoCachedTokens, "start SGLang with --enable-cache-report", "the engine does not report cached tokens in answers to requests that are passed on: what is predicted cannot be checked")
	}
	return remote.ReportsNever
}

// upstreamModel returns the name of a request's model in the server's OpenAI API: an adapter follows the
// model's own name. With the adapter's name alone the base model would answer.
func (p *serverProbe) upstreamModel(lora string) string {
	if lora != "" {
		return p.Model + ":" + lora
	}
	return p.Model
}

// rankHeaders returns the headers that pin a passthrough request to a data-parallel rank; older versions
// ignore them.
func (p *serverProbe) rankHeaders() []string {
	if spec := &p.Config.Spec; spec.Rank != remote.AnyRank && spec.Ranks > 1 {
		return []string{"X-Data-Parallel-Rank", strconv.Itoa(spec.Rank)}
	}
	return nil
}

// checkAlive checks that the server answers and generates a token, and that it serves the same model by the
// same version, with the settings that the adapter relies on.
func (p *serverProbe) checkAlive(ctx context.Context) error {
	if err := p.CheckModel(ctx, "/health"); err != nil {
		return err
	}
	now := serverProbe{Probe: remote.Probe{Config: p.Config, Client: p.Client}}
	switch err := now.findServer(ctx); {
	case err != nil:
		return err
	case now.server.Version != p.server.Version: // the version decides which field has the salt, and what events contain
		return p.DifferentError("by another version of SGLang")
	case p.server.DisableRadixCache && !now.server.DisableRadixCache: // its cache would have to be followed, and its salts proven
		return p.DifferentError("with other settings (the radix cache is on)")
	}
	return nil
}

// buildCard describes the model served.
func (p *serverProbe) buildCard() (engine.Card, error) {
	size, err := p.blockSize()
	if err != nil {
		return engine.Card{}, err
	}
	card := p.NewCard("sglang", p.Model)
	card.BlockSize, card.ContextLength = size, cmp.Or(p.contextLength(), p.Config.ContextLength)
	card.Numerics = "sglang-" + p.server.Version + "-" + p.server.ModelPath
	if card.ContextLength == 0 {
		return card, fmt.Errorf("the engine at %s does not say how long its context is; name the directory of its model with --model-path", p.Config.Spec.URL.Host)
	}
	card.Blocks = max(cmp.Or(p.tokenCapacity(), card.ContextLength)/size, 1)
	return card, nil
}

// blockSize returns the size of Penstock's blocks in tokens: the engine's page size, or a multiple.
func (p *serverProbe) blockSize() (int, error) {
	page, set := p.pageSize(), p.Config.Spec.BlockSize
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

// findTokenDialect returns the dialect for tokens, nil if the server has none.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (remote.Dialect, error) {
	spec := &p.Config.Spec
	d := &generateDialect{rank: -1}
	d.saltFields, _ = saltFields(p.server.Version)
	if spec.Ranks > 1 {
		d.rank = spec.Rank
	}
	why, err := p.TryDialect(ctx, card, d, []kv.Token{1, 2})
	switch {
	case err != nil:
		return nil, err
	case why == nil:
		return d, nil
	case spec.Mode == remote.ModeTokens:
		return nil, fmt.Errorf("the engine at %s gives no token ids by /generate; take a newer SGLang, or set mode=%s: %w", spec.URL.Host, remote.ModePassthrough, why)
	}
	p.AddWarning(engine.WarnTextOnly, "take a newer SGLang", "the engine gives no token ids by /generate: requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// cacheSource returns the source that follows the engine's cache: its events, else a predicted model.
func (p *serverProbe) cacheSource(card *engine.Card) (remote.CacheSource, error) {
	if card.NoPrefixCache = p.server.DisableRadixCache; card.NoPrefixCache {
		p.AddWarning(engine.WarnNoCache, "start SGLang without --disable-radix-cache", "the engine's radix cache is off: it reuses nothing")
		return nil, nil
	}
	events, err := p.eventsEndpoint()
	if err != nil {
		return nil, err
	}
	replay, err := p.replayEndpoint()
	if err != nil {
		return nil, err
	}
	if events.IsZero() && !p.Config.Spec.Replay.IsZero() {
		return nil, fmt.Errorf("replay=%s is set, and the engine does not say where it publishes its cache events; set events=tcp://HOST:PORT too", p.Config.Spec.Replay)
	}
	if !events.IsZero() {
		table := engineevents.Config{
			BlockSize: card.BlockSize, EngineBlockSize: p.pageSize(), Clears: engineevents.ClearsAll, Capacity: card.Blocks,
			HidesAdapters: hidesAdapters(p.server.Version), ReloadForgets: true,
		}
		p.Config.SetMediaTokens(&table, engineevents.PadsFromKeys)
		return remote.NewEventFeed(remote.EventFeedConfig{
			Events: events, Replay: replay, Snapshot: p.Config.Spec.Snapshot, Log: p.Config.Log,
			Table: table,
		})
	}
	return p.FollowPaged(card, p.noEventsRemedy(),
		"the engine publishes no cache events: what it has cached is guessed from the requests sent to it")
}

// noEventsRemedy says how to get the engine's cache events: a release that does not announce its endpoint
// needs settings on both sides.
func (p *serverProbe) noEventsRemedy() string {
	remedy := `start SGLang with --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557"}'`
	if v, ok := parseVersion(p.server.Version); ok && v.isBefore(announcedEventsVersion) {
		remedy += ", and name that with events=tcp://HOST:5557"
	}
	return remedy
}

// eventsEndpoint returns where the engine publishes: the configured endpoint, else the announced one.
func (p *serverProbe) eventsEndpoint() (zmtp.Endpoint, error) {
	ev := p.server.KVEvents
	if !p.Config.Spec.Events.IsZero() || ev == nil || ev.Publisher != "zmq" || ev.Port == 0 {
		return p.Config.Spec.Events, nil
	}
	at, err := p.announcedEndpoint(ev.Port)
	if err != nil {
		return at, fmt.Errorf("the engine says that it publishes its cache events at an address which cannot be reached (%w); set events=tcp://HOST:PORT", err)
	}
	return at, nil
}

// replayEndpoint returns where the engine replays its events: the configured endpoint, else the announced
// one.
func (p *serverProbe) replayEndpoint() (zmtp.Endpoint, error) {
	ev := p.server.KVEvents
	if !p.Config.Spec.Replay.IsZero() || ev == nil || ev.Replay == 0 {
		return p.Config.Spec.Replay, nil
	}
	at, err := p.announcedEndpoint(ev.Replay)
	if err != nil {
		return at, fmt.Errorf("the engine says that it repeats its cache events at an address which cannot be reached (%w); set replay=tcp://HOST:PORT", err)
	}
	p.Config.Log.Info("the engine repeats its cache events; it was asked where", "replay", at.String())
	return at, nil
}

// announcedEndpoint returns the endpoint of the rank on the host that the engine announces, or on the host of
// its URL if it announces all interfaces. port is that of rank 0.
func (p *serverProbe) announcedEndpoint(port int) (zmtp.Endpoint, error) {
	host := p.server.KVEvents.Host
	if ip := net.ParseIP(host); host == "" || host == "*" || ip != nil && ip.IsUnspecified() {
		host = p.Config.Spec.URL.Hostname()
	}
	at, err := zmtp.ParseEndpoint("tcp://" + net.JoinHostPort(host, strconv.Itoa(port)))
	return at.RankEndpoint(max(p.Config.Spec.Rank, 0)), err
}
