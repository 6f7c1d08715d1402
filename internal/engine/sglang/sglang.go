// Package sglang is the adapter of SGLang's server. Tokens go in and come out by /generate;
// clients' own requests pass through its OpenAI API. What the server is and has, its cache
// events among it, it says itself: see Open.
package sglang

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"penstock/core/enginefeed"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/zmtp"
)

// Config says which engine is spoken with, and what is known of its model.
type Config struct {
	Spec  remote.Spec
	Model remote.Checkpoint
	Log   *slog.Logger
}

// Engine is one data-parallel rank of an SGLang server.
type Engine struct {
	*remote.Base
	model string
}

// Compile-time guards.
var (
	_ engine.Engine       = (*Engine)(nil)
	_ engine.KVSource     = (*Engine)(nil)
	_ engine.Preprocessor = (*Engine)(nil)
)

// dialect speaks /generate.
type dialect struct {
	rank int // that requests are pinned to, -1 for none
}

// defaultBlock is how many tokens a block has where the engine's pages are single tokens, which
// is how SGLang comes.
const defaultBlock = 32

// Open asks the engine what it is, and returns its adapter. What does not fit together is an
// error that says what to set; what makes it serve worse than it could becomes a warning.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	cfg.Spec.EnsureDefaults()
	if err := cfg.Spec.Validate(); err != nil {
		return nil, err
	}
	client := remote.NewClient(&cfg.Spec)
	e, err := open(ctx, &cfg, client)
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("open sglang at %s: %w", cfg.Spec.URL.Host, err)
	}
	return e, nil
}

func open(ctx context.Context, cfg *Config, client *remote.Client) (*Engine, error) {
	p, err := probe(ctx, client)
	if err != nil {
		return nil, err
	}
	rc := remote.Config{Spec: cfg.Spec, Client: client, Log: cfg.Log, Cached: remote.ReportsAll}
	if rc.Card, err = card(cfg, p); err != nil {
		return nil, err
	}
	if rc.Dialect, err = tokens(ctx, cfg, client, &rc); err != nil {
		return nil, err
	}
	if rc.Cache, err = cache(cfg, p, &rc); err != nil {
		return nil, err
	}
	s := &scraper{client: client, rank: cfg.Spec.Rank, metrics: p.server.EnableMetrics, adapters: rc.Card.Adapters}
	if rc.Scrape, err = s.choose(ctx); err != nil {
		return nil, err
	}
	if rc.Scrape == nil {
		rc.Warnings = append(rc.Warnings, engine.Warning{
			Code: engine.WarnNoMetrics, Detail: "the engine tells its load neither by /v1/loads nor by /metrics: only the requests of this fleet count",
			Remedy: "start SGLang with --enable-metrics",
		})
	}
	rc.Alive = func(ctx context.Context) error {
		return client.JSON(ctx, &remote.Call{Method: "GET", Path: "/health"}, nil)
	}
	base, err := remote.New(rc)
	if err != nil {
		return nil, err
	}
	return &Engine{Base: base, model: p.model}, nil
}

// card describes the model served.
func card(cfg *Config, p *probed) (engine.Card, error) {
	size, err := blockSize(&cfg.Spec, p)
	if err != nil {
		return engine.Card{}, err
	}
	name := cfg.Spec.Name
	if name == "" {
		name = p.model
	}
	c := engine.Card{
		Name: name, Engine: "sglang", BlockSize: size, Ranks: 1, Adapters: p.adapters,
		Numerics: "sglang " + p.server.Version + " " + p.server.ModelPath,
		Guided:   p.server.GrammarBackend != "none",
	}
	if name != p.model {
		c.Aliases = []string{p.model}
	}
	cfg.Model.Describe(&c, p.window())
	if c.ContextLength == 0 {
		return c, errors.New("the engine does not say how long its context is; name the checkpoint's directory with --model-path")
	}
	c.Blocks = max(p.tokens()/size, (c.ContextLength+size-1)/size)
	if n := p.tokens(); n > 0 {
		c.Blocks = max(n/size, 1)
	}
	return c, nil
}

// blockSize returns how many tokens our blocks have: the engine's pages, or so many of them.
func blockSize(spec *remote.Spec, p *probed) (int, error) {
	page := p.page()
	switch {
	case spec.BlockSize == 0 && page < 2:
		return defaultBlock, nil
	case spec.BlockSize == 0:
		return page, nil
	case page > 0 && spec.BlockSize%page != 0:
		return 0, fmt.Errorf("block-size=%d, and the engine's pages have %d tokens: set a multiple of that, or start SGLang with --page-size %d", spec.BlockSize, page, spec.BlockSize)
	}
	return spec.BlockSize, nil
}

// tokens returns what speaks tokens with the engine, nil if requests can only be passed on.
func tokens(ctx context.Context, cfg *Config, client *remote.Client, rc *remote.Config) (remote.Dialect, error) {
	if cfg.Spec.Mode == remote.ModePass || cfg.Spec.Mode == remote.ModeAuto && cfg.Model.None() {
		return nil, nil
	}
	if cfg.Model.None() {
		return nil, errors.New("mode=tokens needs the tokenizer of the model; name its directory with --model-path")
	}
	ok, err := givesTokens(ctx, client)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return &dialect{rank: cfg.Spec.Rank}, nil
	case cfg.Spec.Mode == remote.ModeTokens:
		return nil, errors.New("mode=tokens, and /generate answers without output_ids; use a newer SGLang, or mode=auto")
	}
	rc.Warnings = append(rc.Warnings, engine.Warning{
		Code: engine.WarnText, Detail: "the engine's /generate answers without output_ids: requests are passed on as they are, and streams cannot move",
		Remedy: "use a newer SGLang",
	})
	return nil, nil
}

// cache returns what follows the engine's cache: its events, else a model of it.
func cache(cfg *Config, p *probed, rc *remote.Config) (remote.Source, error) {
	if p.server.DisableRadixCache {
		rc.Warnings = append(rc.Warnings, engine.Warning{
			Code: engine.WarnNoCache, Detail: "the engine reuses nothing: its radix cache is off", Remedy: "start SGLang without --disable-radix-cache",
		})
		return nil, nil
	}
	events, err := eventsAt(&cfg.Spec, p)
	if err != nil {
		return nil, err
	}
	if !events.IsZero() {
		return remote.EventFeed(remote.FeedConfig{
			Events: events, Replay: cfg.Spec.Replay, Log: cfg.Log,
			Table: enginefeed.Config{BlockSize: rc.Card.BlockSize, Clears: enginefeed.ClearsAll},
		})
	}
	rc.Card.KVGuessed = true
	rc.Warnings = append(rc.Warnings, engine.Warning{
		Code: engine.WarnNoEvents, Detail: "the engine publishes no cache events: what it has cached is guessed from what it was sent",
		Remedy: `start SGLang with --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557"}'`,
	})
	m, err := shadow.NewBlocks(shadow.BlocksConfig{BlockSize: rc.Card.BlockSize, Capacity: rc.Card.Blocks})
	if err != nil {
		return nil, err
	}
	return remote.Shadow(m), nil
}

// eventsAt returns where the engine publishes: what the settings say, else what it says itself,
// on the host of its URL if that is all interfaces.
func eventsAt(spec *remote.Spec, p *probed) (zmtp.Endpoint, error) {
	if !spec.Events.IsZero() {
		return spec.Events, nil
	}
	ev := p.server.KVEvents
	if ev == nil || ev.Publisher != "zmq" || ev.Port == 0 {
		return zmtp.Endpoint{}, nil
	}
	host := ev.Host
	if ip := net.ParseIP(host); host == "" || host == "*" || ip != nil && ip.IsUnspecified() {
		host = spec.URL.Hostname()
	}
	at, err := zmtp.ParseEndpoint("tcp://" + net.JoinHostPort(host, strconv.Itoa(ev.Port)))
	if err != nil {
		return zmtp.Endpoint{}, fmt.Errorf("where the engine says that it publishes events: %w; set events=tcp://HOST:PORT", err)
	}
	return at.Rank(max(spec.Rank, 0)), nil
}
