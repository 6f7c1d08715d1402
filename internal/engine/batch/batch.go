// Package batch is the shell of engines that compute in batches: requests come in
// through it, [paged.Scheduler] says what is computed next, a [Computer] computes
// it, and tokens, cache events and load go out.
//
// # One loop
//
// [Engine.Run] is one goroutine that owns the scheduler and the batch, and the only
// one that calls [Computer.Compute]. Generate hands it requests through a bounded
// inbox and gets tokens back through an outbox of its own, so that nobody's sink
// holds up anybody's batch. A slow sink loses nothing and pauses nothing: what it
// has not taken yet is merged into one delta per choice. An outbox is bounded by
// the request's own token limit, and its sequence ends, and gives its blocks back,
// as soon as it would have with a fast sink.
//
// The package waits by channels alone: what takes time is the Computer's affair.
package batch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
)

// Computer is what one kind of engine has of its own: what a request may ask of
// it, and where the next tokens come from.
type Computer interface {
	// Begin returns what the computer is to keep of each choice of a request; of
	// those that are done it is not used. stops are the tokens that end a choice. It
	// is called from any goroutine, with a request that has passed the checks of this package,
	// and may take its time, until ctx, the request's, ends.
	// Its error, which should be a *fault.Error, refuses the request.
	Begin(ctx context.Context, req *engine.Request, stops []kv.Token) ([]State, error)
	// Compute computes a batch and draws the tokens that it asks for. An error or a
	// panic fails all requests that have a part in it. It may return early, with any
	// error, when ctx ends: the engine stops then. It must not keep b.
	Compute(ctx context.Context, b *Batch) error
}

// State is what a Computer keeps of one choice. It is used by one goroutine at a
// time: by that of Begin, then by the loop.
type State interface {
	// Over reports whether the choice ends after the output so far, although that
	// does not end with a stop token.
	Over() bool
}

// Batch is what is computed at once.
type Batch struct {
	// Plan has the work; it is not empty and belongs to the scheduler, whose figures
	// Stats are.
	Plan  *paged.Step
	Stats paged.Stats
	// States[i] is of the choice that Plan.Work[i] belongs to.
	States []State
	// Drawn[i] is to be set by the Computer where Plan.Work[i].Sample is, but for
	// what [Engine.Prefill] computes.
	Drawn []Drawn
	// Follows says that the loop came from the batch before without waiting for work.
	Follows bool
}

// Drawn is the next token of a choice; its log-probability and alternatives
// matter where the request asked for them. With an Err none could be drawn, and the
// request fails with it.
type Drawn struct {
	engine.Logprob
	Err error
}

// Config is the shape of an engine. It has no defaults.
type Config struct {
	// Card is what the engine serves; the sizes in it are those of its cache and its
	// context.
	Card engine.Card
	// MaxSeqs bounds the sequences that are computed at once, TokenBudget the tokens
	// of a batch, MaxWaiting the sequences beyond MaxSeqs that wait for their turn.
	MaxSeqs, TokenBudget, MaxWaiting int
	// Reuse off forgets blocks with their last sequence and reports no events,
	// Chunking off computes each prompt in one batch.
	Reuse, Chunking paged.Switch
	// Label, if not nil, may add to events what the cache does not know of its
	// blocks, before anyone sees them: to changes and to descriptions of the whole
	// cache. It is called by the loop.
	Label func([]kv.Event)
	// Shared, if not nil, is memory that the engine shares with others.
	Shared Shared
}

// Shared is memory outside of the engine that others put blocks into too. Its methods are
// called by the loop; they must not wait.
type Shared interface {
	// Elsewhere says what can be fetched from there.
	paged.Elsewhere
	// Tell takes what changed in the cache, perhaps nothing, and returns the events that
	// follow it. After [Engine.Wake] it is called soon.
	Tell(changed []kv.Event) []kv.Event
	// Describe returns the events that go behind a description of the cache.
	Describe() []kv.Event
}

func (c *Config) scheduler() paged.Config {
	pc := paged.Config{
		Blocks:      c.Card.Blocks,
		BlockSize:   c.Card.BlockSize,
		MaxSeqs:     c.MaxSeqs,
		TokenBudget: c.TokenBudget,
		MaxContext:  c.Card.ContextLength,
		// The engine's own bound on sequences is reached first.
		MaxWaiting: c.MaxSeqs + c.MaxWaiting,
		Reuse:      c.Reuse,
		Chunking:   c.Chunking,
	}
	if c.Shared != nil {
		pc.Elsewhere = c.Shared
	}
	return pc
}

// Engine serves requests with a Computer. Create it with [New].
type Engine struct {
	cfg      Config
	computer Computer
	watchers *watch.Hub
	// turns counts the batches that were computed.
	turns atomic.Uint64
	// wake tells the loop that the inbox, the aborts or the watchers changed.
	wake chan struct{}

	mu struct {
		sync.Mutex
		phase  phase
		inbox  []*request // taken by the loop in order
		aborts []*request // to be released by the loop; at most the live ones
		// sequences are all choices not finished, the inbox's included; they are
		// what the queue bound counts.
		sequences int
		load      engine.Load // of the loop, without the inbox
	}
}

// phase is where in its life an engine is.
type phase uint8

const (
	fresh phase = iota
	running
	stopped
)

// Compile-time guards.
var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
)

// New returns an engine that does nothing until Run, or what is wrong with cfg.
func New(cfg Config, computer Computer) (*Engine, error) {
	if err := cfg.scheduler().Validate(); err != nil {
		return nil, fmt.Errorf("%s model %s: %w", cfg.Card.Engine, cfg.Card.Name, err)
	}
	e := &Engine{cfg: cfg, computer: computer, wake: make(chan struct{}, 1)}
	e.watchers = watch.New(max(watch.MinBacklog, cfg.Card.Blocks))
	e.mu.load.TotalBlocks = cfg.Card.Blocks
	return e, nil
}

// Card describes the model served.
func (e *Engine) Card() engine.Card { return e.cfg.Card }

// Load returns the engine's load, requests that the loop has not seen included.
// A request that Generate has returned for is not in it.
func (e *Engine) Load() engine.Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.mu.load
	for _, r := range e.mu.inbox {
		l.Waiting += len(r.open)
		l.PrefillTokens += len(r.req.Prompt)
	}
	return l
}

// Signs implements engine.SignSource. Work changes with each batch alone; the queue is as the loop last saw it.
func (e *Engine) Signs() engine.Signs {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.mu.load
	return engine.Signs{Work: e.turns.Load(), Tells: true, Running: l.Running, Waiting: l.Waiting, Preempted: l.Preemptions}
}

// Wake has the loop tell what there is to tell, though it has nothing to compute.
func (e *Engine) Wake() { e.poke() }

// poke makes the loop look at what was handed to it.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default: // it will look anyway
	}
}
