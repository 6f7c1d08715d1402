package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
)

// Engine is a simulated engine. Create it with [New].
//
// Its streams are those of any engine: the token at a position of a choice is a
// function of the prompt, the seed, the choice and the position, so one that moves
// to another engine of equal numerics goes on as if it had not moved. Sampling
// parameters are checked and change nothing else but that a temperature above 0
// makes the answer depend on the seed. Adapters cost nothing and share no blocks with
// the model. Log-probabilities are made up: they fall by half from one alternative
// to the next.
type Engine struct {
	*batch.Engine
	clock   *clock
	startup time.Duration
	started chan struct{}
	ran     atomic.Bool
	pool    *attachment // nil without
}

// Compile-time guards.
var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
	_ batch.Computer    = (*computer)(nil)
)

// New returns an engine that does nothing until Run, or everything that is wrong
// with cfg.
func New(cfg Config) (*Engine, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	card := engine.Card{
		Name:          cfg.Name,
		Aliases:       cfg.Aliases,
		Engine:        "sim",
		BlockSize:     cfg.BlockSize,
		Blocks:        cfg.Blocks,
		Ranks:         1,
		ContextLength: min(cfg.ContextLength, cfg.Blocks*cfg.BlockSize),
		VocabSize:     cfg.Vocabulary.Size,
		EOS:           cfg.Vocabulary.EOS,
		Defaults:      engine.Sampling{Temperature: 1},
		Tokenizer:     cfg.Tokenizer,
		Media:         cfg.Media,
		Attaches:      len(cfg.Media) > 0,

		MaxBatchedTokens: cfg.TokenBudget,
	}
	s, err := newScript(&cfg, card.ContextLength)
	if err != nil {
		return nil, err
	}
	card.Numerics = s.numerics()
	c := &computer{script: s, timing: cfg.Timing, blocks: cfg.Blocks, clock: clock{kind: cfg.Clock}}
	c.timing.Seed = splitmix.Mix(cfg.Timing.Seed + cfg.Worker*splitmix.Step)
	bc := batch.Config{
		Card:        card,
		MaxSeqs:     cfg.MaxSeqs,
		TokenBudget: cfg.TokenBudget,
		MaxWaiting:  cfg.MaxWaiting,
		Reuse:       cfg.Reuse,
		Chunking:    cfg.Chunking,
	}
	if cfg.MoE != (MoE{}) {
		bc.Label = cfg.MoE.label
	}
	var pool *attachment
	if cfg.Pool != nil {
		pool = cfg.Pool.attach(cfg.As, cfg.Timing.Transfer(cfg.BlockSize))
		bc.Shared = pool
	}
	shell, err := batch.New(bc, c)
	if err != nil {
		return nil, fmt.Errorf("sim config: %w", err)
	}
	if pool != nil {
		pool.open(shell.Wake)
	}
	return &Engine{Engine: shell, clock: &c.clock, startup: cfg.Timing.Startup, started: make(chan struct{}), pool: pool}, nil
}

// Run starts up, which takes its time, and then computes until ctx ends, as the
// contract of [engine.Engine] says. What Generate was asked for before that waits.
// An engine runs once: after that, Run returns a Conflict error.
func (e *Engine) Run(ctx context.Context) error {
	if !e.ran.CompareAndSwap(false, true) {
		return fault.New(fault.Conflict, "sim model %s: the engine ran already; make a new one", e.Card().Name)
	}
	if e.pool != nil {
		defer e.pool.detach()
	}
	starting := time.NewTimer(e.startup)
	defer starting.Stop()
	select {
	case <-starting.C:
		close(e.started)
	case <-ctx.Done():
	}
	e.clock.open(ctx)
	defer e.clock.close()
	return e.Engine.Run(ctx) // also to release everybody if there is no more time
}

// Started is closed when the engine is up. A worker that is called before that lets
// its callers wait.
func (e *Engine) Started() <-chan struct{} { return e.started }

// computer computes nothing and takes its time for it; see [batch.Computer].
type computer struct {
	script *script
	timing Timing
	blocks int

	// Of the loop.
	clock  clock
	passes uint64
}

// Begin implements [batch.Computer].
func (c *computer) Begin(_ context.Context, req *engine.Request, stops []kv.Token) ([]batch.State, error) {
	return c.script.begin(req, stops), nil
}

// Compute implements [batch.Computer]. What it says it finds while the pass takes
// place, so that this takes no time besides.
func (c *computer) Compute(ctx context.Context, b *batch.Batch) error {
	pass := Describe(b.Plan, b.Stats, c.blocks)
	for i := range b.Plan.Work {
		w, ch := &b.Plan.Work[i], b.States[i].(*choice)
		if len(ch.req.Media) > 0 && w.Prefill > 0 {
			pass.Media += placeholders(ch.req.Media, w.Start, w.Start+w.Prefill)
		}
		if w.Sample {
			b.Drawn[i].Logprob, b.Drawn[i].Err = ch.next()
		}
	}
	d := c.timing.Pass(&pass, c.passes)
	c.passes++
	return c.clock.pass(ctx, d, b.Follows)
}

// placeholders counts the positions from start to end that media fill.
func placeholders(media []kv.Media, start, end int) int {
	n := 0
	for _, m := range media {
		n += max(0, min(m.End, end)-max(m.Start, start))
	}
	return n
}
