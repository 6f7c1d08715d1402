// Package python is the adapter of Python functions: serve_endpoint of sdk/python serves one by the protocol of
// docs/format/python.md. The function gets token ids and returns token ids.
package python

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"penstock/core/engineevents"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// Config names the server and what is known of its model.
type Config = remote.OpenConfig

// Engine is a Python function as an engine. Open it with [Open].
type Engine struct{ *remote.Base }

// Compile-time guards.
var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
	_ remote.Dialect    = (*functionDialect)(nil)
)

// functionDialect speaks /generate.
type functionDialect struct {
	model string
	eos   []kv.Token
}

const (
	// defaultContext is the context length if neither serve_endpoint nor a checkpoint gives it.
	defaultContext = 4096

	pathHealth   = "/health"
	pathModels   = "/v1/models"
	pathGenerate = "/generate"
)

// functionProbe finds out what a function offers.
type functionProbe struct {
	remote.Probe
	cache cacheFacts
}

// cacheFacts are the members of an entry of /v1/models which only this protocol has.
type cacheFacts struct {
	BlockSize int `json:"block_size"`
	Blocks    int `json:"blocks"` // capacity of its KV cache; 0 if it has none
}

// Open probes the server, see [remote.Probe.Open].
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	probe, err := remote.NewProbe(&cfg)
	if err != nil {
		return nil, err
	}
	p := &functionProbe{Probe: probe}
	base, err := p.Open(ctx, remote.Steps{
		FindModel: p.FindModel, FindServer: p.findServer, BuildCard: p.buildCard, FindDialect: p.findDialect, Complete: p.complete,
	})
	if err != nil {
		return nil, err
	}
	return &Engine{base}, nil
}

// findServer reads the sizes of the cache.
func (p *functionProbe) findServer(ctx context.Context) error {
	var all struct {
		Data []cacheFacts `json:"data"`
	}
	if err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: pathModels}, &all); err != nil {
		return err
	}
	if len(all.Data) != 1 {
		return fault.New(fault.Invalid, "the server at %s serves %d models, and serve_endpoint serves one: is it another server?", p.Config.Spec.URL.Host, len(all.Data))
	}
	p.cache = all.Data[0]
	if set := p.Config.Spec.BlockSize; set != 0 && set != p.cache.BlockSize {
		return fmt.Errorf("block-size is %d, and the function's blocks have %d tokens: leave it out", set, p.cache.BlockSize)
	}
	return nil
}

// buildCard describes the model served.
func (p *functionProbe) buildCard() (engine.Card, error) {
	card := p.NewCard("python", p.Model)
	card.BlockSize, card.Blocks = p.cache.BlockSize, p.cache.Blocks
	card.ContextLength = cmp.Or(p.Length, p.Config.ContextLength, defaultContext)
	card.Numerics = "python-" + p.Model
	card.NoPrefixCache = p.cache.Blocks == 0 && p.Config.Spec.Events.IsZero()
	return card, nil
}

// findDialect returns the dialect without a call of the function: the protocol has no versions without token ids.
func (p *functionProbe) findDialect(_ context.Context, card *engine.Card) (remote.Dialect, error) {
	return &functionDialect{model: p.Model, eos: card.EOS}, nil
}

// complete sets what is particular to this protocol.
func (p *functionProbe) complete(_ context.Context, rc *remote.Config) (err error) {
	rc.CheckAlive = func(ctx context.Context) error { return p.CheckModel(ctx, pathHealth) }
	rc.ProveSalts = false // the proof calls the function: the first request with a salt starts it
	if rc.Card.NoPrefixCache {
		rc.Salts = remote.SaltsUnneeded
	}
	rc.SaltsRemedy = "use the request's cache_salt in the hashes of its blocks"
	rc.SaltsReportRemedy = "yield cached_tokens with the first tokens"
	rc.CacheSource, err = p.cacheSource(&rc.Card)
	return err
}

// cacheSource returns the source that follows the function's cache: its events, else a prediction, else none.
func (p *functionProbe) cacheSource(card *engine.Card) (remote.CacheSource, error) {
	switch spec := &p.Config.Spec; {
	case !spec.Events.IsZero():
		return remote.NewEventFeed(remote.EventFeedConfig{Events: spec.Events, Replay: spec.Replay, Log: p.Config.Log, Table: engineevents.Config{
			BlockSize: card.BlockSize, EngineBlockSize: card.BlockSize, Clears: engineevents.ClearsDevice, Capacity: max(card.Blocks, 1),
		}})
	case card.NoPrefixCache:
		return nil, nil
	}
	return p.FollowPaged(card, "give serve_endpoint a KvEventPublisher as kv_publisher", "the function publishes no KV events: what it has cached is guessed from the requests sent to it")
}
