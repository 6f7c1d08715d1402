// Package trtllm is the adapter of TensorRT-LLM's own server, trtllm-serve. Tokens go in and come out by
// /v1/completions; client requests pass through its OpenAI API. Newer versions publish their cache events;
// older ones return them over HTTP.
package trtllm

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"penstock/core/cachemodel"
	"penstock/core/engineevents"
	"penstock/core/fault"
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
	eos   []kv.Token
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
	cfg    *Config
	client *remote.Client

	model    string
	length   int // 0 if not reported
	version  string
	gauges   serverGauges
	warnings []engine.Warning
}

func (p *serverProbe) addWarning(code, remedy, detail string) {
	p.warnings = append(p.warnings, engine.Warning{Code: code, Detail: detail, Remedy: remedy})
}

// Open probes the server, waiting while it loads its model, and returns an engine that does nothing until
// Run. Contradictory settings are an error that says what to set; settings with which the server works worse
// than it could become warnings.
//
// A server that does not publish cache events is polled for them, which takes them away from every other
// client.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	p := &serverProbe{cfg: &cfg, client: remote.NewClient(&cfg.Spec)}
	e, err := p.openEngine(ctx)
	if err != nil {
		p.client.Close()
		return nil, err
	}
	return e, nil
}

// openEngine runs all probes and creates the engine.
func (p *serverProbe) openEngine(ctx context.Context) (*Engine, error) {
	if err := remote.AwaitEngine(ctx, &p.cfg.Spec, p.cfg.Log, p.findModel); err != nil {
		return nil, err
	}
	scrape, err := p.newLoadScraper(ctx)
	if err != nil {
		return nil, err
	}
	card, err := p.buildCard()
	if err != nil {
		return nil, err
	}
	rc := remote.Config{
		Spec: p.cfg.Spec, Client: p.client, Log: p.cfg.Log, ScrapeLoad: scrape, CheckAlive: p.checkAlive,
		UpstreamModel:  func(string) string { return p.model },
		ProveSalts:     p.cfg.ProveSalts,
		NoReportRemedy: "take a newer TensorRT-LLM: usage should say prompt_tokens_details.cached_tokens",
	}
	d, err := p.findTokenDialect(ctx, &card)
	if err != nil {
		return nil, err
	}
	if d != nil { // a nil pointer in an interface is not nil
		rc.Dialect = d
		card.StructuredOutput = p.probeSchemaSupport(ctx)
	}
	if rc.PassthroughPaths, err = p.findPassthroughPaths(ctx); err != nil {
		return nil, err
	}
	p.cfg.SetMediaFields(&card, nil, "") // the server does not report its media: they must be configured
	if card.MediaKeys != "" {
		p.warnings = append(p.warnings, p.cfg.UncountedMedia(&card, remote.UncountedRemedy)...)
	}
	if rc.CacheSource, err = p.cacheSource(ctx, &card, d); err != nil {
		return nil, err
	}
	rc.Card, rc.Warnings, rc.MediaCounting = card, p.warnings, p.cfg.MediaCounting(&card, nil)
	base, err := remote.New(rc)
	return &Engine{base}, err
}

// findModel reads the served model and the version.
func (p *serverProbe) findModel(ctx context.Context) error {
	var models struct {
		Data []struct {
			ID     string `json:"id"`
			Length int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/v1/models"}, &models); err != nil {
		return err
	}
	if len(models.Data) == 0 {
		return fault.New(fault.Unavailable, "the engine at %s serves no model yet", p.cfg.Spec.URL.Host)
	}
	p.model, p.length = models.Data[0].ID, models.Data[0].Length
	var v struct {
		Version string `json:"version"`
	}
	if p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/version"}, &v) == nil {
		p.version = remote.SanitizeMessage(v.Version)
	}
	return nil
}

// buildCard describes the model served.
func (p *serverProbe) buildCard() (engine.Card, error) {
	size, err := p.blockSize()
	if err != nil {
		return engine.Card{}, err
	}
	cfg := p.cfg
	card := engine.Card{
		Name: cmp.Or(cfg.Spec.Name, p.model), Engine: "trtllm", BlockSize: size, Ranks: 1,
		ContextLength: cmp.Or(p.length, cfg.ContextLength, defaultContext), VocabSize: cmp.Or(cfg.VocabSize, remote.UnknownVocabulary),
		EOS: cfg.EOS, Defaults: cfg.Defaults, Tokenizer: cfg.Tokenizer,
		Numerics: "trtllm-" + p.version + "-" + p.model,
	}
	if card.Tokenizer.Kind == "" {
		card.Tokenizer.Kind = "engine"
	}
	if card.Name != p.model {
		card.Aliases = []string{p.model}
	}
	card.Blocks = p.gauges.blocks * p.engineBlock() / size
	if card.Blocks == 0 {
		card.Blocks = (card.ContextLength + size - 1) / size
	}
	return card, card.Validate()
}

// engineBlock returns the engine's own block size in tokens, as far as it reports it.
func (p *serverProbe) engineBlock() int {
	if p.gauges.blockSize > 0 {
		return p.gauges.blockSize
	}
	return cmp.Or(p.cfg.Spec.BlockSize, defaultBlock)
}

// blockSize returns the size of Penstock's blocks in tokens: the engine's, or a multiple.
func (p *serverProbe) blockSize() (int, error) {
	own, set := p.engineBlock(), p.cfg.Spec.BlockSize
	switch {
	case set == 0:
		return own, nil
	case set%own != 0:
		return 0, fmt.Errorf("block-size is %d, and the engine's blocks have %d tokens (tokens_per_block): set it to a multiple of that, or leave it out", set, own)
	}
	return set, nil
}

// findTokenDialect returns the dialect for tokens, nil if requests can only be passed through.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (*completionsDialect, error) {
	spec := &p.cfg.Spec
	if spec.Mode == remote.ModePassthrough || spec.Mode == remote.ModeAuto && card.Tokenizer.Kind == "engine" {
		return nil, nil
	}
	d := &completionsDialect{model: p.model, eos: card.EOS}
	seen, err := remote.ProbePrompt(ctx, p.client, card, d, []kv.Token{1, 2})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && seen.Tokens > 0:
		return d, nil
	case fault.CodeOf(err) == fault.Overloaded:
		return nil, err
	case spec.Mode == remote.ModeTokens:
		return nil, fmt.Errorf("the engine at %s gives no token ids by %s (detokenize=false); take a newer TensorRT-LLM, or set mode=%s: %w", spec.URL.Host, pathCompletions, remote.ModePassthrough, err)
	}
	p.addWarning(engine.WarnTextOnly, "take a newer TensorRT-LLM", "the engine gives no token ids by "+pathCompletions+": requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// probeSchemaSupport finds out whether the engine enforces schemas: it must have been started with a grammar
// backend.
func (p *serverProbe) probeSchemaSupport(ctx context.Context) bool {
	body := fmt.Appendf(nil, `{"model":%q,"prompt":[1,2],"max_tokens":1,"detokenize":false,"add_special_tokens":false,"response_format":{"type":"json","schema":{"type":"object"}}}`, p.model)
	_, err := p.client.ReadBody(ctx, &remote.Call{Path: pathCompletions, Body: body, Wait: time.Minute}, 1<<20)
	return err == nil
}

// findPassthroughPaths returns the paths whose client requests can be passed through.
func (p *serverProbe) findPassthroughPaths(ctx context.Context) ([]string, error) {
	return p.client.ExistingPaths(ctx, "/v1/chat/completions", "/v1/completions", "/v1/responses")
}

// cacheSource returns the source that follows the engine's cache: published events, else polled ones, else a
// predicted model.
func (p *serverProbe) cacheSource(ctx context.Context, card *engine.Card, d *completionsDialect) (remote.CacheSource, error) {
	table := engineevents.Config{BlockSize: card.BlockSize, EngineBlockSize: p.engineBlock(), Clears: engineevents.ClearsDevice}
	p.cfg.SetMediaTokens(&table, engineevents.PadsAboveVocab)
	if spec := &p.cfg.Spec; !spec.Events.IsZero() {
		return remote.NewEventFeed(remote.EventFeedConfig{Events: spec.Events, Replay: spec.Replay, Log: p.cfg.Log, Table: table})
	}
	pulled, err := remote.NewPulledEvents(remote.PullConfig{Client: p.client, Path: pathEvents, EngineBlock: p.engineBlock(), Table: table, Log: p.cfg.Log})
	if err != nil {
		return nil, err
	}
	some, err := p.returnsEvents(ctx, card, d, pulled)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && some:
		p.cfg.Log.Warn("the engine's cache events are taken from it as they are asked for: nobody else can have them", "engine", p.cfg.Spec.URL.Host, "path", pathEvents)
		return pulled, nil
	}
	card.KVPredicted = true
	p.addWarning(engine.WarnNoEvents, "set kv_cache_config.event_buffer_max_size (16384) and enable_block_reuse, or kv_events_config and events=tcp://HOST:PORT",
		"the engine neither publishes cache events nor hands them out: what it has cached is guessed from the requests sent to it")
	m, err := cachemodel.NewPagedModel(cachemodel.PagedConfig{BlockSize: card.BlockSize, Capacity: card.Blocks})
	if err != nil {
		return nil, err
	}
	return remote.PredictedSource(m), nil
}

// returnsEvents reports whether the engine returns events when polled. An engine that is configured to keep
// none answers like one that has none at the moment, so returnsEvents makes it compute a prompt, if it takes
// tokens.
func (p *serverProbe) returnsEvents(ctx context.Context, card *engine.Card, d *completionsDialect, pulled *remote.PulledEvents) (some bool, err error) {
	if some, err = pulled.PollOnce(ctx); some || err != nil || d == nil {
		return some, err
	}
	prompt := make([]kv.Token, min(2*p.engineBlock()+1, card.ContextLength-2))
	draw := splitmix.Source(time.Now().UnixNano())
	for i := range prompt {
		prompt[i] = kv.Token(1 + draw.Below(max(min(card.VocabSize, 1000)-1, 1)))
	}
	if _, err := remote.ProbePrompt(ctx, p.client, card, d, prompt); err != nil {
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

// checkAlive checks that the server answers and serves the same model: it ignores the model's name in
// requests.
func (p *serverProbe) checkAlive(ctx context.Context) error {
	if _, err := p.client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: "/health"}, 1<<16); err != nil {
		return err
	}
	now := serverProbe{cfg: p.cfg, client: p.client}
	switch err := now.findModel(ctx); {
	case err != nil:
		return err
	case now.model != p.model:
		return remote.DifferentEngineError(p.cfg.Spec.URL.Host, "another model")
	case now.length != p.length:
		return remote.DifferentEngineError(p.cfg.Spec.URL.Host, "another context length")
	}
	return nil
}
