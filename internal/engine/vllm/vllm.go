// Package vllm adapts a running vLLM server to the contract of engines: tokens in and out over
// /v1/completions or, if the server has only that, /inference/v1/generate; passthrough of clients' requests;
// prompts by /tokenize; cache content by its published events.
package vllm

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// Config names the server and what is known of its model.
type Config = remote.OpenConfig

// Engine is a vLLM server as an engine. Open it with [Open].
type Engine struct {
	*remote.Base
	model  string // the server's name of it
	spec   remote.Spec
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
	_ remote.Dialect           = (*completionsDialect)(nil)
	_ remote.Dialect           = (*generateDialect)(nil)
)

// Open probes the server, see [remote.Probe.Open].
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	p, err := newProbe(&cfg)
	if err != nil {
		return nil, err
	}
	return p.openEngine(ctx)
}

// rankHeaders returns the headers that pin a call to a data-parallel rank.
func rankHeaders(spec *remote.Spec) []string {
	if spec.Rank == remote.AnyRank || spec.Ranks <= 1 {
		return nil
	}
	return []string{"X-data-parallel-rank", strconv.Itoa(spec.Rank)}
}

// upstreamModel returns the server's name of a request's model: an adapter has its own name.
func (e *Engine) upstreamModel(lora string) string {
	if lora != "" {
		return lora
	}
	return e.model
}

// checkAlive checks that the server answers and serves the same model.
func (p *serverProbe) checkAlive(ctx context.Context) error {
	if err := p.CheckHealth(ctx, "/health"); err != nil {
		return err
	}
	if err := p.checkSameModel(ctx); err != nil {
		return err
	}
	return p.checkPrefixCacheOff(ctx)
}

// checkSameModel checks that the server serves the same model.
func (p *serverProbe) checkSameModel(ctx context.Context) error {
	now, err := p.Client.ListModels(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(now, func(m remote.ServedModel) bool { return m.ID == p.base.ID })
	switch {
	case i < 0 || now[i].Root != p.base.Root:
		return p.DifferentError("another model")
	case now[i].MaxModelLen != p.base.MaxModelLen:
		return p.DifferentError("another context length")
	}
	return nil
}

// checkPrefixCacheOff checks that a server without prefix cache still has none: a cache would have to be
// followed, and its salts proven.
func (p *serverProbe) checkPrefixCacheOff(ctx context.Context) error {
	if !p.isPrefixCacheOff() {
		return nil
	}
	text, err := p.Client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: pathMetrics}, maxMetrics)
	if err != nil {
		return err
	}
	now := serverProbe{}
	if now.cache.parseMetrics(text, p.Config.Spec.Rank); !now.isPrefixCacheOff() {
		return p.DifferentError("with other settings (prefix caching is on)")
	}
	return nil
}
