package handoff

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/bounded"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// PrefillWorkerConfig configures a PrefillWorker.
type PrefillWorkerConfig struct {
	// Self is this worker's registration, and Exchange what it states there.
	Self     disagg.Incarnation
	Exchange disagg.Metadata
	Job      disagg.JobConfig
	// Concurrency bounds the jobs of the queue which are worked on at once, and also those which came by calls; 0 means
	// 2. Waiting bounds the calls which wait beyond that; 0 means 64.
	Concurrency, Waiting int
	// ReachWait bounds the time for which a job with computed blocks tries to reach the memory of its decode worker, from the
	// first failure on, of any job; 0 means the lease of the transfer, which bounds it too.
	ReachWait time.Duration
	// FindOwner returns what a decode worker states in its registration; nil if it is not registered. It must not wait.
	FindOwner func(kv.Worker) *disagg.Metadata
	// Prepare, if not nil, fetches what an engine needs of a request beyond its bytes.
	Prepare func(context.Context, *engine.Request) error
	// Observe, if not nil, gets each prompt whose blocks a decode worker has: the tokens which were not cached, and the bytes
	// of its blocks. It must not wait.
	Observe func(computed int, bytes int64)
	// IsBroken, if not nil, reports that the engine does not answer: no job is taken from the queue then. It must not wait.
	IsBroken func() bool
	Log      *slog.Logger
}

// Meaning of 0 in a PrefillWorkerConfig.
const (
	DefaultConcurrency = 2
	DefaultWaiting     = 64
)

// warnInterval is how often a warning about jobs is repeated at most.
const warnInterval = 10 * time.Second

// Validate reports all problems of c.
func (c *PrefillWorkerConfig) Validate() error {
	errs := []error{c.Job.Validate()}
	if c.Self.Epoch == 0 || c.FindOwner == nil {
		errs = append(errs, fault.New(fault.Invalid, "handoff: a prefill worker needs an epoch and a way to find decode workers"))
	}
	if c.ReachWait < 0 {
		errs = append(errs, fault.New(fault.Invalid, "handoff: %v to reach a decode worker: must not be negative", c.ReachWait))
	}
	if c.Concurrency < 0 || c.Waiting < 0 {
		errs = append(errs, fault.New(fault.Invalid, "handoff: %d jobs at once and %d waiting calls: must not be negative", c.Concurrency, c.Waiting))
	}
	return errors.Join(errs...)
}

// PrefillWorkerStats counts what a PrefillWorker has done.
type PrefillWorkerStats struct {
	// Jobs were taken. Written ones are complete, Unwanted ones were refused or aborted by the decode worker, Failed ones
	// were given up, and Malformed ones were none.
	Jobs, Written, Unwanted, Failed, Malformed uint64
	// Blocks and Bytes were written for complete jobs.
	Blocks, Bytes uint64
	// Running jobs are worked on, and Waiting calls wait for that. WaitingTokens are the tokens of their prompts, as far as
	// another worker is to compute them.
	Running, Waiting, WaitingTokens int
}

// PrefillWorker does the jobs of a prefill worker. It is safe for concurrent use.
type PrefillWorker struct {
	cfg    PrefillWorkerConfig
	eng    engine.BlockProvider
	calls  rpc.Plane
	bulk   xfer.Plane
	layout engine.KVLayout
	born   time.Time
	slots  chan struct{} // of jobs which came by calls
	ended  chan struct{} // closed at the end of Run
	leave  sync.Once
	left   chan struct{}  // closed by Drain
	called sync.WaitGroup // calls which Run waits for
	sent   atomic.Uint64  // bytes of blocks which have been written, of all jobs
	// unreached are the decode workers whose memory is not reached.
	unreached unreachedOwners
	// throttle logs what may be true of every job.
	throttle *obs.Throttle
	mu       struct {
		sync.Mutex
		isOver bool // Run has ended, or is about to
		stats  PrefillWorkerStats
	}
}

// NewPrefillWorker returns a PrefillWorker which computes with eng, calls decode workers over calls, and writes blocks over bulk.
func NewPrefillWorker(cfg PrefillWorkerConfig, eng engine.BlockProvider, calls rpc.Plane, bulk xfer.Plane) (*PrefillWorker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Concurrency, cfg.Waiting = cmp.Or(cfg.Concurrency, DefaultConcurrency), cmp.Or(cfg.Waiting, DefaultWaiting)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &PrefillWorker{
		cfg: cfg, eng: eng, calls: calls, bulk: bulk, layout: eng.BlockLayout(), born: time.Now(),
		slots: make(chan struct{}, cfg.Concurrency), ended: make(chan struct{}), left: make(chan struct{}),
		throttle: obs.NewThrottle(cfg.Log, warnInterval),
	}, nil
}

func (p *PrefillWorker) now() kv.Mono { return kv.Mono(time.Since(p.born)) }

// Stats returns the counters.
func (p *PrefillWorker) Stats() PrefillWorkerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stats
}

// WaitingLoad returns how many calls wait, and the tokens of their prompts: neither the engine nor the queue knows them.
func (p *PrefillWorker) WaitingLoad() (jobs, tokens int) {
	s := p.Stats()
	return s.Waiting, s.WaitingTokens
}

func (p *PrefillWorker) updateStats(change func(*PrefillWorkerStats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.mu.stats)
}

// Drain makes the worker take no more jobs. Those which it has go on.
func (p *PrefillWorker) Drain() { p.leave.Do(func() { close(p.left) }) }

// idleInterval is how often AwaitIdle looks.
const idleInterval = 10 * time.Millisecond

// AwaitIdle waits until the worker has no jobs, or ctx ends. Drain comes first.
func (p *PrefillWorker) AwaitIdle(ctx context.Context) {
	// The end of ctx ends the wait, and is no error.
	_ = backoff.Poll(ctx, idleInterval, func() bool { s := p.Stats(); return s.Running+s.Waiting == 0 })
}

// Run does the jobs of q, which may be nil, until ctx ends. Then all jobs end, also jobs of calls, whose decode workers
// are told. It is called once.
func (p *PrefillWorker) Run(ctx context.Context, q bus.Queue) error {
	if q != nil {
		p.doQueues(ctx, q)
	}
	<-ctx.Done() // jobs of calls go on after Drain
	p.mu.Lock()
	p.mu.isOver = true
	p.mu.Unlock()
	close(p.ended)
	p.called.Wait()
	p.throttle.Flush(context.WithoutCancel(ctx))
	return nil
}

// doQueues does the jobs of q, several at once, until ctx ends or the worker drains.
func (p *PrefillWorker) doQueues(ctx context.Context, q bus.Queue) {
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() {
		defer stop()
		select {
		case <-p.left:
		case <-pulling.Done():
		}
	})
	for range p.cfg.Concurrency {
		running.Go(func() { p.doQueue(ctx, pulling, q) })
	}
	running.Wait()
}

// The waits between two attempts to pull from a queue which fails.
const (
	minPullWait = 50 * time.Millisecond
	maxPullWait = 2 * time.Second
)

// brokenInterval is how often a worker with a broken engine looks whether it answers again.
const brokenInterval = 500 * time.Millisecond

func (p *PrefillWorker) isBroken() bool { return p.cfg.IsBroken != nil && p.cfg.IsBroken() }

// countWork returns a number which changes whenever the engine has computed something or taken it from a pool, or bytes of
// blocks have been written; ok is false for an engine which does not say.
func (p *PrefillWorker) countWork() (n uint64, ok bool) {
	src, ok := p.eng.(engine.HealthSource)
	if !ok {
		return 0, false
	}
	return src.HealthReport().Progress + p.sent.Load(), true
}

// doQueue does one job of a queue after the other, until pulling ends. Jobs end with ctx.
func (p *PrefillWorker) doQueue(ctx, pulling context.Context, q bus.Queue) {
	retry := backoff.Backoff{Min: minPullWait, Max: maxPullWait}
	for {
		if backoff.Poll(pulling, brokenInterval, func() bool { return !p.isBroken() }) != nil {
			return
		}
		d, err := q.Pull(pulling)
		switch {
		case pulling.Err() != nil && err != nil:
			return
		case err != nil:
			p.cfg.Log.DebugContext(ctx, "no job comes from the queue", "error", err)
			if retry.Wait(pulling) != nil {
				return
			}
			continue
		}
		retry.Reset()
		if ctx.Err() != nil || pulling.Err() != nil { // it came as the pull ended: it is another worker's
			p.within(ctx, func(ctx context.Context) error { return q.Release(ctx, d) })
			return
		}
		if p.isBroken() { // since the pull began
			p.within(ctx, func(ctx context.Context) error { return q.Release(ctx, d) })
			continue
		}
		if err := bounded.RecoverPanic(func() error { p.doDelivery(ctx, q, d); return nil }); err != nil {
			p.cfg.Log.ErrorContext(ctx, "a job of a queue panicked", "error", err)
		}
	}
}

// doDelivery does a job of a queue. Bytes which are no job are removed.
func (p *PrefillWorker) doDelivery(ctx context.Context, q bus.Queue, d bus.Delivery) {
	var req engine.PrefillRequest
	err := engine.DecodePrefillRequest(d.Data, &req)
	if err == nil {
		err = req.Validate()
	}
	if err != nil {
		p.updateStats(func(s *PrefillWorkerStats) { s.Malformed++ })
		p.cfg.Log.WarnContext(ctx, "the queue has a job which cannot be read", "error", err)
		p.within(ctx, func(ctx context.Context) error { return q.Ack(ctx, d) })
		return
	}
	// A job which ages in the queue has less time. The machine needs the rest, at least one unit of it.
	if left := time.Until(d.Deadline); req.Budget > 0 {
		req.Budget = int(max(min(int64(req.Budget), left.Milliseconds()), 1))
	}
	p.doJob(ctx, ctx.Done(), &req, &queuedJob{q, d})
}

// within calls f with a context which ends soon, even if ctx has ended: what it tells is still of use.
func (p *PrefillWorker) within(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Job.ClaimWait)
	defer cancel()
	if err := f(ctx); err != nil {
		p.cfg.Log.DebugContext(ctx, "a decode worker or the queue cannot be told", "error", err)
	}
}

// ServePrefill answers the method prefill: it does a job, once fewer than Concurrency others run. The end of the call
// withdraws a job which waits; others end with their pull.
func (p *PrefillWorker) ServePrefill(ctx context.Context, body []byte) error {
	var req engine.PrefillRequest
	if err := engine.DecodePrefillRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	if !p.enterCall() {
		return errLeft()
	}
	defer p.called.Done()
	if err := p.acquireSlot(ctx, req.Into.End); err != nil {
		return err
	}
	defer func() { <-p.slots }()
	job := calledJob{}
	p.doJob(context.WithoutCancel(ctx), p.ended, &req, &job)
	return job.err
}

// enterCall has Run wait for a call, and reports whether it does.
func (p *PrefillWorker) enterCall() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.isOver {
		p.called.Add(1)
	}
	return !p.mu.isOver
}

// acquireSlot waits until another job of a call, for so many tokens, may run.
func (p *PrefillWorker) acquireSlot(ctx context.Context, tokens int) error {
	if err := p.startWaiting(tokens); err != nil {
		return err
	}
	defer p.updateStats(func(s *PrefillWorkerStats) { s.Waiting--; s.WaitingTokens -= tokens })
	select {
	case <-p.left:
		return errLeft()
	default:
	}
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-p.left:
	case <-p.ended:
	case <-ctx.Done():
		return fault.New(fault.Canceled, "the decode worker has withdrawn the job")
	}
	return errLeft()
}

// startWaiting counts a waiting call for so many tokens, if it may wait.
func (p *PrefillWorker) startWaiting(tokens int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.mu.stats.Waiting; n >= p.cfg.Waiting {
		return fault.New(fault.Overloaded, "%d jobs wait for this prefill worker", n)
	}
	p.mu.stats.Waiting++
	p.mu.stats.WaitingTokens += tokens
	return nil
}

func errLeft() error { return fault.New(fault.Draining, "this prefill worker takes no more jobs") }

// jobSource is where a job came from.
type jobSource interface {
	// extend says that the work goes on.
	extend(context.Context) error
	// acknowledge ends the job, and giveBack leaves it to another worker, for a reason.
	acknowledge(context.Context) error
	giveBack(context.Context, disagg.HandoffReason) error
}

// queuedJob is a job of a queue.
type queuedJob struct {
	queue    bus.Queue
	delivery bus.Delivery
}

func (j *queuedJob) extend(ctx context.Context) error      { return j.queue.Extend(ctx, j.delivery) }
func (j *queuedJob) acknowledge(ctx context.Context) error { return j.queue.Ack(ctx, j.delivery) }

// giveBack returns the job if this worker stops. Otherwise the job comes again when its lease passes: the queue delivers
// a returned one at once, which would spend all its attempts on the same worker in the same moment.
func (j *queuedJob) giveBack(ctx context.Context, why disagg.HandoffReason) error {
	if why != disagg.Stopped {
		return nil
	}
	return j.queue.Release(ctx, j.delivery)
}

// calledJob is a job which came by a call. err is its answer.
type calledJob struct{ err error }

func (*calledJob) extend(context.Context) error      { return nil }
func (*calledJob) acknowledge(context.Context) error { return nil }
func (j *calledJob) giveBack(_ context.Context, why disagg.HandoffReason) error {
	j.err = fault.New(fault.Unavailable, "this prefill worker did nothing for the job: %v", why)
	return nil
}
