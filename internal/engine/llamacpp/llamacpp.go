// Package llamacpp is the adapter of llama.cpp's server. Tokens go in and come out by /completion;
// clients' own requests pass through its OpenAI API, which is all that other servers around
// llama.cpp have, such as that of llama-cpp-python.
//
// The engine says nothing of its cache, which is the sequence that each of its slots computed last. The adapter
// keeps a model of the slots ([shadow.Slots]) and tells the engine which slot to take, so that the
// model is right as long as nobody else uses the engine.
package llamacpp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// Config says which server, and what is known here of its model.
type Config = remote.Opening

// Engine is a llama.cpp server as an engine. Open it with [Open].
type Engine struct {
	*remote.Base
	client *remote.Client
	native bool // it has llama.cpp's own API
}

// Compile-time guards.
var (
	_ engine.Engine        = (*Engine)(nil)
	_ engine.KVSource      = (*Engine)(nil)
	_ engine.LoadSource    = (*Engine)(nil)
	_ engine.WarningSource = (*Engine)(nil)
	_ engine.Preprocessor  = (*Engine)(nil)
	_ engine.Passer        = (*Engine)(nil)
	_ remote.Dialect       = (*dialect)(nil)
)

// dialect speaks /completion.
type dialect struct {
	eos      []kv.Token
	context  int            // tokens of a slot
	adapters map[string]int // the engine's numbers of LoRA adapters
}

const (
	// defaultBlock is how many tokens a block of our index has: the engine knows single tokens.
	defaultBlock = 32
	// defaultContext is the context of a server that does not say its own, nor is its model known.
	defaultContext = 4096
)

// probe finds out what a server is.
type probe struct {
	cfg    *Config
	client *remote.Client

	model    string
	props    props
	native   bool
	adapters map[string]int
	warnings []engine.Warning
}

// props is the part of /props that matters.
type props struct {
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

// sees are the kinds of media that the model sees.
func (s *props) sees() (kinds []string) {
	for kind, yes := range map[media.Kind]bool{media.Image: s.Sees.Images, media.Video: s.Sees.Videos, media.Audio: s.Sees.Sounds} {
		if yes {
			kinds = append(kinds, kind.String())
		}
	}
	return kinds
}

func (p *probe) warn(code, remedy, detail string) {
	p.warnings = append(p.warnings, engine.Warning{Code: code, Detail: detail, Remedy: remedy})
}

// Open asks the server what it is and has, waiting while it loads its model, and returns an engine that
// does nothing until Run. What does not fit together is an error that says what to set; what makes the
// server serve worse than it could becomes a warning.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	if !cfg.Spec.Events.IsZero() {
		return nil, fmt.Errorf("the engine at %s: llama.cpp publishes no cache events; leave events out", cfg.Spec.URL.Host)
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
	if err := p.findProps(ctx); err != nil {
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
	if d == nil {
		card.Adapters = nil // requests that are passed on name none
	}
	passes, err := p.passes(ctx)
	if err != nil {
		return nil, err
	}
	source, err := p.source(&card)
	if err != nil {
		return nil, err
	}
	card.Guided = d != nil
	p.cfg.See(&card, p.props.sees(), "") // it is told no keys: its slots know media by their pixels
	e := &Engine{client: p.client, native: p.native}
	rc := remote.Config{
		Spec: p.cfg.Spec, Card: card, Client: p.client, Log: p.cfg.Log, Choices: remote.Apart, Legs: remote.ManyLegs,
		Scrape: p.scraper(ctx), Alive: p.alive, Cache: source, Passes: passes,
		Model: func(string) string { return p.model }, PassSalts: remote.SaltsIgnored, ProveSalts: p.cfg.ProveSalts,
		SaltsRemedy: "ask without cache_salt, or name the model's files with --model-path: llama.cpp has no salts, and only in tokens can it be told what not to reuse",
	}
	if d != nil { // a nil pointer in an interface is something
		rc.Dialect, rc.Cached = d, remote.ReportsEach
		rc.NoReport = "take a newer llama.cpp: /completion should say timings.cache_n"
	}
	rc.Warnings = p.warnings
	e.Base, err = remote.New(rc)
	return e, err
}

// findModel reads which model is served.
func (p *probe) findModel(ctx context.Context) error {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := p.client.JSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/v1/models"}, &models); err != nil {
		return err
	}
	if len(models.Data) == 0 {
		return fault.New(fault.Unavailable, "the engine at %s serves no model yet", p.cfg.Spec.URL.Host)
	}
	p.model = models.Data[0].ID
	return nil
}

// findProps reads the server's slots and adapters; a server without /props is not llama.cpp's own.
func (p *probe) findProps(ctx context.Context) error {
	err := p.client.JSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &p.props)
	switch {
	case remote.NotFound(err):
		return nil
	case err != nil:
		return err
	}
	p.native = p.props.Slots > 0
	var adapters []struct {
		ID   int    `json:"id"`
		Path string `json:"path"`
	}
	err = p.client.JSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/lora-adapters"}, &adapters)
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

// name is what the model is called here: a server calls it by its file unless it was told better.
func (p *probe) name() string {
	if p.cfg.Spec.Name != "" {
		return p.cfg.Spec.Name
	}
	return strings.TrimSuffix(path.Base(strings.ReplaceAll(p.model, `\`, "/")), ".gguf")
}

// card describes the model served.
func (p *probe) card() (engine.Card, error) {
	cfg := p.cfg
	card := engine.Card{
		Name: p.name(), Engine: "llamacpp", BlockSize: cmp.Or(cfg.Spec.BlockSize, defaultBlock), Ranks: 1,
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

// tokens returns what speaks tokens with the engine, nil if requests can only be passed on.
func (p *probe) tokens(ctx context.Context, card *engine.Card) (*dialect, error) {
	spec := &p.cfg.Spec
	if spec.Mode == remote.ModePass || spec.Mode == remote.ModeAuto && card.Tokenizer.Kind == "engine" {
		return nil, nil
	}
	var err error
	if p.native {
		d := &dialect{eos: card.EOS, context: card.ContextLength, adapters: p.adapters}
		var seen remote.Seen
		seen, err = remote.Ask(ctx, p.client, card, d, []kv.Token{1, 2})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && seen.Tokens > 0:
			return d, nil
		case fault.Of(err) == fault.Overloaded:
			return nil, err
		}
	}
	if spec.Mode == remote.ModeTokens {
		return nil, fmt.Errorf("the engine at %s gives no tokens by /completion (%v): it is another server, or one before December 2024; take llama.cpp's own, or set mode=%s", spec.URL.Host, err, remote.ModePass)
	}
	p.warn(engine.WarnText, "serve the model with llama.cpp's own server, of December 2024 or later",
		"the engine gives no tokens by /completion: requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// passes returns which of clients' requests can be passed on.
func (p *probe) passes(ctx context.Context) ([]string, error) {
	return p.client.Existing(ctx, "/v1/chat/completions", "/v1/completions", "/v1/messages")
}

// source returns the model of the engine's slots; a server that is not llama.cpp's own keeps one sequence
// at most, of which it says nothing: nothing is believed of that.
func (p *probe) source(card *engine.Card) (remote.Source, error) {
	if !p.native {
		p.warn(engine.WarnNoCache, "serve the model with llama.cpp's own server",
			"the engine says neither what it has cached nor what it reused: requests are not routed by prefix")
		return nil, nil
	}
	card.KVGuessed = true
	m, err := shadow.NewSlots(shadow.SlotsConfig{BlockSize: card.BlockSize, Slots: p.props.Slots, Context: card.ContextLength})
	if err != nil {
		return nil, fmt.Errorf("the engine at %s: %w", p.cfg.Spec.URL.Host, err)
	}
	return remote.Shadow(m), nil
}

// alive asks whether the server answers, and serves the same model in as many slots: while it loads its model
// it says 503, and it does not look at the name of the model in what it is asked.
func (p *probe) alive(ctx context.Context) error {
	where := "/health"
	if !p.native {
		where = "/v1/models"
	}
	if _, err := p.client.Read(ctx, &remote.Call{Method: http.MethodGet, Path: where}, 1<<20); err != nil {
		return err
	}
	now := probe{cfg: p.cfg, client: p.client}
	switch err := now.findModel(ctx); {
	case err != nil:
		return err
	case now.model != p.model:
		return remote.Another(p.cfg.Spec.URL.Host, "another model")
	case !p.native:
		return nil
	}
	if err := p.client.JSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &now.props); err != nil {
		return err
	}
	if now.props.Model != p.props.Model || now.props.Slots != p.props.Slots || now.props.Defaults.Context != p.props.Defaults.Context {
		return remote.Another(p.cfg.Spec.URL.Host, "another model, or with other slots,")
	}
	return nil
}
