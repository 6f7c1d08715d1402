// Package batch is the shell of engines that compute in batches: it takes requests, [paged.Scheduler] decides
// what is computed next, a [Computer] computes it, and the package delivers tokens, cache events and load.
//
// # One loop
//
// [Engine.Run] is one goroutine that owns the scheduler and the batch, and the only one that calls
// [Computer.ComputeBatch]. Generate passes requests to it through a bounded inbox and gets tokens back
// through an outbox per request, so that no sink holds up a batch. A slow sink loses nothing and pauses
// nothing: its pending output is merged into one delta per choice. An outbox is bounded by the request's own
// token limit, and its sequence ends, and releases its blocks, as early as with a fast sink.
//
// The package itself waits only on channels: only the Computer takes time.
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

// Computer is the engine-specific part: which requests are possible, and how the next tokens are computed.
type Computer interface {
	// StartRequest returns the computer's state for each choice of a request; states of choices that are done
	// are not used. stops are the tokens that end a choice. It is called from any goroutine, with a request
	// that has passed the checks of this package, and may block until ctx, which is the request's, ends. Its
	// error, which should be a *fault.Error, refuses the request.
	StartRequest(ctx context.Context, req *engine.Request, stops []kv.Token) ([]State, error)
	// ComputeBatch computes a batch and draws the requested tokens. An error or a panic fails all requests in
	// the batch. When ctx ends it may return early with any error: the engine then stops. It must not keep b.
	ComputeBatch(ctx context.Context, b *Batch) error
}

// State is a Computer's state of one choice. One goroutine at a time uses it: first the caller of
// StartRequest, then the loop.
type State interface {
	// IsFinished reports whether the choice ends after the output so far, although its last token is no stop
	// token.
	IsFinished() bool
}

// PartialComputer is a Computer that can leave out part of a request's preparation if the KV cache has the
// beginning of the prompt.
type PartialComputer interface {
	Computer
	// SavesByPrefix reports whether StartPartial may do less than StartRequest. It must not wait.
	SavesByPrefix(req *engine.Request) bool
	// StartPartial is StartRequest for a request of whose prompt the first cached tokens are in the KV cache. Its
	// states may be unable to compute them: see PartialState. If they must be computed after all, because blocks
	// were evicted, the request is started again with StartRequest, as an attempt that continues this one.
	StartPartial(ctx context.Context, req *engine.Request, stops []kv.Token, cached int) ([]State, error)
}

// PartialState is a State that cannot compute the tokens before a position.
type PartialState interface {
	State
	// FirstComputable returns that position; 0 if the state can compute all tokens.
	FirstComputable() int
}

// HeldState is a State that holds something. Release is called once for each state that StartRequest returned,
// when the engine computes nothing of the request any more, by the goroutine that called StartRequest.
type HeldState interface {
	State
	Release()
}

// Batch is the input and the output of one computation.
type Batch struct {
	// Plan has the work. It is not empty and belongs to the scheduler; Stats are the scheduler's statistics.
	Plan  *paged.Step
	Stats paged.Stats
	// States[i] belongs to the choice of Plan.Work[i].
	States []State
	// The Computer sets Drawn[i] where Plan.Work[i].Sample is set, except for work of [Engine.Prefill].
	Drawn []DrawnToken
	// BackToBack says that the loop did not wait for work after the previous batch.
	BackToBack bool
}

// DrawnToken is the next token of a choice; its log-probability and alternatives are used if the request
// asked for them. If Err is set there is no token, and the request fails with it.
type DrawnToken struct {
	engine.Logprob
	Err error
}

// Config configures an engine. It has no defaults.
type Config struct {
	// Card describes the served model; its sizes are the cache's and the context's.
	Card engine.Card
	// MaxSeqs bounds the sequences computed at once, TokenBudget the tokens of a batch, MaxWaiting the
	// waiting sequences in addition to MaxSeqs.
	MaxSeqs, TokenBudget, MaxWaiting int
	// Reuse off drops blocks with their last sequence and reports no events; Chunking off computes each
	// prompt in one batch.
	Reuse, Chunking paged.Switch
	// LabelEvents, if not nil, may add labels of blocks to events before they are published: to changes and
	// to descriptions of the whole cache. The loop calls it.
	LabelEvents func([]kv.Event)
	// SharedMemory, if not nil, is memory that the engine shares with others.
	SharedMemory SharedMemory
}

// SharedMemory is memory outside the engine into which other engines put blocks too. The loop calls its
// methods; they must not wait.
type SharedMemory interface {
	// Elsewhere says which blocks can be fetched from there.
	paged.BlockSource
	// ExchangeEvents takes the changes of the cache, perhaps none, and returns the events to publish after
	// them. [Engine.Wake] makes the loop call it soon.
	ExchangeEvents(changed []kv.Event) []kv.Event
	// DescribeShared returns the events to publish after a description of the cache.
	DescribeShared() []kv.Event
}

func (c *Config) schedulerConfig() paged.Config {
	pc := paged.Config{
		Blocks:      c.Card.Blocks,
		BlockSize:   c.Card.BlockSize,
		MaxSeqs:     c.MaxSeqs,
		TokenBudget: c.TokenBudget,
		MaxContext:  c.Card.ContextLength,
		// The engine's own limit of sequences is reached first.
		MaxWaiting: c.MaxSeqs + c.MaxWaiting,
		Reuse:      c.Reuse,
		Chunking:   c.Chunking,
	}
	if c.SharedMemory != nil {
		pc.Remote = c.SharedMemory
	}
	return pc
}

// Engine serves requests with a Computer. Create it with [New].
type Engine struct {
	cfg      Config
	computer Computer
	watchers *watch.Broadcaster
	// batches counts the computed batches.
	batches atomic.Uint64
	// wake tells the loop that the inbox, the aborts or the watchers changed.
	wake chan struct{}

	// restarts counts requests that were started again: see PartialComputer.
	restarts atomic.Uint64

	// shared is the scheduler, nil unless Run runs. The loop holds the lock except while it waits or computes.
	shared struct {
		sync.Mutex
		sched *paged.Scheduler
	}

	mu struct {
		sync.Mutex
		phase  enginePhase
		inbox  []*request // the loop takes them in order
		aborts []*request // for the loop to release; at most the live requests
		// sequences counts all unfinished choices, including the inbox's; the queue limit applies to it.
		sequences int
		load      engine.Load // as of the last report, without the inbox
	}
}

// enginePhase is the phase of an engine's lifecycle: phaseFresh until Run, phaseRunning until Run returns,
// then phaseStopped.
type enginePhase uint8

const (
	phaseFresh enginePhase = iota
	phaseRunning
	phaseStopped
)

// Compile-time guards.
var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
)

// New returns an engine that does nothing until Run, or an error for an invalid cfg.
func New(cfg Config, computer Computer) (*Engine, error) {
	if err := cfg.schedulerConfig().Validate(); err != nil {
		return nil, fmt.Errorf("%s model %s: %w", cfg.Card.Engine, cfg.Card.Name, err)
	}
	e := &Engine{cfg: cfg, computer: computer, wake: make(chan struct{}, 1)}
	e.watchers = watch.New(max(watch.MinBacklog, cfg.Card.Blocks))
	e.mu.load.TotalBlocks = cfg.Card.Blocks
	return e, nil
}

// Card describes the model served.
func (e *Engine) Card() engine.Card { return e.cfg.Card }

// Load returns the engine's load, including requests in the inbox. It does not include requests whose
// Generate has returned.
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

// HealthReport implements engine.HealthSource. Progress changes only with each batch; the queue is as of the
// loop's last report.
func (e *Engine) HealthReport() engine.HealthReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.mu.load
	return engine.HealthReport{Progress: e.batches.Load(), HasCounts: true, Running: l.Running, Waiting: l.Waiting, Preempted: l.Preemptions}
}

// Wake makes the loop report events even if it has nothing to compute.
func (e *Engine) Wake() { e.wakeLoop() }

// wakeLoop makes the loop look at its inputs.
func (e *Engine) wakeLoop() {
	select {
	case e.wake <- struct{}{}:
	default: // the loop is already signalled
	}
}
