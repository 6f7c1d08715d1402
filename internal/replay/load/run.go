package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/replay"
)

const (
	maxAheadBytes  = 64 << 20 // of bodies which are built ahead
	maxParkedBytes = 64 << 20 // of bodies of requests which wait for another
	maxWarm        = 256      // connections which are opened before the run starts
	maxOutcomes    = 1024     // outcomes waiting to be recorded
)

// loadRun is one run: a feeder builds requests ahead, a dispatcher holds them until they are due, workers
// send them and read the responses, a collector records the outcomes.
//
//	feeder ─▶ ready ─▶ dispatcher (heap) ─▶ idle worker      open loop
//	feeder ─▶ ready ─▶ worker                                closed loop
//	worker ─▶ released ─▶ dispatcher ─▶ …                    the next one of a session
type loadRun struct {
	cfg   Config
	peer  *target
	clock *runClock
	conns connSet

	ready    chan *job // built, in order; has room for all which may be built ahead
	timed    chan *job // closed loop: due now
	released backlog   // of sessions; due later
	sessions *sessionTable
	ahead    aheadLimit
	parked   atomic.Int64 // built bytes of requests which wait for another

	pending atomic.Int64 // requests taken from the source and not finished, plus one for the feeder
	stop    chan struct{}
	stopped sync.Once
	primed  chan struct{} // closed once there is enough to start

	pool     workerPool
	workers  sync.WaitGroup
	outcomes chan *outcome
	spare    chan *outcome // recorded, for reuse
	wires    sync.Pool     // of *[]byte
	builders sync.Pool     // of *bodies

	workload struct {
		sync.Mutex
		err  error // why the run ended early
		read bool  // to its end
	}
}

func newLoadRun(cfg Config, p *target, c *runClock) *loadRun {
	r := &loadRun{
		cfg: cfg, peer: p, clock: c,
		ready: make(chan *job, cfg.Ahead), timed: make(chan *job), released: backlog{signal: make(chan struct{}, 1)},
		sessions: newSessionTable(), ahead: newAheadLimit(cfg.Ahead),
		stop: make(chan struct{}), primed: make(chan struct{}),
		outcomes: make(chan *outcome, maxOutcomes), spare: make(chan *outcome, maxOutcomes),
	}
	r.pool = workerPool{run: r, max: cfg.MaxConnections, freed: make(chan struct{}, 1)}
	extra, _ := cfg.extraMembers() // already validated
	r.builders.New = func() any {
		b := &bodyBuilder{form: cfg.Form, model: cfg.Model, maxTokens: cfg.MaxTokens, vocab: cfg.Vocabulary, extra: extra}
		if cfg.Pictures {
			b.images = newImageGenerator(cfg.Vocabulary.Seed)
		}
		return b
	}
	r.pending.Store(1)
	c.start = time.Now()
	return r
}

func (r *loadRun) elapsed() time.Duration { return r.clock.elapsed() }

// stopSending ends the sending.
func (r *loadRun) stopSending() { r.stopped.Do(func() { close(r.stop) }) }

// finishRequests counts n finished requests, and ends the run after the last one.
func (r *loadRun) finishRequests(n int64) {
	if r.pending.Add(-n) == 0 {
		r.stopSending()
	}
}

// execute runs to the end.
func (r *loadRun) execute(ctx context.Context, source replay.Source, record Recorder) (Summary, error) {
	live, cancel := context.WithCancel(context.WithoutCancel(ctx)) // of requests in flight
	defer cancel()
	var feeding sync.WaitGroup
	feeding.Go(func() { r.feedRequests(source) })
	r.warmUp(ctx, live)
	select {
	case <-r.primed:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // possibly together with the first requests
		r.stopSending()
		feeding.Wait() // it reads the clock, which is set now
	}

	r.clock.start = time.Now()
	summary := Summary{Start: r.clock.start}
	halt := context.AfterFunc(ctx, r.stopSending)
	defer halt()
	if r.cfg.Duration > 0 {
		end := time.AfterFunc(r.cfg.Duration, r.stopSending)
		defer end.Stop()
	}
	var collecting, dispatching sync.WaitGroup
	collecting.Go(func() { r.recordOutcomes(&summary, record) })
	dispatching.Go(func() { r.dispatchJobs(live) })
	r.pool.startWorkers(live)

	<-r.stop
	feeding.Wait()
	dispatching.Wait()
	r.awaitWorkers(ctx, cancel)
	close(r.outcomes)
	collecting.Wait()
	r.conns.closeAll()

	r.workload.Lock()
	defer r.workload.Unlock()
	summary.Interrupted = ctx.Err() != nil && (!r.workload.read || r.pending.Load() > 0 || summary.Abandoned > 0)
	return summary, r.workload.err
}

// awaitWorkers waits for the requests in flight to finish, or for the grace period if the context ended.
func (r *loadRun) awaitWorkers(ctx context.Context, cancel context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.workers.Wait()
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	grace := time.NewTimer(r.cfg.Grace)
	defer grace.Stop()
	select {
	case <-done:
		return
	case <-grace.C:
	}
	r.conns.closeAll()
	cancel()
	<-done
}

// warmUp makes the first workers, with their connections. The requests report a server which cannot be
// reached.
func (r *loadRun) warmUp(ctx, live context.Context) {
	n := r.cfg.Concurrency
	if n == 0 {
		n = spareWorkers(0)
	}
	var dialing sync.WaitGroup
	for i := range n {
		w := newLoadWorker(r)
		r.pool.idle = append(r.pool.idle, w)
		if i < maxWarm {
			dialing.Go(func() { _ = w.ensureConnected(ctx) })
		}
	}
	dialing.Wait()
}

// feedRequests takes requests from the source and builds them ahead of their time.
func (r *loadRun) feedRequests(source replay.Source) {
	err := r.feedUntilError(source)
	switch err {
	case io.EOF:
		r.workload.Lock()
		r.workload.read = true
		r.workload.Unlock()
	case errStopped:
	default:
		r.failWorkload(err)
	}
	r.markPrimed()
	r.finishRequests(1)
}

var errStopped = errors.New("load: stopped")

func (r *loadRun) feedUntilError(source replay.Source) error {
	b := r.builders.Get().(*bodyBuilder)
	var req replay.Request
	for {
		if !r.ahead.waitForRoom(r.stop, r.markPrimed) {
			return errStopped
		}
		if err := source.Next(&req); err != nil {
			return err
		}
		j := &job{index: req.Index, input: req.Input, want: r.cfg.MaxTokens, session: req.Session, at: req.At, delay: req.Delay}
		j.want = cmp.Or(j.want, req.Output)
		if r.cfg.Concurrency > 0 {
			j.at = 0
		}
		r.pending.Add(1)
		if err := r.placeJob(b, j, &req); err != nil {
			return err
		}
	}
}

// placeJob builds j and passes it on, or parks it until the previous request of its session has finished.
func (r *loadRun) placeJob(b *bodyBuilder, j *job, req *replay.Request) error {
	if j.session == "" || r.parked.Load() < maxParkedBytes {
		if err := r.buildRequest(b, j, req); err != nil {
			return err
		}
	} else {
		j.request = new(replay.Request)
		j.request.CopyFrom(req)
	}
	size := int64(len(j.wire))
	r.parked.Add(size)
	for {
		switch r.sessions.offerJob(j, r.elapsed()) {
		case offerDue:
			r.parked.Add(-size)
			if j.wire == nil {
				if err := r.buildRequest(b, j, req); err != nil {
					return err
				}
				j.request = nil
			}
			j.fresh = true
			r.ahead.addBody(len(j.wire))
			r.ready <- j // there is room: no more are built ahead than it holds
			return nil
		case offerParked:
			return nil
		case offerTimeless:
			return fmt.Errorf("request %d: the workload does not say when it is sent; choose a rate or a concurrency", req.Index)
		case offerFull:
			r.markPrimed()
			select {
			case <-r.sessions.room:
			case <-r.stop:
				return errStopped
			}
		}
	}
}

// releaseNext makes the next request of a session ready when the previous one has finished.
func (r *loadRun) releaseNext(session string, done time.Duration) {
	j := r.sessions.finishJob(session, done)
	if j == nil {
		return
	}
	if j.wire != nil {
		r.parked.Add(-int64(len(j.wire)))
	} else {
		b := r.builders.Get().(*bodyBuilder)
		err := r.buildRequest(b, j, j.request)
		r.builders.Put(b)
		j.request = nil
		if err != nil {
			r.failWorkload(err)
			return
		}
	}
	r.released.addJob(j)
}

// failWorkload ends the run because of its workload.
func (r *loadRun) failWorkload(err error) {
	r.workload.Lock()
	if r.workload.err == nil {
		r.workload.err = err
	}
	r.workload.Unlock()
	r.stopSending()
}

// buildRequest writes the bytes to send for j.
func (r *loadRun) buildRequest(b *bodyBuilder, j *job, req *replay.Request) error {
	body, path, err := b.appendBody(b.body[:0], req)
	if err != nil {
		return err
	}
	b.body = body
	var wire []byte
	if buf, ok := r.wires.Get().(*[]byte); ok {
		wire = (*buf)[:0]
	}
	b.id = append(append(b.id[:0], r.cfg.Name...), '-')
	if j.index == probeIndex {
		b.id = append(b.id, "probe"...)
	} else {
		b.id = strconv.AppendInt(b.id, int64(j.index), 10)
	}
	j.wire = r.peer.appendRequest(wire, path, b.id, body)
	return nil
}

// markPrimed reports that there is enough to start.
func (r *loadRun) markPrimed() {
	select {
	case <-r.primed:
	default:
		close(r.primed)
	}
}

// dispatchJobs holds requests until they are due.
func (r *loadRun) dispatchJobs(live context.Context) {
	r.clock.prepare()
	var q jobQueue
	var ready <-chan *job
	if r.cfg.Concurrency == 0 {
		ready = r.ready
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for _, j := range r.released.takeJobs() {
			q.push(j)
		}
		if len(q) == 0 || q[0].due-r.elapsed() > coarseTimer {
			if len(q) > 0 {
				timer.Reset(q[0].due - r.elapsed() - coarseTimer)
			} else {
				timer.Reset(time.Hour)
			}
			select {
			case j := <-ready:
				q.push(j)
			case <-r.released.signal:
			case <-timer.C:
			case <-r.stop:
				return
			}
			continue
		}
		select {
		case j := <-ready:
			q.push(j)
			continue
		case <-r.stop:
			return
		default:
		}
		if r.clock.sleepTowards(q[0].due) && !r.sendJob(live, q.pop()) {
			return
		}
	}
}

// sendJob passes j to a worker; false at the end of the run.
func (r *loadRun) sendJob(live context.Context, j *job) bool {
	if r.cfg.Concurrency > 0 {
		select {
		case r.timed <- j:
			return true
		case <-r.stop:
			return false
		}
	}
	w := r.pool.acquireWorker(live)
	if w == nil {
		return false
	}
	w.next <- j
	return true
}

// serveOpenLoop is the main loop of a worker in an open loop: it serves jobs of the dispatcher.
func (w *loadWorker) serveOpenLoop(live context.Context) {
	defer w.closeConn()
	for {
		select {
		case j := <-w.next:
			w.serveJob(live, j)
			w.run.pool.releaseWorker(w)
		case <-w.run.stop:
			select {
			case j := <-w.next: // assigned before the end
				w.serveJob(live, j)
			default:
			}
			return
		}
	}
}

// serveClosedLoop is the main loop of a worker in a closed loop: it takes one request after another.
func (w *loadWorker) serveClosedLoop(live context.Context) {
	defer w.closeConn()
	r := w.run
	for free := time.Duration(0); ; free = r.elapsed() {
		select {
		case <-r.stop:
			return
		default:
		}
		var j *job
		select {
		case j = <-r.timed:
		case j = <-r.ready:
		case <-r.stop:
			return
		}
		j.due = max(j.due, free)
		w.serveJob(live, j)
	}
}

// serveJob serves j, passes its outcome to the collector, and makes the next request of its session ready.
func (w *loadWorker) serveJob(live context.Context, j *job) {
	r := w.run
	var out *outcome
	select {
	case out = <-r.spare:
	default:
		out = &outcome{}
	}
	if j.fresh {
		r.ahead.removeBody(len(j.wire))
	}
	w.serveRequest(live, j, out)
	wire := j.wire
	r.wires.Put(&wire)
	out.wantTokens = j.want
	done := out.sample.Done
	r.outcomes <- out // the collector reads until all workers have exited
	if j.session != "" {
		r.releaseNext(j.session, done)
	}
	r.finishRequests(1)
	w.drainBody()
}

// recordOutcomes records finished requests.
func (r *loadRun) recordOutcomes(sum *Summary, record Recorder) {
	tokens, _ := record.(TokenRecorder)
	for out := range r.outcomes {
		sum.countOutcome(out)
		if !out.abandoned {
			record.RecordSample(&out.sample)
			if out.sample.Error == "" {
				out.recordGaps(record)
				if tokens != nil {
					tokens.RecordTokens(&out.sample, out.tokenTimes)
				}
			}
		}
		select {
		case r.spare <- out:
		default:
		}
	}
}

func (s *Summary) countOutcome(out *outcome) {
	if out.abandoned {
		s.Abandoned++
		return
	}
	if out.resent {
		s.Resent++
	}
	if out.sample.Error != "" {
		return
	}
	s.Answers++
	if !out.reported {
		s.NoUsage++
	}
	if !out.reportedCached {
		s.NoCached++
	}
	if out.sample.Output < out.wantTokens {
		s.Short++
	}
	s.Together += int64(max(out.sample.Output-len(out.tokenTimes), 0))
}
