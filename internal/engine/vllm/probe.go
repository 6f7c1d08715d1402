package vllm

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"penstock/core/cachemodel"
	"penstock/core/engineevents"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// The paths of the server.
const (
	pathCompletions = "/v1/completions"
	pathGenerate    = "/inference/v1/generate"
	pathTokenize    = "/tokenize"
	pathRender      = "/v1/chat/completions/render"
	pathMetrics     = "/metrics"
)

// passthroughPaths lists the paths whose client requests can be passed through, ascending.
func passthroughPaths() []string {
	return []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
}

// defaultBlockSize is the block size assumed for a server that does not report it, where it matters little.
const defaultBlockSize = 16

// serverProbe finds out what a server offers.
type serverProbe struct {
	cfg    *Config
	client *remote.Client
	pinned []string
	engine *Engine // being created
	// endpoints are the ways to ask for tokens, in the order in which they are tried.
	endpoints []endpoint
	failures  []string // why the endpoints cannot be used

	version  string
	base     servedModel
	aliases  []string
	adapters []string
	cache    cacheConfig
	dialect  remote.Dialect // nil: no tokens
	features remote.Dialect // for requests with processed media; nil: not supported
	choices  remote.ChoiceMode
	cached   remote.CachedReporting
	warnings []engine.Warning
}

// endpoint is a way to ask for tokens.
type endpoint struct {
	dialect remote.Dialect
	choices remote.ChoiceMode
}

// newProbe returns a probe for the server of cfg.
func newProbe(cfg *Config) (*serverProbe, error) {
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	p := &serverProbe{cfg: cfg, client: remote.NewClient(&cfg.Spec), pinned: rankHeaders(&cfg.Spec), engine: &Engine{}}
	p.endpoints = []endpoint{
		{&completionsDialect{p.engine, p.pinned}, remote.SingleCallIfSampled},
		{&generateDialect{p.engine, p.pinned}, remote.LeaderFirst},
	}
	return p, nil
}

// modelList is the response of /v1/models.
type modelList struct {
	Data []servedModel `json:"data"`
}

// servedModel is one of the model's names, or an adapter.
type servedModel struct {
	ID          string  `json:"id"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

func (m *modelList) fetchModels(ctx context.Context, client *remote.Client) error {
	return client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/v1/models"}, m)
}

func (m *servedModel) isAdapter() bool { return m.Parent != nil && *m.Parent != "" }

// adapterNames returns the names of the LoRA adapters, ascending.
func (m *modelList) adapterNames() (names []string) {
	for i := range m.Data {
		if m.Data[i].isAdapter() {
			names = append(names, m.Data[i].ID)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// adapterLister returns a function that lists the adapters; nil if the server takes none.
func (p *serverProbe) adapterLister() func(context.Context) ([]string, error) {
	if len(p.adapters) == 0 && !p.cache.lora {
		return nil
	}
	return func(ctx context.Context) ([]string, error) {
		var now modelList
		err := now.fetchModels(ctx, p.client)
		return now.adapterNames(), err
	}
}

// cacheConfig is the server's report of its cache in its metrics.
type cacheConfig struct {
	read          bool
	found         bool
	blockSize     int // of Penstock's index
	engineBlock   int // the engine's block size in tokens; blockSize is a multiple
	blocks        int
	prefixCaching string // "True", "False" or ""
	lora          bool   // it may have LoRA adapters
}

func (p *serverProbe) addWarning(code, remedy, format string, args ...any) {
	p.warnings = append(p.warnings, engine.Warning{Code: code, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
}

// openEngine runs all probes and creates the engine.
func (p *serverProbe) openEngine(ctx context.Context) (*Engine, error) {
	if err := remote.AwaitEngine(ctx, &p.cfg.Spec, p.cfg.Log, p.findModel); err != nil {
		return nil, err
	}
	p.findVersion(ctx)
	if err := p.findCache(ctx); err != nil {
		return nil, err
	}
	card, err := p.buildCard()
	if err != nil {
		return nil, err
	}
	if err := p.findTokenDialect(ctx, &card); err != nil {
		return nil, err
	}
	passes, err := p.client.ExistingPaths(ctx, passthroughPaths()...)
	if err != nil {
		return nil, err
	}
	if p.dialect == nil && len(passes) == 0 {
		return nil, fmt.Errorf("the engine at %s takes neither tokens nor texts over HTTP; see whether it is a vLLM server that generates", p.cfg.Spec.URL.Host)
	}
	p.findMedia(ctx, &card, passes)
	p.findFeatures(ctx, &card)
	source, err := p.cacheSource(&card)
	if err != nil {
		return nil, err
	}
	card.StructuredOutput = p.dialect != nil
	e := p.engine
	e.model, e.spec, e.client = p.base.ID, p.cfg.Spec, p.client
	e.Base, err = remote.New(remote.Config{
		Spec: p.cfg.Spec, Card: card, Client: p.client, Log: p.cfg.Log,
		Dialect: p.dialect, Features: p.features, Choices: p.choices, CachedReporting: p.cached,
		ScrapeLoad: p.loadScraper(), CheckAlive: p.checkAlive, ListAdapters: p.adapterLister(), CacheSource: source, Warnings: p.warnings,
		PassthroughPaths: passes, UpstreamModel: e.upstreamModel, Headers: p.pinned, MediaCounting: p.cfg.MediaCounting(&card, p.countRendered),
		Salts: p.saltSupport(), PassthroughSalts: p.saltSupport(), ProveSalts: p.cfg.ProveSalts, SaltsReportRemedy: "start it with --enable-prompt-tokens-details",
	})
	return e, err
}

// findModel reads the served model, its names and its adapters.
func (p *serverProbe) findModel(ctx context.Context) error {
	var all modelList
	if err := all.fetchModels(ctx, p.client); err != nil {
		return err
	}
	p.aliases, p.adapters = nil, all.adapterNames()
	found := false
	for _, m := range all.Data {
		switch {
		case m.isAdapter():
		case !found || m.ID == p.cfg.Spec.Name:
			if found {
				p.aliases = append(p.aliases, p.base.ID)
			}
			p.base, found = m, true
		default:
			p.aliases = append(p.aliases, m.ID)
		}
	}
	if !found {
		return fault.New(fault.Unavailable, "the engine at %s serves no model yet", p.cfg.Spec.URL.Host)
	}
	return nil
}

func (p *serverProbe) findVersion(ctx context.Context) {
	var v struct {
		Version string `json:"version"`
	}
	if p.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/version"}, &v) == nil {
		p.version = remote.SanitizeMessage(v.Version)
	}
}

// findCache reads the block size and the number of blocks from the metrics.
func (p *serverProbe) findCache(ctx context.Context) error {
	text, err := p.client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: pathMetrics}, maxMetrics)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		p.addWarning(engine.WarnNoMetrics, "start it with metrics on (not --disable-log-stats)", "the engine's metrics cannot be read: its load counts only the requests of this worker")
	default:
		p.cache.read = true
		p.cache.parseMetrics(text, p.cfg.Spec.Rank)
	}
	set, says := p.cfg.Spec.BlockSize, p.cache.blockSize
	p.cache.engineBlock = says
	switch {
	case says == 0 && set == 0 && p.cfg.Spec.Events.IsZero() && p.cfg.Spec.Mode == remote.ModePassthrough:
		p.cache.blockSize = defaultBlockSize
	case says == 0 && set == 0:
		return fmt.Errorf("the engine at %s does not say its block size in its metrics; set block-size to that of its --block-size", p.cfg.Spec.URL.Host)
	case set > 0 && says > 0 && set%says != 0:
		return fmt.Errorf("block-size is %d, and the engine's blocks have %d tokens: set it to %d, or a multiple of it, or leave it out", set, says, says)
	case set > 0:
		if says > 0 {
			p.cache.blocks = p.cache.blocks * says / set
		}
		p.cache.blockSize = set
	}
	if p.cache.blockSize < 2 || p.cache.blockSize > 65536 {
		return fmt.Errorf("the engine at %s has blocks of %d tokens; blocks of 2 to 65536 can be followed: set block-size to a multiple", p.cfg.Spec.URL.Host, p.cache.blockSize)
	}
	return nil
}

// maxMetrics bounds a scrape of the metrics, in bytes.
const maxMetrics = 8 << 20

// parseMetrics reads the cache_config_info of a rank, or the first one.
func (c *cacheConfig) parseMetrics(text []byte, rank int) {
	remote.EachSample(text, "vllm:cache_config_info", func(s remote.MetricSample) {
		if c.found || !isOfRank(&s, rank) {
			return
		}
		c.found = true
		c.blockSize = parseDigits(s.LabelValue("block_size"))
		// Where attention uses blocks of another size, this is the size of hashed blocks.
		if n := parseDigits(s.LabelValue("hash_block_size")); n > 0 {
			c.blockSize = n
		}
		c.blocks = parseDigits(s.LabelValue("num_gpu_blocks"))
		c.prefixCaching = string(s.LabelValue("enable_prefix_caching"))
	})
	remote.EachSample(text, "vllm:lora_requests_info", func(remote.MetricSample) { c.lora = true })
}

// isOfRank reports whether a sample belongs to a data-parallel rank: the label "engine" names it.
func isOfRank(s *remote.MetricSample, rank int) bool {
	label := s.LabelValue("engine")
	return rank == remote.AnyRank || label == nil || parseDigits(label) == rank
}

// parseDigits parses a number written in digits; 0 if it is not one.
func parseDigits(b []byte) int {
	n := 0
	for _, d := range b {
		if d < '0' || d > '9' || n > 1<<27 {
			return 0
		}
		n = n*10 + int(d-'0')
	}
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }

// buildCard describes the model.
func (p *serverProbe) buildCard() (engine.Card, error) {
	cfg := p.cfg
	card := engine.Card{
		Name: p.base.ID, Aliases: p.aliases, Engine: "vllm",
		BlockSize: p.cache.blockSize, Blocks: p.cache.blocks, Ranks: 1,
		ContextLength: p.base.MaxModelLen, VocabSize: cfg.VocabSize, EOS: cfg.EOS, Defaults: cfg.Defaults,
		Numerics: "vllm-" + p.version + "-" + p.base.Root, Adapters: p.adapters,
		Tokenizer: cfg.Tokenizer,
	}
	if cfg.Spec.Name != "" {
		card.Name = cfg.Spec.Name
	}
	if card.VocabSize == 0 {
		card.VocabSize = remote.UnknownVocabulary
	}
	if card.Tokenizer.Kind == "" {
		card.Tokenizer.Kind = "engine"
	}
	if card.ContextLength < 2 {
		return card, fmt.Errorf("the engine at %s does not say the context length of %.100q in /v1/models (max_model_len); this version of it is not known", cfg.Spec.URL.Host, card.Name)
	}
	return card, card.Validate()
}

// isPrefixCacheOff reports whether the server says that its prefix caching is off.
func (p *serverProbe) isPrefixCacheOff() bool {
	return strings.EqualFold(p.cache.prefixCaching, "false")
}

// saltSupport returns what is known of the server's salts: without a prefix cache there is nothing to prove.
func (p *serverProbe) saltSupport() remote.SaltSupport {
	if p.isPrefixCacheOff() {
		return remote.SaltsUnneeded
	}
	return remote.SaltsUnknown
}

// cacheSource returns the source of knowledge about the server's cache.
func (p *serverProbe) cacheSource(card *engine.Card) (remote.CacheSource, error) {
	spec := &p.cfg.Spec
	switch {
	case p.isPrefixCacheOff():
		card.NoPrefixCache = true
		p.addWarning(engine.WarnNoCache, "start it with --enable-prefix-caching", "the engine's prefix caching is off: it reuses nothing")
		return nil, nil
	case !spec.Events.IsZero():
		table := engineevents.Config{BlockSize: card.BlockSize, EngineBlockSize: p.cache.engineBlock, Clears: engineevents.ClearsDevice, Capacity: max(card.Blocks, 1)}
		p.cfg.SetMediaTokens(&table, engineevents.PadsNative)
		return remote.NewEventFeed(remote.EventFeedConfig{Events: spec.Events, Replay: spec.Replay, Log: p.cfg.Log, Table: table})
	}
	p.addWarning(engine.WarnNoEvents, `start it with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}', and name that with events=tcp://HOST:5557`,
		"the engine's cache events are not followed: what it has cached is guessed from the requests sent to it")
	card.KVPredicted = true
	model, err := cachemodel.NewPagedModel(cachemodel.PagedConfig{BlockSize: card.BlockSize, Capacity: max(card.Blocks, 1)})
	if err != nil {
		return nil, err
	}
	return remote.PredictedSource(model), nil
}

// findTokenDialect finds out whether and by which path the server takes and returns tokens.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) error {
	if p.cfg.Spec.Mode == remote.ModePassthrough || p.cfg.Spec.Mode == remote.ModeAuto && card.Tokenizer.Kind == "engine" {
		return nil
	}
	p.engine.model = p.base.ID
	for _, c := range p.endpoints {
		ok, err := p.tryDialect(ctx, card, c.dialect)
		if err != nil {
			return err
		}
		if ok {
			p.dialect, p.choices = c.dialect, c.choices
			return p.findCachedReporting(ctx, card)
		}
	}
	if p.cfg.Spec.Mode == remote.ModeTokens {
		return fmt.Errorf("the engine at %s gives no token ids at %s and %s (%s); take vLLM 0.10.2 or later, start it with --enable-scale-out, or set mode=%s", p.cfg.Spec.URL.Host, pathCompletions, pathGenerate, strings.Join(p.failures, "; "), remote.ModePassthrough)
	}
	why := remote.SanitizeMessage(strings.Join(p.failures, "; "))
	p.addWarning(engine.WarnTextOnly, "take vLLM 0.10.2 or later, or start it with --enable-scale-out", "the engine answers with text only, so that streams cannot move: %.200s", why)
	return nil
}

// tryDialect asks for one token, to find out whether the server returns token ids.
func (p *serverProbe) tryDialect(ctx context.Context, card *engine.Card, d remote.Dialect) (ok bool, err error) {
	seen, err := remote.ProbePrompt(ctx, p.client, card, d, p.probePrompt(card))
	if err != nil {
		switch code := fault.CodeOf(err); {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case code == fault.Overloaded:
			return false, err
		}
		p.failures = append(p.failures, err.Error())
		return false, nil
	}
	if seen.Tokens == 0 {
		p.failures = append(p.failures, "an answer without token ids")
	}
	return seen.Tokens > 0, nil
}

// probePrompt returns the prompt of probes: two blocks and one token without meaning.
func (p *serverProbe) probePrompt(card *engine.Card) []kv.Token {
	n := min(2*card.BlockSize+1, card.ContextLength-2)
	prompt := make([]kv.Token, max(n, 1))
	for i := range prompt {
		prompt[i] = kv.Token(1 + i%max(min(card.VocabSize-1, 64), 1))
	}
	return prompt
}

// findCachedReporting finds out whether the server reports cached tokens: the prompt of the previous probe is
// now in the cache.
func (p *serverProbe) findCachedReporting(ctx context.Context, card *engine.Card) error {
	seen, err := remote.ProbePrompt(ctx, p.client, card, p.dialect, p.probePrompt(card))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case seen.Cached >= 0:
		p.cached = remote.ReportsNonzero
	case strings.EqualFold(p.cache.prefixCaching, "true"):
		p.addWarning(engine.WarnNoCachedTokens, "start it with --enable-prompt-tokens-details", "the engine does not report cached tokens: what is predicted cannot be checked")
	}
	return nil
}

// loadScraper returns a function that reads the server's load; nil if it has no metrics.
func (p *serverProbe) loadScraper() func(context.Context, *remote.LoadGauges) error {
	if !p.cache.read {
		return nil
	}
	return func(ctx context.Context, g *remote.LoadGauges) error { return p.scrapeLoad(ctx, g) }
}

func (p *serverProbe) scrapeLoad(ctx context.Context, g *remote.LoadGauges) error {
	return p.client.FetchMetrics(ctx, pathMetrics, func(text []byte) { parseGauges(text, p.cfg.Spec.Rank, g) })
}

// parseGauges reads the load of a rank, or of all ranks, and the adapters in memory.
func parseGauges(text []byte, rank int, g *remote.LoadGauges) {
	ranks, newest := 0, 0.0
	remote.EachSample(text, "vllm:", func(s remote.MetricSample) {
		if !isOfRank(&s, rank) {
			return
		}
		switch string(s.Name) {
		case "vllm:num_requests_running":
			g.Running += int(s.Value)
		case "vllm:num_requests_waiting":
			g.Waiting += int(s.Value)
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc":
			g.Usage += s.Value
			ranks++
		case "vllm:prompt_tokens_total", "vllm:generation_tokens_total":
			g.Tokens += uint64(max(s.Value, 0))
		case "vllm:num_preemptions_total":
			g.Preemptions += uint64(max(s.Value, 0))
		case "vllm:lora_requests_info": // each set of names is a series of its own; its value is a time stamp
			if s.Value >= newest {
				newest = s.Value
				g.Adapters = appendNames(g.Adapters[:0], s.LabelValue("running_lora_adapters"))
			}
		}
	})
	if ranks > 1 {
		g.Usage /= float64(ranks)
	}
}

// appendNames appends the names of a comma-separated list, each once.
func appendNames(dst []string, list []byte) []string {
	for name := range strings.SplitSeq(string(list), ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(dst, name) {
			dst = append(dst, name)
		}
	}
	return dst
}
