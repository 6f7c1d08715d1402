// Package handoff moves the prefill of requests to other workers: the shells of the machines in core/disagg.
//
// A [DecodeWorker] belongs to a decode worker. It serves requests as an engine does, and for each decides where the prompt is
// computed. A [PrefillWorker] belongs to a prefill worker: it takes jobs from a queue or from calls, computes prompts, and
// writes their blocks into the memory of the decode worker. A [JobPlacer] brings jobs from one to the other.
//
// # Failures
//
// A failed prefill never fails a request. Each side which gives up tells the other, by the method progress or by the end
// of the call of pull, and neither depends on it: the machines have deadlines.
//
// # Bounds
//
// The memory for blocks which arrive has a budget. It is reserved before a job is made, and a request for which there is
// none is prefilled by the decode worker itself.
package handoff

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/xfer"
)

// DecodeWorkerConfig configures a DecodeWorker.
type DecodeWorkerConfig struct {
	// Self is this worker's registration, and Addr its address on the request plane.
	Self disagg.Incarnation
	Addr string
	// Handoff bounds the machines.
	Handoff disagg.HandoffConfig
	// LandingBytes bounds the memory for blocks which arrive, of all requests together; 0 means a quarter of the engine's KV
	// cache, and at least 256 MiB.
	LandingBytes int64
	// Decide decides about a request, which asks for settings. It gets Tokens, Cached, BlockSize, NoRoom, LocalTokens,
	// LocalPrefills and Decoding, and the hint of the request, adds what else is known, and calls disagg.DecideAmong.
	Decide func(disagg.SplitSettings, disagg.SplitInputs, *engine.PrefillHint) disagg.Decision
	// ObserveLocal, if not nil, gets the time in which the engine computed so many tokens of a prompt, beside no prompt which
	// came earlier. It must not wait.
	ObserveLocal func(tokens int, took time.Duration)
	// Observe, if not nil, gets the outcome of each handoff, before the request decodes. It must not wait.
	Observe func(*HandoffOutcome)
	// ObserveStages, if not nil, gets the stages of each handoff whose blocks came and whose answer began, at the end of its
	// request. It must not wait.
	ObserveStages func(*HandoffStages)
	Log           *slog.Logger
}

// minLandingBytes and landingPart are the meaning of 0 for DecodeWorkerConfig.LandingBytes: at least so many bytes, and a
// part of the KV cache.
const (
	minLandingBytes = 256 << 20
	landingPart     = 4
)

// Validate reports all problems of c.
func (c *DecodeWorkerConfig) Validate() error {
	errs := []error{c.Handoff.Validate()}
	if c.Self.Epoch == 0 || c.Addr == "" || c.Decide == nil {
		errs = append(errs, fault.New(fault.Invalid, "handoff: a decode worker needs an epoch, an address and a way to decide"))
	}
	if c.LandingBytes < 0 {
		errs = append(errs, fault.New(fault.Invalid, "handoff: %d bytes for blocks which arrive: must not be negative", c.LandingBytes))
	}
	return errors.Join(errs...)
}

// HandoffOutcome is how the handoff of a request ended.
type HandoffOutcome struct {
	RequestID string
	Decision  disagg.Decision
	// State is Decoding, Local or Aborted, and Reason why the decode worker prefills; NoReason if it does not.
	State  disagg.HandoffState
	Reason disagg.HandoffReason
	// GivenUp says why each of its attempts was given up, in their order, and Lost how long those took which failed: see
	// [disagg.Handoff.Lost].
	GivenUp []disagg.HandoffReason
	Lost    time.Duration
	// Jobs is how many jobs were made. Start and End are the tokens whose blocks came, and Bytes is what came.
	Jobs       int
	Start, End int
	Bytes      int64
	Took       time.Duration
	// Of a prompt which a prefill worker computed: By is that worker, RemoteCached is how many of its first tokens that worker's cache had,
	// Prefill the time from its admission to its first block, and Transfer that of the blocks.
	By                disagg.Incarnation
	RemoteCached      int
	Prefill, Transfer time.Duration
}

// HandoffStages is how long each stage took from the end of a prefill elsewhere to the first token of the answer.
type HandoffStages struct {
	// Send is the time until the first bytes were ready to be sent, as the prefill worker measured it: a copy from its cache
	// and, before that, the wait for a connection. It does not have that wait if all blocks are copied at once, at most 1 MiB:
	// their connection is opened after the copy, and no stage has the wait. It is 0 for prefill workers of earlier builds.
	Send time.Duration
	// Transfer is the time from the claim, which comes with the first bytes, to the last one, verified; the prefill worker copies the rest from its cache
	// meanwhile. Import is the copy into the cache of the decode worker, and FirstToken what follows: its wait for a step,
	// and that step, which computes at most a block of the prompt.
	Transfer, Import, FirstToken time.Duration
}

// Sum returns the time of all stages.
func (s *HandoffStages) Sum() time.Duration { return s.Send + s.Transfer + s.Import + s.FirstToken }

// DecodeWorkerStats counts what a DecodeWorker has done, and what it holds now.
type DecodeWorkerStats struct {
	// Remote requests were computed by prefill workers, Aborted ones were cancelled before it was known. Local counts
	// the others by their reason.
	Remote, Aborted uint64
	Local           map[disagg.HandoffReason]uint64
	// Jobs were made. Pulls were admitted, and RefusedPulls were not.
	Jobs, Pulls, RefusedPulls uint64
	// Bytes and Tokens came from prefill workers.
	Bytes, Tokens uint64
	// Open is how many handoffs are in progress, Queued how many of them have a job which no prefill worker has claimed, and
	// LandingBytes what is reserved for their blocks.
	Open, Queued int
	LandingBytes int64
}

// DecodeWorker serves requests of a decode worker. It is safe for concurrent use.
type DecodeWorker struct {
	cfg    DecodeWorkerConfig
	eng    engine.BlockReceiver
	bulk   xfer.Plane
	jobs   JobPlacer
	layout engine.KVLayout
	born   time.Time
	mu     struct {
		sync.Mutex
		attempts uint64               // given to handoffs
		open     map[uint32]*exchange // by their first attempt
		stats    DecodeWorkerStats
		running  engineLoad
	}
}

// NewDecodeWorker returns a DecodeWorker which serves with eng, receives blocks over bulk, which must run, and gives jobs to jobs.
func NewDecodeWorker(cfg DecodeWorkerConfig, eng engine.BlockReceiver, bulk xfer.Plane, jobs JobPlacer) (*DecodeWorker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	card, layout := eng.Card(), eng.BlockLayout()
	cfg.LandingBytes = cmp.Or(cfg.LandingBytes, max(minLandingBytes, int64(card.Blocks)*int64(layout.BlockBytes)/landingPart))
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	d := &DecodeWorker{cfg: cfg, eng: eng, bulk: bulk, jobs: jobs, layout: layout, born: time.Now()}
	if d.landingSize(card.ContextLength) > cfg.LandingBytes {
		cfg.Log.Warn("the longest prompts have more bytes of blocks than the memory in which blocks arrive: they are computed here",
			"context_length", card.ContextLength, "needed_bytes", d.landingSize(card.ContextLength), "landing_bytes", cfg.LandingBytes)
	}
	d.mu.open = make(map[uint32]*exchange)
	d.mu.stats.Local = make(map[disagg.HandoffReason]uint64)
	return d, nil
}

// now is the time of the machines.
func (d *DecodeWorker) now() kv.Mono { return kv.Mono(time.Since(d.born)) }

// Stats returns the counters.
func (d *DecodeWorker) Stats() DecodeWorkerStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.mu.stats
	s.Local = make(map[disagg.HandoffReason]uint64, len(d.mu.stats.Local))
	for why, n := range d.mu.stats.Local {
		s.Local[why] = n
	}
	s.Open = len(d.mu.open)
	return s
}

// QueuedJobs returns how many jobs of this worker wait for a prefill worker.
func (d *DecodeWorker) QueuedJobs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.stats.Queued
}

// updateStats changes the counters.
func (d *DecodeWorker) updateStats(change func(*DecodeWorkerStats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.mu.stats)
}

// landingSlack is how many tokens more than those which move may arrive: the first and the last block of a prefill worker
// come whole, and have up to 128 tokens.
const landingSlack = 2 * 128

// landingSize returns how many bytes may arrive if so many tokens move.
func (d *DecodeWorker) landingSize(tokens int) int64 {
	return int64(tokens+landingSlack) * int64(d.layout.BlockBytes) / int64(max(d.layout.BlockSize, 1))
}

// reserveLanding changes what is reserved for blocks by n bytes. It reports whether the budget allows that.
func (d *DecodeWorker) reserveLanding(n int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > 0 && d.mu.stats.LandingBytes+n > d.cfg.LandingBytes {
		return false
	}
	d.mu.stats.LandingBytes += n
	return true
}

// Generate serves a request as engine.Engine.Generate does. Its prompt is computed where the decision says.
func (d *DecodeWorker) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	_, err := d.Serve(ctx, req, sink)
	return err
}

// Serve is Generate. received is how many of the request's first tokens the engine did not have to compute, since their
// blocks came or were held when others came; 0 if none came.
func (d *DecodeWorker) Serve(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) (received int, err error) {
	x := d.openExchange(req)
	if x == nil {
		return 0, d.eng.Generate(ctx, req, sink)
	}
	defer x.follow.end()
	defer x.wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer x.abandonHandoff()
	serve := x.run(ctx, func(delta *engine.Delta) error {
		x.follow.observeDelta(delta)
		return x.sendDelta(delta, sink)
	})
	err = serve()
	x.observeStages()
	return x.outcome.End, err
}

// openExchange begins the handoff of a request; nil if it cannot have one. A request which resumes several choices has
// none: each choice has other tokens, and only the engine knows which choice leads.
func (d *DecodeWorker) openExchange(req *engine.Request) *exchange {
	tokens := len(req.Prompt)
	switch choice := firstOpenChoice(req); {
	case choice < 0 || tokens == 0 || req.Choices > 1 && req.Generated != nil:
		return nil
	case len(req.Generated) > choice:
		tokens += len(req.Generated[choice])
	}
	x := &exchange{
		d: d, req: req, tokens: tokens, began: d.now(),
		events: make(chan func()), progress: make(chan disagg.AttemptRef, 1), held: make(chan int, 1),
		reclaimed: make(chan struct{}, 1), generated: make(chan error, 1), closed: make(chan struct{}),
	}
	x.follow.d = d
	_, _ = rand.Read(x.handle[:]) // never fails
	d.mu.Lock()
	defer d.mu.Unlock()
	each := uint64(d.cfg.Handoff.MaxAttempts)
	if d.mu.attempts+each > math.MaxUint32 {
		return nil // no number is used twice
	}
	x.first = disagg.AttemptRef{Epoch: d.cfg.Self.Epoch, Attempt: uint32(d.mu.attempts) + 1}
	d.mu.attempts += each
	d.mu.open[x.first.Attempt] = x
	return x
}

// firstOpenChoice returns the first choice which has not ended; -1 if all have.
func firstOpenChoice(req *engine.Request) int {
	for i := range req.Choices {
		if i >= len(req.Done) || !req.Done[i] {
			return i
		}
	}
	return -1
}

// closeExchange ends the handoff of x.
func (d *DecodeWorker) closeExchange(x *exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.open, x.first.Attempt)
}

// findExchange returns the handoff which ref belongs to; nil if there is none any more.
func (d *DecodeWorker) findExchange(ref disagg.AttemptRef) *exchange {
	if ref.Epoch != d.cfg.Self.Epoch || ref.Attempt == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.open[ref.Attempt-(ref.Attempt-1)%uint32(d.cfg.Handoff.MaxAttempts)]
}

// refusal is the error for a prefill worker whose work is not wanted, or not any more.
func refusal(why disagg.HandoffReason) error {
	return fault.New(fault.Conflict, "the decode worker does not want this prefill: %v", why)
}

// ServePull answers the method pull.
func (d *DecodeWorker) ServePull(ctx context.Context, body []byte, send func([]byte) error) error {
	var req engine.PullRequest
	if err := engine.DecodePullRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	x := d.findExchange(req.Ref())
	if x == nil || subtle.ConstantTimeCompare(x.handle[:], req.Handle) == 0 {
		d.updateStats(func(s *DecodeWorkerStats) { s.RefusedPulls++ })
		return refusal(disagg.Stale)
	}
	p := &pull{ref: req.Ref(), by: req.Prefiller(), claim: newClaim(), layout: req.From.Layout, answer: make(chan pullAnswer, 1), ended: make(chan error, 1)}
	if !x.post(func() { x.handlePull(p) }) {
		d.updateStats(func(s *DecodeWorkerStats) { s.RefusedPulls++ })
		return refusal(disagg.Stale)
	}
	var a pullAnswer
	select {
	case a = <-p.answer:
	case <-x.closed:
		select {
		case a = <-p.answer: // it was given before
		default:
			a.err = refusal(disagg.Stale)
		}
	}
	if a.err != nil {
		d.updateStats(func(s *DecodeWorkerStats) { s.RefusedPulls++ })
		return a.err
	}
	d.updateStats(func(s *DecodeWorkerStats) { s.Pulls++ })
	err := sendPrompt(p, a.budget, engine.AppendRequest(nil, a.prompt), send)
	if err == nil {
		select {
		case err := <-p.ended:
			return err
		case <-ctx.Done():
			err = fault.New(fault.Canceled, "the prefill worker went away")
		}
	}
	x.post(func() { x.prefillFailed(p.ref, p.by, p.claim, disagg.PrefillFailed) })
	return err
}

// newClaim returns a number which no other pull has.
func newClaim() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(binary.LittleEndian.Uint64(b[:]), 1)
}

// sendPrompt answers an admitted pull with an encoded request, in pieces.
func sendPrompt(p *pull, budget time.Duration, prompt []byte, send func([]byte) error) error {
	var frame []byte
	f := engine.Pulled{Attempt: p.ref.Attempt, Budget: int(max(budget.Milliseconds(), 1)), Claim: p.claim}
	for rest := prompt; !f.Last; f.Budget, f.Claim = 0, 0 {
		f.Data = rest[:min(len(rest), engine.MaxPiece)]
		if rest = rest[len(f.Data):]; len(rest) == 0 {
			f.Last, f.Total = true, uint64(len(prompt))
		}
		frame = engine.AppendPulled(frame[:0], &f)
		if err := send(frame); err != nil {
			return err
		}
	}
	return nil
}

// ServeProgress answers the method progress.
func (d *DecodeWorker) ServeProgress(body []byte) error {
	var p engine.Prefilled
	if err := engine.DecodePrefilled(body, &p); err != nil {
		return err
	}
	x := d.findExchange(p.Ref())
	ofEarlierBuild := len(p.Handle) == 0 && p.GaveUp == engine.GoesOn
	if x == nil || !ofEarlierBuild && subtle.ConstantTimeCompare(x.handle[:], p.Handle) == 0 {
		return refusal(disagg.Stale)
	}
	wanted, isWanted := make(chan bool, 1), false
	if x.post(func() { wanted <- x.handleProgress(&p) }) {
		select {
		case isWanted = <-wanted:
		case <-x.closed:
			select {
			case isWanted = <-wanted: // it was handled before
			default:
			}
		}
	}
	if !isWanted {
		return refusal(disagg.Stale)
	}
	return nil
}
