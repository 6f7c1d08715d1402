// Package llamacpp is the adapter of llama.cpp's server. Tokens go in and come out by /completion; client
// requests pass through its OpenAI API, which is the only API of other servers based on llama.cpp, such as
// that of llama-cpp-python.
//
// The engine does not report the content of its cache, which is the last sequence computed in each of its
// slots. The adapter keeps a model of the slots ([cachemodel.SlotModel]) and tells the engine which slot to use,
// so that the model is right as long as the engine has no other client.
package llamacpp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"penstock/core/cachemodel"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// Config names the server and what is known of its model.
type Config = remote.OpenConfig

// Engine is a llama.cpp server as an engine. Open it with [Open].
type Engine struct {
	*remote.Base
	client *remote.Client
	native bool // it has llama.cpp's own API
}

// Compile-time guards.
var (
	_ engine.Engine            = (*Engine)(nil)
	_ engine.KVSource          = (*Engine)(nil)
	_ engine.LoadSource        = (*Engine)(nil)
	_ engine.WarningSource     = (*Engine)(nil)
	_ engine.Preprocessor      = (*Engine)(nil)
	_ engine.PassthroughEngine = (*Engine)(nil)
	_ remote.Dialect           = (*completionDialect)(nil)
)

// completionDialect speaks /completion.
type completionDialect struct {
	eos      []kv.Token
	context  int            // context length of a slot in tokens
	adapters map[string]int // the engine's ids of LoRA adapters
}

const (
	// defaultBlock is the block size of Penstock's index in tokens: the engine has no blocks.
	defaultBlock = 32
	// defaultContext is the context length if neither the server nor a checkpoint gives it.
	defaultContext = 4096
)

// serverProbe finds out what a server offers.
type serverProbe struct {
	cfg    *Config
	client *remote.Client

	model    string
	props    serverProps
	native   bool
	adapters map[string]int
	warnings []engine.Warning
}

// serverProps is the relevant part of /props.
type serverProps struct {
	Sees struct {
		Images bool `json:"vision"`
		Videos bool `json:"video"`
		Sounds bool `json:"audio"`
	} `json:"modalities"`
	Slots    int    `json:"total_slots"`
	Build    string `json:"build_info"`
	Model    string `json:"model_path"`
	Defaults struct {
		Context int `json:"n_ctx"` // of one slot
	} `json:"default_generation_settings"`
}

// mediaKinds returns the kinds of media that the model takes.
func (s *serverProps) mediaKinds() (kinds []string) {
	for kind, yes := range map[media.Kind]bool{media.Image: s.Sees.Images, media.Video: s.Sees.Videos, media.Audio: s.Sees.Sounds} {
		if yes {
			kinds = append(kinds, kind.String())
		}
	}
	return kinds
}

func (p *serverProbe) addWarning(code, remedy, detail string) {
	p.warnings = append(p.warnings, engine.Warning{Code: code, Detail: detail, Remedy: remedy})
}

// Open probes the server, waiting while it loads its model, and returns an engine that does nothing until
// Run. Contradictory settings are an error that says what to set; settings with which the server works worse
// than it could become warnings.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	if !cfg.Spec.Events.IsZero() {
		return nil, fmt.Errorf("the engine at %s: llama.cpp publishes no cache events; leave events out", cfg.Spec.URL.Host)
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
	if err := p.findProps(ctx); err != nil {
		return nil, err
	}
	card, err := p.buildCard()
	if err != nil {
		return nil, err
	}
	d, err := p.findTokenDialect(ctx, &card)
	if err != nil {
		return nil, err
	}
	if d == nil {
		card.Adapters = nil // passthrough requests cannot name one
	}
	passes, err := p.findPassthroughPaths(ctx)
	if err != nil {
		return nil, err
	}
	source, err := p.cacheSource(&card)
	if err != nil {
		return nil, err
	}
	card.StructuredOutput = d != nil
	p.cfg.SetMediaFields(&card, p.props.mediaKinds(), "") // it takes no keys: its slots identify media by their pixels
	e := &Engine{client: p.client, native: p.native}
	rc := remote.Config{
		Spec: p.cfg.Spec, Card: card, Client: p.client, Log: p.cfg.Log, Choices: remote.Parallel, Continuations: remote.SeveralCalls,
		ScrapeLoad: p.loadScraper(ctx), CheckAlive: p.checkAlive, CacheSource: source, PassthroughPaths: passes,
		UpstreamModel: func(string) string { return p.model }, PassthroughSalts: remote.SaltsIgnored, ProveSalts: p.cfg.ProveSalts,
		SaltsRemedy: "ask without cache_salt, or name the model's files with --model-path: llama.cpp has no salts, and only in tokens can it be told what not to reuse",
	}
	if d != nil { // a nil pointer in an interface is not nil
		rc.Dialect, rc.CachedReporting = d, remote.ReportsAlways
		rc.NoReportRemedy = "take a newer llama.cpp: /completion should say timings.cache_n"
	}
	rc.Warnings, rc.MediaCounting = p.warnings, p.cfg.MediaCounting(&card, nil)
	e.Base, err = remote.New(rc)
	return e, err
}

// findModel reads the served model.
func (p *serverProbe) findModel(ctx context.Context) error {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/v1/models"}, &models); err != nil {
		return err
	}
	if len(models.Data) == 0 {
		return fault.New(fault.Unavailable, "the engine at %s serves no model yet", p.cfg.Spec.URL.Host)
	}
	p.model = models.Data[0].ID
	return nil
}

// findProps reads the server's slots and adapters; a server without /props is not llama.cpp's own.
func (p *serverProbe) findProps(ctx context.Context) error {
	err := p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &p.props)
	switch {
	case remote.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	p.native = p.props.Slots > 0
	var adapters []struct {
		ID   int    `json:"id"`
		Path string `json:"path"`
	}
	err = p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/lora-adapters"}, &adapters)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.adapters = map[string]int{}
	for _, a := range adapters {
		name := strings.TrimSuffix(path.Base(a.Path), path.Ext(a.Path))
		if _, twice := p.adapters[name]; !twice && err == nil && a.Path != "" {
			p.adapters[name] = a.ID
		}
	}
	return nil
}

// modelName returns the model's name: the configured one, else the server's, which is its file name by
// default.
func (p *serverProbe) modelName() string {
	if p.cfg.Spec.Name != "" {
		return p.cfg.Spec.Name
	}
	return strings.TrimSuffix(path.Base(strings.ReplaceAll(p.model, `\`, "/")), ".gguf")
}

// buildCard describes the model served.
func (p *serverProbe) buildCard() (engine.Card, error) {
	cfg := p.cfg
	card := engine.Card{
		Name: p.modelName(), Engine: "llamacpp", BlockSize: cmp.Or(cfg.Spec.BlockSize, defaultBlock), Ranks: 1,
		ContextLength: cmp.Or(max(p.props.Defaults.Context, 0), cfg.ContextLength, defaultContext),
		VocabSize:     cmp.Or(cfg.VocabSize, remote.UnknownVocabulary), EOS: cfg.EOS, Defaults: cfg.Defaults, Tokenizer: cfg.Tokenizer,
		Numerics: "llamacpp-" + p.props.Build + "-" + path.Base(p.props.Model),
	}
	if card.Tokenizer.Kind == "" {
		card.Tokenizer.Kind = "engine"
	}
	if card.Name != p.model {
		card.Aliases = []string{p.model}
	}
	for name := range p.adapters {
		card.Adapters = append(card.Adapters, name)
	}
	slices.Sort(card.Adapters)
	card.Blocks = max(p.props.Slots, 1) * ((card.ContextLength + card.BlockSize - 1) / card.BlockSize)
	return card, card.Validate()
}

// findTokenDialect returns the dialect for tokens, nil if requests can only be passed through.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (*completionDialect, error) {
	spec := &p.cfg.Spec
	if spec.Mode == remote.ModePassthrough || spec.Mode == remote.ModeAuto && card.Tokenizer.Kind == "engine" {
		return nil, nil
	}
	var err error
	if p.native {
		d := &completionDialect{eos: card.EOS, context: card.ContextLength, adapters: p.adapters}
		var seen remote.ProbeResult
		seen, err = remote.ProbePrompt(ctx, p.client, card, d, []kv.Token{1, 2})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && seen.Tokens > 0:
			return d, nil
		case fault.CodeOf(err) == fault.Overloaded:
			return nil, err
		}
	}
	if spec.Mode == remote.ModeTokens {
		return nil, fmt.Errorf("the engine at %s gives no tokens by /completion (%v): it is another server, or one before December 2024; take llama.cpp's own, or set mode=%s", spec.URL.Host, err, remote.ModePassthrough)
	}
	p.addWarning(engine.WarnTextOnly, "serve the model with llama.cpp's own server, of December 2024 or later",
		"the engine gives no tokens by /completion: requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// findPassthroughPaths returns the paths whose client requests can be passed through.
func (p *serverProbe) findPassthroughPaths(ctx context.Context) ([]string, error) {
	return p.client.ExistingPaths(ctx, "/v1/chat/completions", "/v1/completions", "/v1/messages")
}

// cacheSource returns the model of the engine's slots. A server that is not llama.cpp's own keeps at most one
// sequence and does not report it: nothing is predicted for it.
func (p *serverProbe) cacheSource(card *engine.Card) (remote.CacheSource, error) {
	if !p.native {
		p.addWarning(engine.WarnNoCache, "serve the model with llama.cpp's own server",
			"the engine says neither what it has cached nor what it reused: requests are not routed by prefix")
		return nil, nil
	}
	card.KVPredicted = true
	m, err := cachemodel.NewSlotModel(cachemodel.SlotConfig{BlockSize: card.BlockSize, Slots: p.props.Slots, Context: card.ContextLength})
	if err != nil {
		return nil, fmt.Errorf("the engine at %s: %w", p.cfg.Spec.URL.Host, err)
	}
	return remote.PredictedSource(m), nil
}

// checkAlive checks that the server answers and serves the same model in the same number of slots. It answers
// 503 while it loads its model, and ignores the model's name in requests.
func (p *serverProbe) checkAlive(ctx context.Context) error {
	where := "/health"
	if !p.native {
		where = "/v1/models"
	}
	if _, err := p.client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: where}, 1<<20); err != nil {
		return err
	}
	now := serverProbe{cfg: p.cfg, client: p.client}
	switch err := now.findModel(ctx); {
	case err != nil:
		return err
	case now.model != p.model:
		return remote.DifferentEngineError(p.cfg.Spec.URL.Host, "another model")
	case !p.native:
		return nil
	}
	if err := p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &now.props); err != nil {
		return err
	}
	if now.props.Model != p.props.Model || now.props.Slots != p.props.Slots || now.props.Defaults.Context != p.props.Defaults.Context {
		return remote.DifferentEngineError(p.cfg.Spec.URL.Host, "another model, or with other slots,")
	}
	return nil
}
