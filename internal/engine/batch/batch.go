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
//
// # Media
//
// A [MediaComputer] encodes media beside the batches. The scheduler has a request meanwhile, as a sequence with
// unfinished ranges: its blocks are reserved, and the tokens before its first unfinished object are computed. The
// request is accepted when all objects are encoded which it needs: an object with a token which is not cached.
//
// # Blocks from and for other engines
//
// With a [BlockComputer] an engine takes blocks which another one has computed, and reads blocks for another one, both
// beside the batches. What is read is held by the scheduler, and what is written is reserved. If a plan has given reserved
// blocks to another sequence, the loop waits for the end of a write before it computes the plan.
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

// HeldState is a State that holds something. Release is called once for each state that StartRequest returned,
// when the engine computes nothing of the request any more, by the goroutine that called StartRequest.
type HeldState interface {
	State
	Release()
}

// MediaComputer is a Computer which encodes media beside the batches. The loop calls its methods, which must not wait.
type MediaComputer interface {
	Computer
	// UnfinishedRanges returns the ranges of a choice's tokens which cannot be computed before they are encoded, as
	// paged.Sequence.Unfinished; nil if there are none. It returns the same whenever it is called for a choice.
	UnfinishedRanges(s State) []paged.TokenRange
	// StartEncoding encodes those ranges of a sequence, the choice of s, which end after its first ready tokens, as far
	// as they are not encoded already, and gives up the others.
	StartEncoding(id paged.SeqID, s State, ready int)
	// StopEncoding gives up what is encoded for a sequence which is not scheduled any more.
	StopEncoding(id paged.SeqID)
	// AppendEncoded appends the ranges which have been encoded since the last call, ranges which were encoded when
	// StartEncoding was called among them. [Engine.Wake] makes the loop call it soon.
	AppendEncoded(dst []paged.RangeID) []paged.RangeID
}

// DiscardingComputer is a MediaComputer which gives up what it has encoded once the tokens are computed. Its encoders may
// fail.
type DiscardingComputer interface {
	MediaComputer
	// RestartEncoding is StartEncoding for a sequence which has no blocks, whose ranges are all unfinished again, and for
	// which none is being encoded. It was preempted, or it waits and cached blocks were evicted, so that it needs
	// other ranges too. It reads nothing of what was encoded before its ranges are appended again.
	RestartEncoding(id paged.SeqID, s State, ready int)
	// AppendFailed appends the sequences whose ranges cannot be encoded, since the last call. [Engine.Wake] makes the
	// loop call it soon.
	AppendFailed(dst []FailedSequence) []FailedSequence
}

// FailedSequence is a sequence which cannot be computed, and the error of its request.
type FailedSequence struct {
	ID  paged.SeqID
	Err error
}

// BlockComputer is a Computer whose KV blocks can be read and written.
type BlockComputer interface {
	Computer
	// BlockLayout says how the blocks are read. It does not change.
	BlockLayout() engine.KVLayout
	// ReadBlocks writes the bytes of blocks to dst, which has BlockBytes for each, one after another. It is called from
	// any goroutine, also beside ComputeBatch, which does not write to the blocks meanwhile. Its error is that of ctx.
	ReadBlocks(ctx context.Context, dst []byte, blocks []int32) error
	// WriteTokens writes the tokens from start to end of b into the blocks of a table: position p is in
	// blocks[p/BlockSize]. b satisfies KVLayout.CheckImport. It is called from any goroutine, also beside ComputeBatch,
	// which does not use these blocks meanwhile. It must not wait: it may hold up the loop.
	WriteTokens(blocks []int32, start, end int, b *engine.BlockData) error
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
	pool     *poolCopier // nil without a pool
	watchers *watch.Broadcaster[kv.Event]
	// batches counts the computed batches, encoded the finished ranges of media, and poolReads the blocks of a pool which
	// were written into reserved ones.
	batches, encoded, poolReads atomic.Uint64
	// wake tells the loop that the inbox, the aborts or the watchers changed.
	wake chan struct{}

	mu struct {
		sync.Mutex
		phase  enginePhase
		inbox  []*request  // the loop takes them in order
		aborts []*request  // for the loop to release; at most the live requests
		calls  []*loopCall // for the loop to run; their callers wait, except callers of live requests
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
	_ engine.Engine        = (*Engine)(nil)
	_ engine.KVSource      = (*Engine)(nil)
	_ engine.LoadSource    = (*Engine)(nil)
	_ engine.BlockProvider = (*Engine)(nil)
	_ engine.BlockReceiver = (*Engine)(nil)
)

// New returns an engine that does nothing until Run, or an error for an invalid cfg.
func New(cfg Config, computer Computer) (*Engine, error) {
	if err := cfg.schedulerConfig().Validate(); err != nil {
		return nil, fmt.Errorf("%s model %s: %w", cfg.Card.Engine, cfg.Card.Name, err)
	}
	e := &Engine{cfg: cfg, computer: computer, wake: make(chan struct{}, 1)}
	e.watchers = watch.New(max(watch.MinBacklog, cfg.Card.Blocks), watch.CountHashes)
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
		l.Ready += len(r.open)
		l.PrefillTokens += len(r.req.Prompt)
	}
	return l
}

// HealthReport implements engine.HealthSource. Progress changes only with each batch, each encoded range, and each block
// which comes from a pool. Look-ups do not count: requests make them before the loop has them, also if it stands still. The
// queue is as of the loop's last report.
func (e *Engine) HealthReport() engine.HealthReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.mu.load
	return engine.HealthReport{Progress: e.batches.Load() + e.encoded.Load() + e.poolReads.Load(), HasCounts: true, Running: l.Running, Waiting: l.Waiting, Preempted: l.Preemptions}
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
