// Package trtllm is the adapter of TensorRT-LLM's own server, trtllm-serve. Tokens go in and come out by
// /v1/completions; client requests pass through its OpenAI API. Newer versions publish their cache events;
// older ones return them over HTTP.
package trtllm

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// Config names the server and what is known of its model.
type Config = remote.OpenConfig

// Engine is a trtllm-serve as an engine. Open it with [Open].
type Engine struct{ *remote.Base }

// Compile-time guards.
var (
	_ engine.Engine            = (*Engine)(nil)
	_ engine.KVSource          = (*Engine)(nil)
	_ engine.LoadSource        = (*Engine)(nil)
	_ engine.WarningSource     = (*Engine)(nil)
	_ engine.PassthroughEngine = (*Engine)(nil)
	_ remote.Dialect           = (*completionsDialect)(nil)
)

// completionsDialect speaks /v1/completions.
type completionsDialect struct {
	model string
}

const (
	// defaultBlock is TensorRT-LLM's default of tokens_per_block.
	defaultBlock = 32
	// defaultContext is the context length if neither the server nor a checkpoint gives it.
	defaultContext = 4096

	pathCompletions = "/v1/completions"
	pathEvents      = "/kv_cache_events"
)

// serverProbe finds out what a server offers.
type serverProbe struct {
	remote.Probe
	gauges serverGauges
	scrape func(context.Context, *remote.LoadGauges) error
}

// Open probes the server, see [remote.Probe.Open]. A server that does not publish cache events is polled for them,
// which takes them away from every other client.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	probe, err := remote.NewProbe(&cfg)
	if err != nil {
		return nil, err
	}
	p := &serverProbe{Probe: probe}
	base, err := p.Open(ctx, remote.Steps{
		FindModel: p.FindModel, FindServer: p.findServer, BuildCard: p.buildCard, FindDialect: p.findTokenDialect,
		PassthroughPaths: []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"}, Complete: p.complete,
	})
	if err != nil {
		return nil, err
	}
	return &Engine{base}, nil
}

// complete sets what is particular to TensorRT-LLM.
func (p *serverProbe) complete(ctx context.Context, rc *remote.Config) (err error) {
	card := &rc.Card
	card.StructuredOutput = rc.Dialect != nil && p.probeSchemaSupport(ctx)
	p.Config.SetMediaFields(card, nil, "") // the server does not report its media: they must be configured
	if card.MediaKeys != "" {
		p.Warnings = append(p.Warnings, p.Config.UncountedMedia(card, remote.UncountedRemedy)...)
	}
	rc.ScrapeLoad, rc.UpstreamModel = p.scrape, func(string) string { return p.Model }
	rc.CheckAlive = func(ctx context.Context) error { return p.CheckModel(ctx, "/health") }
	rc.NoReportRemedy = "take a newer TensorRT-LLM: usage should say prompt_tokens_details.cached_tokens"
	rc.CacheSource, err = p.cacheSource(ctx, card, rc.Dialect)
	rc.MediaCounting = p.Config.MediaCounting(card, nil)
	return err
}

// findServer reads the version, and the sizes of the cache from the metrics.
func (p *serverProbe) findServer(ctx context.Context) (err error) {
	p.FindVersion(ctx)
	p.scrape, err = p.newLoadScraper(ctx)
	return err
}

// buildCard describes the model served.
func (p *serverProbe) buildCard() (engine.Card, error) {
	size, err := p.blockSize()
	if err != nil {
		return engine.Card{}, err
	}
	card := p.NewCard("trtllm", p.Model)
	card.BlockSize, card.ContextLength = size, cmp.Or(p.Length, p.Config.ContextLength, defaultContext)
	card.Numerics = "trtllm-" + p.Version + "-" + p.Model
	card.Blocks = p.gauges.blocks * p.engineBlock() / size
	if card.Blocks == 0 {
		card.Blocks = (card.ContextLength + size - 1) / size
	}
	return card, nil
}

// engineBlock returns the engine's own block size in tokens, as far as it reports it.
func (p *serverProbe) engineBlock() int {
	if p.gauges.blockSize > 0 {
		return p.gauges.blockSize
	}
	return cmp.Or(p.Config.Spec.BlockSize, defaultBlock)
}

// blockSize returns the size of Penstock's blocks in tokens: the engine's, or a multiple.
func (p *serverProbe) blockSize() (int, error) {
	own, set := p.engineBlock(), p.Config.Spec.BlockSize
	switch {
	case set == 0:
		return own, nil
	case set%own != 0:
		return 0, fmt.Errorf("block-size is %d, and the engine's blocks have %d tokens (tokens_per_block): set it to a multiple of that, or leave it out", set, own)
	}
	return set, nil
}

// findTokenDialect returns the dialect for tokens, nil if the server has none.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (remote.Dialect, error) {
	d := &completionsDialect{model: p.Model}
	why, err := p.TryDialect(ctx, card, d, []kv.Token{1, 2})
	switch spec := &p.Config.Spec; {
	case err != nil:
		return nil, err
	case why == nil:
		return d, nil
	case spec.Mode == remote.ModeTokens:
		return nil, fmt.Errorf("the engine at %s gives no token ids by %s (detokenize=false); take a newer TensorRT-LLM, or set mode=%s: %w", spec.URL.Host, pathCompletions, remote.ModePassthrough, why)
	}
	p.AddWarning(engine.WarnTextOnly, "take a newer TensorRT-LLM", "the engine gives no token ids by "+pathCompletions+": requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// probeSchemaSupport finds out whether the engine enforces schemas: it must have been started with a grammar
// backend.
func (p *serverProbe) probeSchemaSupport(ctx context.Context) bool {
	body := fmt.Appendf(nil, `{"model":%q,"prompt":[1,2],"max_tokens":1,"detokenize":false,"add_special_tokens":false,"response_format":{"type":"json","schema":{"type":"object"}}}`, p.Model)
	_, err := p.Client.ReadBody(ctx, &remote.Call{Path: pathCompletions, Body: body, Wait: time.Minute}, 1<<20)
	return err == nil
}

// cacheSource returns the source that follows the engine's cache: published events, else polled ones, else a
// predicted model.
func (p *serverProbe) cacheSource(ctx context.Context, card *engine.Card, d remote.Dialect) (remote.CacheSource, error) {
	table := engineevents.Config{BlockSize: card.BlockSize, EngineBlockSize: p.engineBlock(), Clears: engineevents.ClearsDevice}
	p.Config.SetMediaTokens(&table, engineevents.PadsAboveVocab)
	if spec := &p.Config.Spec; !spec.Events.IsZero() {
		return remote.NewEventFeed(remote.EventFeedConfig{Events: spec.Events, Replay: spec.Replay, Log: p.Config.Log, Table: table})
	}
	pulled, err := remote.NewPulledEvents(remote.PullConfig{Client: p.Client, Path: pathEvents, EngineBlock: p.engineBlock(), Table: table, Log: p.Config.Log})
	if err != nil {
		return nil, err
	}
	some, err := p.returnsEvents(ctx, card, d, pulled)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && some:
		p.Config.Log.Warn("the engine's cache events are taken from it as they are asked for: no other process can have them", "engine", p.Config.Spec.URL.Host, "path", pathEvents)
		return pulled, nil
	}
	return p.FollowPaged(card, "set kv_cache_config.event_buffer_max_size (16384) and enable_block_reuse, or kv_events_config and events=tcp://HOST:PORT",
		"the engine neither publishes cache events nor hands them out: what it has cached is guessed from the requests sent to it")
}

// returnsEvents reports whether the engine returns events when polled. An engine that is configured to keep
// none answers like one that has none at the moment, so returnsEvents makes it compute a prompt, if it takes
// tokens.
func (p *serverProbe) returnsEvents(ctx context.Context, card *engine.Card, d remote.Dialect, pulled *remote.PulledEvents) (some bool, err error) {
	if some, err = pulled.PollOnce(ctx); some || err != nil || d == nil {
		return some, err
	}
	prompt := make([]kv.Token, min(2*p.engineBlock()+1, card.ContextLength-2))
	draw := splitmix.Source(time.Now().UnixNano())
	for i := range prompt {
		prompt[i] = kv.Token(1 + draw.Below(max(min(card.VocabSize, 1000)-1, 1)))
	}
	if _, err := remote.ProbePrompt(ctx, p.Client, card, d, prompt); err != nil {
		return false, err
	}
	tick := time.NewTicker(eventPollInterval)
	defer tick.Stop()
	for range eventPollAttempts {
		if some, err = pulled.PollOnce(ctx); some || err != nil {
			return some, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, nil
}

// The interval and the number of polls after that prompt.
const (
	eventPollInterval = 50 * time.Millisecond
	eventPollAttempts = 20
)
