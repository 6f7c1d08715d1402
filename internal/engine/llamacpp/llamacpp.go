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
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"penstock/core/cachemodel"
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
	remote.Probe
	props      serverProps
	native     bool
	adapterIDs map[string]int
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

// Open probes the server, see [remote.Probe.Open].
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	probe, err := remote.NewProbe(&cfg)
	if err == nil && !cfg.Spec.Events.IsZero() {
		err = fmt.Errorf("the engine at %s: llama.cpp publishes no cache events; leave events out", cfg.Spec.URL.Host)
	}
	if err != nil {
		return nil, err
	}
	p := &serverProbe{Probe: probe}
	base, err := p.Open(ctx, remote.Steps{
		FindModel: p.FindModel, FindServer: p.findServer, BuildCard: p.buildCard, FindDialect: p.findTokenDialect,
		PassthroughPaths: []string{"/v1/chat/completions", "/v1/completions", "/v1/messages"}, Complete: p.complete,
	})
	if err != nil {
		return nil, err
	}
	return &Engine{Base: base, client: p.Client, native: p.native}, nil
}

// complete sets what is particular to llama.cpp.
func (p *serverProbe) complete(ctx context.Context, rc *remote.Config) (err error) {
	card := &rc.Card
	if card.StructuredOutput = rc.Dialect != nil; card.StructuredOutput {
		rc.CachedReporting, rc.NoReportRemedy = remote.ReportsAlways, "take a newer llama.cpp: /completion should say timings.cache_n"
	} else {
		card.Adapters = nil // passthrough requests cannot name one
	}
	if rc.CacheSource, err = p.cacheSource(card); err != nil {
		return err
	}
	p.Config.SetMediaFields(card, p.props.mediaKinds(), "") // it takes no keys: its slots identify media by their pixels
	rc.Choices, rc.Continuations = remote.Parallel, remote.SeveralCalls
	rc.ScrapeLoad, rc.CheckAlive, rc.MediaCounting = p.loadScraper(ctx), p.checkAlive, p.Config.MediaCounting(card, nil)
	rc.UpstreamModel, rc.PassthroughSalts = func(string) string { return p.Model }, remote.SaltsIgnored
	rc.SaltsRemedy = "ask without cache_salt, or name the model's files with --model-path: llama.cpp has no salts, and only in tokens can it be told what not to reuse"
	return nil
}

// findServer reads the server's slots and adapters; a server without /props is not llama.cpp's own.
func (p *serverProbe) findServer(ctx context.Context) error {
	err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &p.props)
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
	err = p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/lora-adapters"}, &adapters)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.adapterIDs = map[string]int{}
	for _, a := range adapters {
		name := strings.TrimSuffix(path.Base(a.Path), path.Ext(a.Path))
		if _, twice := p.adapterIDs[name]; !twice && err == nil && a.Path != "" {
			p.adapterIDs[name] = a.ID
		}
	}
	return nil
}

// buildCard describes the model served.
func (p *serverProbe) buildCard() (engine.Card, error) {
	// The server's name of the model is its file name by default.
	card := p.NewCard("llamacpp", strings.TrimSuffix(path.Base(strings.ReplaceAll(p.Model, `\`, "/")), ".gguf"))
	card.BlockSize = cmp.Or(p.Config.Spec.BlockSize, defaultBlock)
	card.ContextLength = cmp.Or(max(p.props.Defaults.Context, 0), p.Config.ContextLength, defaultContext)
	card.Numerics = "llamacpp-" + p.props.Build + "-" + path.Base(p.props.Model)
	card.Adapters = slices.Sorted(maps.Keys(p.adapterIDs))
	card.Blocks = max(p.props.Slots, 1) * ((card.ContextLength + card.BlockSize - 1) / card.BlockSize)
	return card, nil
}

// findTokenDialect returns the dialect for tokens, nil if the server has none.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (remote.Dialect, error) {
	var why error
	if p.native {
		d := &completionDialect{eos: card.EOS, context: card.ContextLength, adapters: p.adapterIDs}
		var err error
		if why, err = p.TryDialect(ctx, card, d, []kv.Token{1, 2}); err != nil {
			return nil, err
		} else if why == nil {
			return d, nil
		}
	}
	if spec := &p.Config.Spec; spec.Mode == remote.ModeTokens {
		return nil, fmt.Errorf("the engine at %s gives no tokens by /completion (%v): it is another server, or one before December 2024; take llama.cpp's own, or set mode=%s", spec.URL.Host, why, remote.ModePassthrough)
	}
	p.AddWarning(engine.WarnTextOnly, "serve the model with llama.cpp's own server, of December 2024 or later",
		"the engine gives no tokens by /completion: requests are passed on as they are, and streams cannot move to another worker")
	return nil, nil
}

// cacheSource returns the model of the engine's slots. A server that is not llama.cpp's own keeps at most one
// sequence and does not report it: nothing is predicted for it.
func (p *serverProbe) cacheSource(card *engine.Card) (remote.CacheSource, error) {
	if !p.native {
		p.AddWarning(engine.WarnNoCache, "serve the model with llama.cpp's own server",
			"the engine says neither what it has cached nor what it reused: requests are not routed by prefix")
		return nil, nil
	}
	card.KVPredicted = true
	m, err := cachemodel.NewSlotModel(cachemodel.SlotConfig{BlockSize: card.BlockSize, Slots: p.props.Slots, Context: card.ContextLength})
	if err != nil {
		return nil, fmt.Errorf("the engine at %s: %w", p.Config.Spec.URL.Host, err)
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
	if err := p.CheckModel(ctx, where); err != nil || !p.native {
		return err
	}
	var now serverProps
	if err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/props"}, &now); err != nil {
		return err
	}
	if now.Model != p.props.Model || now.Slots != p.props.Slots || now.Defaults.Context != p.props.Defaults.Context {
		return p.DifferentError("another model, or with other slots,")
	}
	return nil
}

// loadScraper returns a function that reads the engine's load from its metrics, else from its slots; nil if
// neither is on.
func (p *serverProbe) loadScraper(ctx context.Context) func(context.Context, *remote.LoadGauges) error {
	for _, read := range []func(context.Context, *remote.LoadGauges) error{p.scrapeMetrics, p.scrapeSlots} {
		var g remote.LoadGauges
		if p.native && read(ctx, &g) == nil {
			return read
		}
	}
	p.AddWarning(engine.WarnNoMetrics, "start llama.cpp's server with --metrics",
		"the engine tells its load neither by /metrics nor by /slots: only the requests of this worker count")
	return nil
}

func (p *serverProbe) scrapeMetrics(ctx context.Context, g *remote.LoadGauges) error {
	return p.Client.FetchMetrics(ctx, "/metrics", func(text []byte) { p.parseMetrics(text, g) })
}

// parseMetrics reads the relevant series.
func (p *serverProbe) parseMetrics(text []byte, g *remote.LoadGauges) {
	remote.EachSample(text, "llamacpp:", func(m remote.MetricSample) {
		switch string(m.Name) {
		case "llamacpp:requests_processing":
			g.Running = int(min(max(m.Value, 0), 1<<30))
		case "llamacpp:n_decode_total": // batches computed: a long prompt takes several
			g.Tokens = uint64(max(m.Value, 0))
		case "llamacpp:requests_deferred":
			g.Waiting = int(min(max(m.Value, 0), 1<<30))
		}
	})
	g.Usage = min(float64(g.Running)/float64(p.props.Slots), 1)
}

func (p *serverProbe) scrapeSlots(ctx context.Context, g *remote.LoadGauges) error {
	var slots []struct {
		Processing bool `json:"is_processing"`
	}
	if err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/slots"}, &slots); err != nil {
		return err
	}
	for _, s := range slots {
		if s.Processing {
			g.Running++
		}
	}
	g.Usage = min(float64(g.Running)/float64(p.props.Slots), 1)
	return nil
}
