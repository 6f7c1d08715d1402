package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"penstock/core/cachemodel"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/backoff"
	"penstock/internal/engine"
)

// Probe finds out what a server offers. The adapters embed it.
type Probe struct {
	Config   *OpenConfig
	Client   *Client
	Model    string   // the server's first name of it
	Length   int      // context length of the model; 0 if not reported
	Adapters []string // names of LoRA adapters, ascending
	Version  string   // of the server, if it has /version
	Warnings []engine.Warning
}

// Steps are what an adapter does to open an engine, in the order of the fields. A nil step does nothing.
type Steps struct {
	// FindModel reads the served model. It is repeated while the server loads. Probe.FindModel does it for
	// servers with one name of the model.
	FindModel func(context.Context) error
	// FindServer reads the server's settings.
	FindServer func(context.Context) error
	// BuildCard describes the model, see Probe.NewCard.
	BuildCard func() (engine.Card, error)
	// FindDialect returns the way to ask for tokens; nil if requests can only be passed through. It is not called
	// if the settings or a missing tokenizer rule tokens out.
	FindDialect func(context.Context, *engine.Card) (Dialect, error)
	// PassthroughPaths are the paths whose client requests can be passed through, if the server has them.
	PassthroughPaths []string
	// Complete sets the other fields of the configuration, except Warnings.
	Complete func(context.Context, *Config) error
}

// NewProbe returns a probe of the server of cfg.
func NewProbe(cfg *OpenConfig) (Probe, error) {
	if err := cfg.Prepare(); err != nil {
		return Probe{}, err
	}
	return Probe{Config: cfg, Client: NewClient(&cfg.Spec)}, nil
}

// Open performs the steps and creates the engine, which does nothing until Run. It waits while the server loads
// its model. Contradictory settings are an error that says what to set; settings with which the server works
// worse than it could become warnings. It is called once: an error closes the client.
func (p *Probe) Open(ctx context.Context, steps Steps) (*Base, error) {
	rc, err := p.performSteps(ctx, &steps)
	if err == nil {
		var b *Base
		if b, err = New(rc); err == nil {
			return b, nil
		}
	}
	p.Client.Close()
	return nil, err
}

// performSteps returns the configuration which the steps find out.
func (p *Probe) performSteps(ctx context.Context, steps *Steps) (rc Config, err error) {
	if err = AwaitEngine(ctx, &p.Config.Spec, p.Config.Log, steps.FindModel); err != nil {
		return rc, err
	}
	if steps.FindServer != nil {
		if err = steps.FindServer(ctx); err != nil {
			return rc, err
		}
	}
	rc = Config{Spec: p.Config.Spec, Client: p.Client, Log: p.Config.Log, ProveSalts: p.Config.ProveSalts}
	if rc.Card, err = steps.BuildCard(); err != nil {
		return rc, err
	}
	if err = rc.Card.Validate(); err != nil {
		return rc, err
	}
	if mode := rc.Spec.Mode; mode == ModeTokens || mode == ModeAuto && rc.Card.Tokenizer.Kind != "engine" {
		if rc.Dialect, err = steps.FindDialect(ctx, &rc.Card); err != nil {
			return rc, err
		}
	}
	if rc.PassthroughPaths, err = p.Client.ExistingPaths(ctx, steps.PassthroughPaths...); err != nil {
		return rc, err
	}
	err = steps.Complete(ctx, &rc)
	rc.Warnings = p.Warnings
	return rc, err
}

// AddWarning records a setting with which the server works worse than it could.
func (p *Probe) AddWarning(code, remedy, detail string) {
	p.Warnings = append(p.Warnings, engine.Warning{Code: code, Detail: detail, Remedy: remedy})
}

// ServedModel is an entry of /v1/models: a name of the model, or an adapter, which has a parent.
type ServedModel struct {
	ID          string `json:"id"`
	Root        string `json:"root"`
	Parent      string `json:"parent"`
	MaxModelLen int    `json:"max_model_len"`
}

// ListModels returns the entries of /v1/models.
func (c *Client) ListModels(ctx context.Context) ([]ServedModel, error) {
	var all struct {
		Data []ServedModel `json:"data"`
	}
	err := c.DoJSON(ctx, &Call{Method: http.MethodGet, Path: "/v1/models"}, &all)
	return all.Data, err
}

// AdapterNames returns the names of the LoRA adapters among models, ascending.
func AdapterNames(models []ServedModel) (names []string) {
	for _, m := range models {
		if m.Parent != "" {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// FindModel reads the served model and its adapters.
func (p *Probe) FindModel(ctx context.Context) error {
	all, err := p.Client.ListModels(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m ServedModel) bool { return m.Parent == "" && m.ID != "" })
	if i < 0 {
		return p.NoModelError()
	}
	p.Model, p.Length, p.Adapters = all[i].ID, all[i].MaxModelLen, AdapterNames(all)
	return nil
}

// NoModelError is the error of a server which serves no model yet.
func (p *Probe) NoModelError() error {
	return fault.New(fault.Unavailable, "the engine at %s serves no model yet", p.Config.Spec.URL.Host)
}

// CheckSame checks, at no cost to the engine, that the server serves the same model: some ignore the model's name
// in requests.
func (p *Probe) CheckSame(ctx context.Context) error {
	now := Probe{Config: p.Config, Client: p.Client}
	switch err := now.FindModel(ctx); {
	case err != nil:
		return err
	case now.Model != p.Model:
		return p.DifferentError("another model")
	case now.Length != p.Length:
		return p.DifferentError("another context length")
	}
	return nil
}

// CheckModel checks that the server answers at a path and serves the same model.
func (p *Probe) CheckModel(ctx context.Context, path string) error {
	if err := p.CheckHealth(ctx, path); err != nil {
		return err
	}
	return p.CheckSame(ctx)
}

// DifferentError is the error of a server which was replaced by one that serves something else.
func (p *Probe) DifferentError(what string) error {
	return DifferentEngineError(p.Config.Spec.URL.Host, what)
}

// CheckHealth checks that the server answers at a path.
func (p *Probe) CheckHealth(ctx context.Context, path string) error {
	_, err := p.Client.ReadBody(ctx, &Call{Method: http.MethodGet, Path: path}, 1<<20)
	return err
}

// FindVersion reads the server's version, if it has /version.
func (p *Probe) FindVersion(ctx context.Context) {
	var v struct {
		Version string `json:"version"`
	}
	if p.Client.DoJSON(ctx, &Call{Method: http.MethodGet, Path: "/version"}, &v) == nil {
		p.Version = SanitizeMessage(v.Version)
	}
}

// NewCard returns a card with what is known of the model from the settings and the list of models. name is its
// name unless the settings give one.
func (p *Probe) NewCard(kind, name string) engine.Card {
	cfg := p.Config
	card := engine.Card{
		Name: cmp.Or(cfg.Spec.Name, name), Engine: kind, Ranks: 1, VocabSize: cmp.Or(cfg.VocabSize, UnknownVocabulary),
		EOS: cfg.EOS, Defaults: cfg.Defaults, Adapters: p.Adapters, Tokenizer: cfg.Tokenizer,
	}
	card.Tokenizer.Kind = cmp.Or(card.Tokenizer.Kind, "engine")
	if card.Name != p.Model {
		card.Aliases = []string{p.Model}
	}
	return card
}

// TryDialect asks for one token after prompt in d. why says why the server returned no token ids; it is nil if it
// did. err ends the opening.
func (p *Probe) TryDialect(ctx context.Context, card *engine.Card, d Dialect, prompt []kv.Token) (why, err error) {
	seen, why := ProbePrompt(ctx, p.Client, card, d, prompt)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case fault.CodeOf(why) == fault.Overloaded:
		return nil, why
	case why == nil && seen.Tokens == 0:
		return errNoTokens, nil
	}
	return why, nil
}

// errNoTokens is the reason of a server which answers with text alone.
var errNoTokens = errors.New("an answer without token ids")

// FollowPaged predicts the cache of an engine without events from the requests which are sent to it.
func (p *Probe) FollowPaged(card *engine.Card, remedy, detail string) (CacheSource, error) {
	card.KVPredicted = true
	p.AddWarning(engine.WarnNoEvents, remedy, detail)
	m, err := cachemodel.NewPagedModel(cachemodel.PagedConfig{BlockSize: card.BlockSize, Capacity: max(card.Blocks, 1)})
	if err != nil {
		return nil, err
	}
	return PredictedSource(m), nil
}

// ProbeResult is the result of a probe request to an engine.
type ProbeResult struct {
	Tokens int // of output
	Cached int // of the prompt, engine.CachedUnknown if the engine did not report them
	// HandsOver says that the engine gave a handoff.
	HandsOver bool
}

// ProbePrompt lets an engine generate one token after prompt, to find out what it can do.
func ProbePrompt(ctx context.Context, client *Client, card *engine.Card, d Dialect, prompt []kv.Token) (ProbeResult, error) {
	return ProbePreprocessed(ctx, client, card, d, &engine.Preprocessed{Tokens: prompt})
}

// ProbePreprocessed is ProbePrompt for a prompt with media which a processor has processed.
func ProbePreprocessed(ctx context.Context, client *Client, card *engine.Card, d Dialect, p *engine.Preprocessed) (ProbeResult, error) {
	return probeRequest(ctx, client, card, d, &engine.Request{Prompt: p.Tokens, Media: p.Media, Features: p.Features})
}

// ProbePrefillLeg is ProbePrompt for a prefill leg, to find out whether the engine hands over. What it keeps for the decode
// leg is not fetched: it is free at the end of its lease.
func ProbePrefillLeg(ctx context.Context, client *Client, card *engine.Card, d Dialect, prompt []kv.Token) (ProbeResult, error) {
	return probeRequest(ctx, client, card, d, &engine.Request{Prompt: prompt, Leg: engine.LegPrefill})
}

// probeRequest sends req, whose other fields it sets.
func probeRequest(ctx context.Context, client *Client, card *engine.Card, d Dialect, req *engine.Request) (ProbeResult, error) {
	b, err := New(Config{Card: *card, Client: client, Dialect: d})
	if err != nil {
		return ProbeResult{}, err
	}
	req.ID, req.Attempt, req.Choices, req.Logprobs, req.Model = "penstock-probe", 1, 1, -1, card.Name
	req.Stop = engine.Stop{MaxTokens: 1, IgnoreEOS: true}
	seen := ProbeResult{Cached: engine.CachedUnknown}
	err = b.runAttempt(ctx, newAttempt(b, req, func(d *engine.Delta) error {
		seen.Tokens += len(d.Tokens)
		seen.HandsOver = seen.HandsOver || d.Handoff != nil
		if !d.Accepted {
			seen.Cached = max(seen.Cached, d.Cached)
		}
		return nil
	}))
	return seen, err
}

// The intervals of probes of an engine that is loading, and of log lines about it.
const (
	loadingPauseMin    = 100 * time.Millisecond
	loadingPauseMax    = 2 * time.Second
	loadingLogInterval = 15 * time.Second
)

// AwaitEngine calls ask until the engine answers: it repeats ask while this returns Unavailable or Overloaded
// errors, since engines that load their model refuse connections or answer 503. After spec.LoadTimeout, or
// when ctx ends, the error includes the last error of ask.
func AwaitEngine(ctx context.Context, spec *Spec, log *slog.Logger, ask func(context.Context) error) error {
	began, said := time.Now(), time.Now()
	for wait := loadingPauseMin; ; wait = min(2*wait, loadingPauseMax) {
		err := ask(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.CodeOf(err) != fault.Unavailable && fault.CodeOf(err) != fault.Overloaded:
			return err
		case time.Since(began) >= spec.LoadTimeout:
			return fault.New(fault.Unavailable, "the engine at %s has not begun to serve in %v: %w", spec.URL.Host, spec.LoadTimeout, err)
		}
		if time.Since(said) >= loadingLogInterval {
			said = time.Now()
			log.Info("waiting for the engine", "engine", spec.URL.Host, "for", time.Since(began).Round(time.Second), "error", err)
		}
		if perr := backoff.SleepContext(ctx, wait); perr != nil {
			return fmt.Errorf("%w (the engine: %w)", perr, err)
		}
	}
}

// OpenConfig configures the opening of an adapter: the server, and what is known of its model.
type OpenConfig struct {
	Spec Spec
	// Tokenizer locates the model's tokenizer and template. With Kind "engine" only the engine has them: then
	// requests are passed through, and the other facts about the model are not needed.
	Tokenizer engine.TokenizerRef
	VocabSize int
	// ContextLength is that of the checkpoint, for engines that do not report theirs; 0 if unknown.
	ContextLength int
	EOS           []kv.Token
	Defaults      engine.Sampling
	// Media are the kinds of media that the model takes according to the settings; nil means to find them
	// out.
	Media []string
	// Family says how the model's prompts show media; nil if unknown.
	Family *family.Family
	// NoFamilyReason says why Family is nil, as a sentence without its full stop; "" if there is nothing to
	// report.
	NoFamilyReason string
	// EnginePrompts says that frontends let engines make their prompts, so that nothing is counted here.
	EnginePrompts bool
	// MediaKeys says how the engine is sent the keys of media according to the settings: as in a card, or
	// MediaKeysOff.
	MediaKeys string
	// ProveSalts starts the proof that the engine isolates cache salts as soon as the engine runs; else the
	// first request with a salt starts it.
	ProveSalts bool
	// ProcessorArgs are the arguments with which the engine calls its media processor according to the
	// settings: a JSON object; "" if not set.
	ProcessorArgs string
	// LocalPrompt makes the prompt of a conversation as frontends do, see MediaCounting; nil leaves the
	// engine's counts unchecked.
	LocalPrompt func(ctx context.Context, kind media.Kind, url string) (MediaPrompt, error)
	Log         *slog.Logger // nil discards
}

// UnknownVocabulary is the vocabulary size of a model whose tokenizer is unknown here.
const UnknownVocabulary = 1<<31 - 1

// Prepare sets defaults, and reports every problem of the Spec.
func (o *OpenConfig) Prepare() error {
	o.Spec.EnsureDefaults()
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o.Spec.Validate()
}

// ExistingPaths returns the paths that the engine has and that take POST, in their order.
func (c *Client) ExistingPaths(ctx context.Context, paths ...string) ([]string, error) {
	var all []string
	for _, path := range paths {
		ok, err := c.hasPath(ctx, path)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, path)
		}
	}
	return all, nil
}
