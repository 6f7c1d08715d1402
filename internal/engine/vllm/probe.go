package vllm

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"penstock/core/engineevents"
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
	remote.Probe
	pinned []string
	engine *Engine // being created
	// endpoints are the ways to ask for tokens, in the order in which they are tried.
	endpoints []endpoint

	base    remote.ServedModel
	aliases []string
	cache   cacheConfig
	choices remote.ChoiceMode
	cached  remote.CachedReporting
}

// endpoint is a way to ask for tokens.
type endpoint struct {
	dialect remote.Dialect
	choices remote.ChoiceMode
}

// newProbe returns a probe for the server of cfg.
func newProbe(cfg *Config) (*serverProbe, error) {
	probe, err := remote.NewProbe(cfg)
	if err != nil {
		return nil, err
	}
	p := &serverProbe{Probe: probe, pinned: rankHeaders(&cfg.Spec), engine: &Engine{}}
	p.endpoints = []endpoint{
		{&completionsDialect{p.engine, p.pinned}, remote.SingleCallIfSampled},
		{&generateDialect{p.engine, p.pinned}, remote.LeaderFirst},
	}
	return p, nil
}

// adapterLister returns a function that lists the adapters; nil if the server takes none.
func (p *serverProbe) adapterLister() func(context.Context) ([]string, error) {
	if len(p.Adapters) == 0 && !p.cache.lora {
		return nil
	}
	return func(ctx context.Context) ([]string, error) {
		now, err := p.Client.ListModels(ctx)
		return remote.AdapterNames(now), err
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

// openEngine performs the steps and creates the engine.
func (p *serverProbe) openEngine(ctx context.Context) (*Engine, error) {
	base, err := p.Open(ctx, remote.Steps{
		FindModel: p.findModel, FindServer: p.findServer, BuildCard: p.buildCard, FindDialect: p.findTokenDialect,
		PassthroughPaths: passthroughPaths(), Complete: p.complete,
	})
	if err != nil {
		return nil, err
	}
	p.engine.Base = base
	return p.engine, nil
}

// complete sets what is particular to vLLM.
func (p *serverProbe) complete(ctx context.Context, rc *remote.Config) (err error) {
	if rc.Dialect == nil && len(rc.PassthroughPaths) == 0 {
		return fmt.Errorf("the engine at %s takes neither tokens nor texts over HTTP; see whether it is a vLLM server that generates", p.Config.Spec.URL.Host)
	}
	card := &rc.Card
	p.findMedia(ctx, card, rc.PassthroughPaths)
	rc.TakesEncodings = p.Config.Spec.ECRole == remote.ECConsumer
	if err := p.refuseProducer(ctx, card); err != nil {
		return err
	}
	if err := p.checkConsumer(card); err != nil {
		return err
	}
	if err := p.checkConnector(ctx, card, rc.Dialect); err != nil {
		return err
	}
	if rc.Dialect != nil {
		rc.Features = p.findFeatures(ctx, card)
	}
	if rc.CacheSource, err = p.cacheSource(card); err != nil {
		return err
	}
	card.StructuredOutput = rc.Dialect != nil
	rc.Choices, rc.CachedReporting, rc.Headers = p.choices, p.cached, p.pinned
	rc.ScrapeLoad, rc.CheckAlive, rc.ListAdapters = p.loadScraper(), p.checkAlive, p.adapterLister()
	rc.UpstreamModel, rc.MediaCounting = p.engine.upstreamModel, p.Config.MediaCounting(card, p.countRendered)
	rc.Salts, rc.PassthroughSalts, rc.SaltsReportRemedy = p.saltSupport(), p.saltSupport(), "start it with --enable-prompt-tokens-details"
	return nil
}

// findModel reads the served model, its names and its adapters.
func (p *serverProbe) findModel(ctx context.Context) error {
	all, err := p.Client.ListModels(ctx)
	if err != nil {
		return err
	}
	p.aliases, p.Adapters = nil, remote.AdapterNames(all)
	found := false
	for _, m := range all {
		switch {
		case m.Parent != "":
		case !found || m.ID == p.Config.Spec.Name:
			if found {
				p.aliases = append(p.aliases, p.base.ID)
			}
			p.base, found = m, true
		default:
			p.aliases = append(p.aliases, m.ID)
		}
	}
	if !found {
		return p.NoModelError()
	}
	e := p.engine
	e.model, e.spec, e.client = p.base.ID, p.Config.Spec, p.Client
	return nil
}

func (p *serverProbe) findServer(ctx context.Context) error {
	p.FindVersion(ctx)
	return p.findCache(ctx)
}

// findCache reads the block size and the number of blocks from the metrics.
func (p *serverProbe) findCache(ctx context.Context) error {
	text, err := p.Client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: pathMetrics}, maxMetrics)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		p.AddWarning(engine.WarnNoMetrics, "start it with metrics on (not --disable-log-stats)", "the engine's metrics cannot be read: its load counts only the requests of this worker")
	default:
		p.cache.read = true
		p.cache.parseMetrics(text, p.Config.Spec.Rank)
	}
	set, says := p.Config.Spec.BlockSize, p.cache.blockSize
	p.cache.engineBlock = says
	switch {
	case says == 0 && set == 0 && p.Config.Spec.Events.IsZero() && p.Config.Spec.Mode == remote.ModePassthrough:
		p.cache.blockSize = defaultBlockSize
	case says == 0 && set == 0:
		return fmt.Errorf("the engine at %s does not say its block size in its metrics; set block-size to that of its --block-size", p.Config.Spec.URL.Host)
	case set > 0 && says > 0 && set%says != 0:
		return fmt.Errorf("block-size is %d, and the engine's blocks have %d tokens: set it to %d, or a multiple of it, or leave it out", set, says, says)
	case set > 0:
		if says > 0 {
			p.cache.blocks = p.cache.blocks * says / set
		}
		p.cache.blockSize = set
	}
	if p.cache.blockSize < 2 || p.cache.blockSize > 65536 {
		return fmt.Errorf("the engine at %s has blocks of %d tokens; blocks of 2 to 65536 can be followed: set block-size to a multiple", p.Config.Spec.URL.Host, p.cache.blockSize)
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

// buildCard describes the model.
func (p *serverProbe) buildCard() (engine.Card, error) {
	card := p.NewCard("vllm", p.base.ID)
	card.Aliases, card.BlockSize, card.Blocks = p.aliases, p.cache.blockSize, p.cache.blocks
	card.ContextLength, card.Numerics = p.base.MaxModelLen, "vllm-"+p.Version+"-"+p.base.Root
	if p.Config.Spec.ECRole != remote.NoECRole {
		card.Encoder = "vllm " + p.Version + " " + p.base.Root
	}
	if card.ContextLength < 2 {
		return card, fmt.Errorf("the engine at %s does not say the context length of %.100q in /v1/models (max_model_len); this version of it is not known", p.Config.Spec.URL.Host, card.Name)
	}
	return card, nil
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
	spec := &p.Config.Spec
	switch {
	case p.isPrefixCacheOff():
		card.NoPrefixCache = true
		p.AddWarning(engine.WarnNoCache, "start it with --enable-prefix-caching", "the engine's prefix caching is off: it reuses nothing")
		return nil, nil
	case !spec.Events.IsZero():
		table := engineevents.Config{BlockSize: card.BlockSize, EngineBlockSize: p.cache.engineBlock, Clears: engineevents.ClearsDevice, Capacity: max(card.Blocks, 1)}
		p.Config.SetMediaTokens(&table, engineevents.PadsNative)
		return remote.NewEventFeed(remote.EventFeedConfig{Events: spec.Events, Replay: spec.Replay, Log: p.Config.Log, Table: table})
	}
	return p.FollowPaged(card, `start it with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}', and name that with events=tcp://HOST:5557`,
		"the engine's cache events are not followed: what it has cached is guessed from the requests sent to it")
}

// findTokenDialect finds out whether and by which path the server takes and returns tokens.
func (p *serverProbe) findTokenDialect(ctx context.Context, card *engine.Card) (remote.Dialect, error) {
	var failures []string
	for _, c := range p.endpoints {
		why, err := p.TryDialect(ctx, card, c.dialect, p.probePrompt(card))
		if err != nil {
			return nil, err
		}
		if why == nil {
			p.choices = c.choices
			return c.dialect, p.findCachedReporting(ctx, card, c.dialect)
		}
		failures = append(failures, why.Error())
	}
	why := strings.Join(failures, "; ")
	if p.Config.Spec.Mode == remote.ModeTokens {
		return nil, fmt.Errorf("the engine at %s gives no token ids at %s and %s (%s); take vLLM 0.10.2 or later, start it with --enable-scale-out, or set mode=%s", p.Config.Spec.URL.Host, pathCompletions, pathGenerate, why, remote.ModePassthrough)
	}
	p.AddWarning(engine.WarnTextOnly, "take vLLM 0.10.2 or later, or start it with --enable-scale-out",
		fmt.Sprintf("the engine answers with text only, so that streams cannot move: %.200s", remote.SanitizeMessage(why)))
	return nil, nil
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
func (p *serverProbe) findCachedReporting(ctx context.Context, card *engine.Card, d remote.Dialect) error {
	seen, err := remote.ProbePrompt(ctx, p.Client, card, d, p.probePrompt(card))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case seen.Cached >= 0:
		p.cached = remote.ReportsNonzero
	case strings.EqualFold(p.cache.prefixCaching, "true"):
		p.AddWarning(engine.WarnNoCachedTokens, "start it with --enable-prompt-tokens-details", "the engine does not report cached tokens: what is predicted cannot be checked")
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
	return p.Client.FetchMetrics(ctx, pathMetrics, func(text []byte) { parseGauges(text, p.Config.Spec.Rank, g) })
}

// parseGauges reads the load of a rank, or of all ranks, and the adapters in use. A server keeps the max_lora which were used
// last in memory.
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
				slots, _ := strconv.Atoi(string(s.LabelValue("max_lora")))
				g.AdapterSlots = max(slots, 1)
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
