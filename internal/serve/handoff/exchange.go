package handoff

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/engine"
	"penstock/internal/plane/xfer"
)

// exchange is the handoff of one request at its decode worker. The goroutine which serves the request owns it: others
// post functions, which that goroutine calls.
type exchange struct {
	d      *DecodeWorker
	req    *engine.Request
	tokens int
	first  disagg.AttemptRef
	handle [16]byte
	began  kv.Mono

	events    chan func()
	progress  chan disagg.AttemptRef // chunks which have arrived
	held      chan int               // of engine.ImportWatcher
	reclaimed chan struct{}          // of engine.ImportWatcher
	generated chan error             // the end of the import's Generate
	closed    chan struct{}          // nothing is handled any more
	running   sync.WaitGroup

	// Owned by the goroutine which serves the request.
	machine  *disagg.Handoff
	queue    []disagg.HandoffEffect // to be performed
	imp      engine.BlockImport     // nil without a reservation
	result   error                  // of the import's Generate, if isOver
	isOver   bool
	asking   *pull // the pull which is being handled
	admitted *pull // nil if none is
	transfer *landing
	buffer   []byte // of transfers
	reserved int64  // of the budget for buffer
	endJob   context.CancelFunc
	job      disagg.AttemptRef  // the last one which was given to a prefill worker, or to their queue
	to       disagg.Incarnation // to which it is addressed; zero if it is to none
	outcome  HandoffOutcome
	queued   bool // counted in DecodeWorkerStats.Queued
	claimed  kv.Mono
	arrived  kv.Mono         // when all blocks had come
	imported kv.Mono         // when they were in the cache
	sent     time.Duration   // HandoffStages.Send
	follow   followedRequest // locked by the DecodeWorker

	// report is what the first delta with tokens says about the prompt; nil without a decision. It is replaced, never
	// changed: the engine's goroutine reads it. reported is that goroutine's.
	report   atomic.Pointer[engine.SplitReport]
	reported bool
	answered atomic.Int64 // when the answer began, as a time of the DecodeWorker; 0 before
}

// pull is a call of the method pull.
type pull struct {
	ref    disagg.AttemptRef
	by     disagg.Incarnation
	claim  uint64 // a random number which is not 0
	layout engine.KVLayout
	answer chan pullAnswer // gets one
	ended  chan error      // of an admitted pull: gets the end of the call
}

// pullAnswer is the answer to a pull: an error, or the prompt.
type pullAnswer struct {
	prompt *engine.Request
	budget time.Duration
	err    error
}

// landing is a transfer which has been opened: of the blocks of the tokens from start to end.
type landing struct {
	*xfer.Transfer
	ref        disagg.AttemptRef
	by         kv.Worker // which writes
	start, end int
	data       engine.BlockData
}

// BlocksReserved implements engine.ImportWatcher.
func (x *exchange) BlocksReserved(held int) {
	select {
	case x.held <- held:
	default: // one answer is enough
	}
}

// BlocksReclaimed implements engine.ImportWatcher. Nothing but ImportBlocks, which the engine itself runs, writes to its
// blocks.
func (x *exchange) BlocksReclaimed() {
	select {
	case x.reclaimed <- struct{}{}:
	default:
	}
}

// post has the owner call f, and reports whether it will.
func (x *exchange) post(f func()) bool {
	select {
	case x.events <- f:
		return true
	case <-x.closed:
		return false
	}
}

// guardCall calls f for the request, and converts a panic in it to an error of code Internal. Without it a bug of the engine
// which fails one request would end the process.
func (x *exchange) guardCall(f func() error) error {
	panicked := true
	err := bounded.RecoverPanic(func() error {
		err := f()
		panicked = false
		return err
	})
	if !panicked {
		return err
	}
	x.d.cfg.Log.Error("a handoff panicked", "request", x.req.ID, "error", err)
	return fault.New(fault.Internal, "worker %d failed on this request", x.d.cfg.Self.Worker.ID)
}

// abandonHandoff ends what the handoff has in progress if its owner panicked: other goroutines wait for it.
func (x *exchange) abandonHandoff() {
	select {
	case <-x.closed:
		return
	default:
	}
	x.closeTransfer()
	x.endPull(refusal(disagg.PrefillFailed))
	x.machine.CancelHandoff(nil) // what it has in progress has ended
	x.close()
}

// wait waits for the goroutines of the exchange.
func (x *exchange) wait() { x.running.Wait() }

// run runs the handoff. It returns what serves the request from then on.
func (x *exchange) run(ctx context.Context, sink func(*engine.Delta) error) (serve func() error) {
	helpers, release := context.WithCancel(ctx)
	defer release()
	x.machine, x.queue = disagg.StartHandoff(x.d.now(), x.d.cfg.Handoff, disagg.HandoffRequest{First: x.first, Tokens: x.tokens, BlockSize: x.d.layout.BlockSize}, nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		x.perform(ctx, helpers, sink)
		at, live := x.machine.Deadline()
		if !live {
			break
		}
		timer.Reset(at.Sub(x.d.now()))
		x.handleNext(ctx, timer.C)
	}
	x.close()
	return func() error { return x.serve(ctx, sink) }
}

// handleNext waits for an event and handles it.
func (x *exchange) handleNext(ctx context.Context, tick <-chan time.Time) {
	select {
	case f := <-x.events:
		f()
	case ref := <-x.progress:
		x.machine.HandleProgress(x.d.now(), ref)
	case held := <-x.held:
		x.queue = x.machine.HandleReserved(x.d.now(), held, x.queue)
	case <-x.reclaimed:
		x.queue = x.machine.ReclaimBlocks(x.queue)
	case <-tick:
		x.queue = x.machine.Tick(x.d.now(), x.queue)
	case x.result = <-x.generated:
		x.isOver = true
		x.queue = x.machine.CancelHandoff(x.queue)
	case <-ctx.Done():
		x.queue = x.machine.CancelHandoff(x.queue)
	}
}

// close ends what the handoff has in progress, when its machine has ended.
func (x *exchange) close() {
	x.d.closeExchange(x)
	close(x.closed)
	x.setQueued(false)
	x.endPull(nil)
	x.buffer = nil
	x.d.reserveLanding(-x.reserved)
	x.outcome.RequestID, x.outcome.State, x.outcome.Took = x.req.ID, x.machine.State(), x.d.now().Sub(x.began)
	x.outcome.GivenUp, x.outcome.Lost = x.machine.GivenUp(), x.machine.Lost()
	x.d.updateStats(func(s *DecodeWorkerStats) {
		switch x.outcome.State {
		case disagg.Decoding:
			s.Remote++
			s.Bytes += uint64(x.outcome.Bytes)
			s.Tokens += uint64(x.outcome.End - x.outcome.Start)
		case disagg.Local:
			s.Local[x.outcome.Reason]++
		default:
			s.Aborted++
		}
	})
	if x.d.cfg.Observe != nil {
		x.d.cfg.Observe(&x.outcome)
	}
}

// serve serves the request after the handoff.
func (x *exchange) serve(ctx context.Context, sink func(*engine.Delta) error) error {
	switch {
	case x.isOver:
		return x.result
	case x.imp != nil:
		return <-x.generated
	case x.machine.State() == disagg.Aborted:
		return ctx.Err()
	}
	return x.d.eng.Generate(ctx, x.req, sink)
}

// perform performs the effects of the machine, and what follows from the events to which they lead.
func (x *exchange) perform(ctx, helpers context.Context, sink func(*engine.Delta) error) {
	for len(x.queue) > 0 {
		e := x.queue[0]
		x.queue = x.queue[1:]
		switch e.Kind {
		case disagg.LookUpPrefix:
			x.lookUp(helpers)
		case disagg.ReserveBlocks:
			x.reserveBlocks(ctx, sink)
		case disagg.EnqueueJob:
			x.enqueueJob(helpers, &e)
		case disagg.WithdrawJob:
			x.endJob()
		case disagg.OpenTransfer:
			x.openTransfer(ctx, &e)
		case disagg.AdmitPull:
			x.admitPull(&e)
		case disagg.RefusePull:
			x.asking.answer <- pullAnswer{err: refusal(e.Reason)}
		case disagg.CloseTransfer:
			x.closeTransfer()
		case disagg.AbortPrefill:
			x.endPull(refusal(e.Reason))
		case disagg.StartDecode:
			x.outcome.Start, x.outcome.End = e.Start, e.End
		case disagg.PrefillLocal:
			x.prefillLocal(&e)
		case disagg.FreeBlocks: // the end of ctx frees them, and what the engine reclaimed it has
		}
	}
}

// lookUp asks the engine how much of the request it holds.
func (x *exchange) lookUp(ctx context.Context) {
	x.running.Go(func() {
		var cached int
		err := x.guardCall(func() (err error) {
			cached, err = x.d.eng.CountCached(ctx, x.req)
			return err
		})
		x.post(func() { x.decide(cached, err) })
	})
}

// decide decides where the prompt is computed. A request which the engine refuses to look up is for it to refuse.
func (x *exchange) decide(cached int, err error) {
	in := disagg.SplitInputs{Tokens: x.tokens, Cached: cached, BlockSize: x.d.layout.BlockSize}
	x.d.describeLoad(&in)
	decision := disagg.Decision{Inputs: in}
	if err == nil {
		start, end := in.MovedRange()
		size := x.d.landingSize(end - start)
		in.NoRoom, in.TooLarge = !x.adjustLanding(size), size > x.d.cfg.LandingBytes
		if decision = x.d.cfg.Decide(x.req.Split, in, &x.req.Prefill); !decision.Remote {
			x.adjustLanding(0)
		}
		x.report.Store(newReport(&decision))
	}
	x.outcome.Decision = decision
	x.queue = x.machine.HandlePrefix(x.d.now(), &decision, x.queue)
}

// changeReport replaces the report, if there is one, by a changed one.
func (x *exchange) changeReport(change func(*engine.SplitReport)) {
	if old := x.report.Load(); old != nil {
		r := *old
		change(&r)
		x.report.Store(&r)
	}
}

// observeStages reports the stages of a handoff whose blocks came. Nothing changes them any more.
func (x *exchange) observeStages() {
	began := kv.Mono(x.answered.Load())
	if x.d.cfg.ObserveStages == nil || x.outcome.State != disagg.Decoding || began == 0 {
		return
	}
	x.d.cfg.ObserveStages(&HandoffStages{
		Send: x.sent, Transfer: x.outcome.Transfer, Import: x.imported.Sub(x.arrived), FirstToken: max(began.Sub(x.imported), 0),
	})
}

// sendDelta passes a delta of the engine to sink, the first one which has tokens or an end with the report.
func (x *exchange) sendDelta(delta *engine.Delta, sink func(*engine.Delta) error) error {
	if len(delta.Tokens) > 0 {
		x.answered.CompareAndSwap(0, int64(x.d.now()))
	}
	if !x.reported && (len(delta.Tokens) > 0 || delta.Finish != engine.NotFinished) {
		x.reported, delta.Split = true, x.report.Load()
		defer func() { delta.Split = nil }() // engines use a delta again
	}
	return sink(delta)
}

// adjustLanding makes the reservation for blocks which arrive n bytes, if the budget allows it.
func (x *exchange) adjustLanding(n int64) bool {
	if !x.d.reserveLanding(n - x.reserved) {
		return false
	}
	x.reserved = n
	return true
}

// reserveBlocks has the engine reserve the blocks of the request.
func (x *exchange) reserveBlocks(ctx context.Context, sink func(*engine.Delta) error) {
	imp, err := x.d.eng.OpenImport(x.req, x)
	if err != nil {
		x.d.cfg.Log.DebugContext(ctx, "no blocks are reserved for a remote prefill", "request", x.req.ID, "error", err)
		x.queue = x.machine.ReclaimBlocks(x.queue)
		return
	}
	x.imp = imp
	x.running.Go(func() { x.generated <- x.guardCall(func() error { return imp.Generate(ctx, sink) }) })
}

// enqueueJob gives the job of an attempt to a prefill worker, or to their queue.
func (x *exchange) enqueueJob(helpers context.Context, e *disagg.HandoffEffect) {
	if x.endJob != nil {
		x.endJob()
	}
	self := x.d.cfg.Self
	job := &engine.PrefillRequest{
		ID: x.req.ID, Attempt: e.Ref.Attempt, Model: x.req.Model, Decode: self.Worker, Epoch: e.Ref.Epoch, Addr: x.d.cfg.Addr,
		Handle: x.handle[:], Tokens: x.tokens, Held: e.Start, Budget: int(max(e.Budget.Milliseconds(), 1)),
		Into: engine.BlockHandoff{Worker: self.Worker, Epoch: self.Epoch, Start: e.Start, End: e.End, Layout: x.d.layout},
	}
	ref, to, failed := e.Ref, e.Peer, append([]disagg.Incarnation(nil), x.machine.Failed()...)
	if ref != x.job {
		x.outcome.Jobs++
		x.d.updateStats(func(s *DecodeWorkerStats) { s.Jobs++ })
	} else { // the worker to which it was addressed has had its time
		failed = append(failed, x.to)
	}
	x.job, x.to = ref, to
	var ctx context.Context
	ctx, x.endJob = context.WithCancel(helpers)
	x.setQueued(true)
	x.running.Go(func() {
		var by disagg.Incarnation
		err := x.guardCall(func() (err error) {
			by, err = x.d.jobs.PlaceJob(ctx, job, to, failed)
			return err
		})
		x.post(func() {
			if ctx.Err() == nil {
				x.handlePlaced(ref, by, err)
			}
		})
	})
}

// setQueued counts whether the handoff has a job which no prefill worker has claimed.
func (x *exchange) setQueued(queued bool) {
	if x.queued == queued {
		return
	}
	x.queued = queued
	x.d.updateStats(func(s *DecodeWorkerStats) {
		if queued {
			s.Queued++
		} else {
			s.Queued--
		}
	})
}

// handlePlaced handles the end of PlaceJob. What an admitted worker does is known from its pull.
func (x *exchange) handlePlaced(ref disagg.AttemptRef, by disagg.Incarnation, err error) {
	switch {
	case by == (disagg.Incarnation{}) && err == nil: // the queue has it
	case by == (disagg.Incarnation{}):
		x.d.cfg.Log.Debug("no prefill worker takes a job", "request", x.req.ID, "error", err)
		x.queue = x.machine.HandleQueueFailed(x.d.now(), ref, x.queue)
	case x.machine.State() == disagg.Queued:
		x.queue = x.machine.HandlePrefillFailed(x.d.now(), ref, by, disagg.PrefillFailed, x.queue)
	}
}

// handlePull handles a pull, and answers it.
func (x *exchange) handlePull(p *pull) {
	if err := x.d.layout.CheckWriter(&p.layout); err != nil {
		x.prefillFailed(p.ref, p.by, p.claim, disagg.Incompatible)
		p.answer <- pullAnswer{err: err}
		return
	}
	x.asking = p
	x.queue = x.machine.HandlePull(x.d.now(), p.ref, p.by, x.queue)
}

// openTransfer opens a transfer for the pull which is being admitted.
func (x *exchange) openTransfer(ctx context.Context, e *disagg.HandoffEffect) {
	layout := x.asking.layout
	first, last := layout.BlockRange(e.Start, e.End)
	size := (last - first) * layout.BlockBytes
	err := error(fault.New(fault.Overloaded, "no memory is free for %d bytes of blocks", size))
	var t *xfer.Transfer
	if x.adjustLanding(int64(size)) {
		if cap(x.buffer) < size {
			x.buffer = make([]byte, size)
		}
		// The machine ends an attempt which is silent. The budget is what a writer may be silent at most.
		t, err = x.d.bulk.Expect(xfer.Incoming{Into: [][]byte{x.buffer[:size]}, Lease: x.d.cfg.Handoff.Budget, OnProgress: func(int64) {
			select {
			case x.progress <- e.Ref:
			default: // another chunk has said so
			}
		}})
	}
	if err != nil {
		x.d.cfg.Log.Debug("a transfer of blocks cannot be opened", "request", x.req.ID, "error", err)
		return // admitPull reports it
	}
	opened := &landing{t, e.Ref, x.asking.by.Worker, e.Start, e.End, engine.BlockData{Layout: layout, First: first, Bytes: x.buffer[:size]}}
	x.transfer = opened
	x.running.Go(func() {
		var receipt xfer.Receipt
		err := x.guardCall(func() (err error) {
			receipt, err = t.Wait(ctx)
			return err
		})
		x.post(func() { x.finishTransfer(ctx, opened, receipt, err) })
	})
}

// admitPull answers the pull which was admitted.
func (x *exchange) admitPull(e *disagg.HandoffEffect) {
	p, t := x.asking, x.transfer
	err := error(fault.New(fault.Conflict, "no transfer is open"))
	var descriptor []byte
	if t != nil && t.ref == e.Ref {
		descriptor, err = t.Descriptor().AppendBinary(nil)
	}
	if err != nil {
		p.answer <- pullAnswer{err: refusal(disagg.TransferFailed)}
		x.queue = x.machine.HandleTransferFailed(x.d.now(), e.Ref, x.queue)
		return
	}
	x.admitted, x.claimed = p, x.d.now()
	x.setQueued(false)
	prompt := *x.req
	prompt.Leg, prompt.Hints, prompt.Split, prompt.Prefill = engine.LegPrefill, nil, disagg.SplitSettings{}, engine.PrefillHint{}
	prompt.Handoff = &engine.Handoff{Blocks: &engine.BlockHandoff{
		Worker: x.d.cfg.Self.Worker, Epoch: e.Ref.Epoch, Start: t.start, End: t.end, Layout: p.layout, Descriptor: descriptor,
	}}
	p.answer <- pullAnswer{prompt: &prompt, budget: e.Budget}
}

// endPull ends the call of the admitted prefill worker.
func (x *exchange) endPull(err error) {
	if x.admitted != nil {
		x.admitted.ended <- err
		x.admitted = nil
	}
}

// isAdmitted reports whether by is admitted to ref, by the pull with a claim unless that is 0.
func (x *exchange) isAdmitted(ref disagg.AttemptRef, by disagg.Incarnation, claim uint64) bool {
	return x.admitted != nil && x.admitted.ref == ref && x.admitted.by == by && (claim == 0 || claim == x.admitted.claim)
}

// handleProgress handles a call of progress. It reports whether the work is wanted.
func (x *exchange) handleProgress(p *engine.Prefilled) bool {
	switch ref, by := p.Ref(), p.Prefiller(); {
	case p.GaveUp == engine.GaveUpIncompatible:
		x.prefillFailed(ref, by, p.Claim, disagg.Incompatible)
	case p.GaveUp != engine.GoesOn:
		x.prefillFailed(ref, by, p.Claim, disagg.PrefillFailed)
	case !x.isAdmitted(ref, by, p.Claim): // earlier builds make no claim
		return false
	default:
		x.machine.HandleProgress(x.d.now(), ref)
	}
	return true
}

// prefillFailed handles a prefill worker which gave up a claim, or went away. Of other claims than the admitted one it
// changes nothing: a worker which got a job twice gives up the second one while it works on the first one.
func (x *exchange) prefillFailed(ref disagg.AttemptRef, by disagg.Incarnation, claim uint64, why disagg.HandoffReason) {
	switch {
	case claim != 0 && x.isAdmitted(ref, by, claim):
		if t := x.transfer; t != nil {
			t.Abort(errors.New("its writer has given up"))
			// A worker which has written all blocks may go: a transfer which is over stays as it is.
			if receipt, err := t.Wait(context.Background()); err == nil {
				x.finishTransfer(context.Background(), t, receipt, nil)
				return
			}
		}
		x.endPull(refusal(why))
	case x.machine.State() != disagg.Queued:
		return
	}
	x.queue = x.machine.HandlePrefillFailed(x.d.now(), ref, by, why, x.queue)
}

// finishTransfer handles the end of a transfer.
func (x *exchange) finishTransfer(ctx context.Context, t *landing, receipt xfer.Receipt, err error) {
	if x.transfer != t {
		return
	}
	x.transfer = nil
	if err == nil {
		x.changeReport(func(r *engine.SplitReport) { r.By = t.by }) // before the engine goes on
		x.arrived = x.d.now()
		err = x.importBlocks(ctx, t, receipt.Note)
		x.imported = x.d.now()
	}
	if err == nil {
		x.outcome.Bytes, x.outcome.Transfer = receipt.Bytes, receipt.Took
		x.outcome.Prefill = max(x.d.now().Sub(x.claimed)-receipt.Took, 0)
		x.queue = x.machine.HandleNotify(t.ref, x.queue)
		return
	}
	if ctx.Err() != nil { // the request was cancelled, and with it the transfer, which has not failed
		x.queue = x.machine.CancelHandoff(x.queue)
		return
	}
	x.d.cfg.Log.DebugContext(ctx, "the blocks of a prompt did not come", "request", x.req.ID, "error", err)
	x.queue = x.machine.HandleTransferFailed(x.d.now(), t.ref, x.queue)
}

// maxSendDelay bounds what a note says of the time before its transfer, in microseconds. It is an int of 32 bits.
const maxSendDelay = int(30 * time.Minute / time.Microsecond)

// importBlocks gives the engine the blocks which have arrived, with a note.
func (x *exchange) importBlocks(ctx context.Context, t *landing, note []byte) error {
	var done engine.Prefilled
	switch err := engine.DecodePrefilled(note, &done); {
	case err != nil:
		return err
	case done.Ref() != t.ref || !done.Done:
		return refusal(disagg.Stale)
	}
	x.outcome.By, x.outcome.RemoteCached = done.Prefiller(), max(done.Cached, 0)
	x.sent = time.Duration(min(max(done.SendDelay, 0), maxSendDelay)) * time.Microsecond
	return x.imp.ImportBlocks(ctx, &t.data, x.outcome.RemoteCached)
}

// closeTransfer ends the transfer, if one is open.
func (x *exchange) closeTransfer() {
	if x.transfer != nil {
		x.transfer.Abort(errors.New("the prefill is not wanted any more"))
		x.transfer = nil
	}
}

// prefillLocal has the engine compute the prompt: by the import, if there is one, else serve does.
func (x *exchange) prefillLocal(e *disagg.HandoffEffect) {
	x.outcome.Reason = e.Reason
	x.follow.startPrefill(x.tokens, x.outcome.Decision.Inputs.Cached)
	if e.Reason != disagg.Decided {
		x.changeReport(func(r *engine.SplitReport) { r.By, r.Failure = kv.Worker{}, e.Reason.String() })
	}
	if x.imp != nil {
		x.imp.PrefillLocal()
	}
}
