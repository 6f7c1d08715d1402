package handoff

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// job is a job at its prefill worker. The goroutine of doJob owns it: others post functions, which that goroutine calls.
type job struct {
	p       *PrefillWorker
	req     *engine.PrefillRequest
	source  jobSource
	events  chan func()
	closed  chan struct{} // nothing is handled any more
	write   chan struct{} // closed when blocks are to be written
	running sync.WaitGroup

	// Owned by doJob.
	machine *disagg.PrefillJob
	queue   []disagg.HandoffEffect // to be performed
	prompt  *engine.Request
	claim   uint64 // of the pull which was admitted; 0 without a prompt
	gaveUp  bool
	written bool
	work    uint64 // countWork at the last heartbeat
	// extending and reporting say that a heartbeat to the source and to the decode worker is under way.
	extending, reporting bool

	computed  kv.Mono      // when the prompt was computed; of the goroutine which computes it
	cached    atomic.Int64 // tokens of the prompt
	preparing atomic.Bool  // neither the engine nor the transfer works
	// reachUntil is when the attempts to open the transfer end, as a time of the machine; 0 while none is made.
	reachUntil atomic.Int64
}

// doJob does a job. It ends early, and tells the decode worker, when stop is closed.
func (p *PrefillWorker) doJob(ctx context.Context, stop <-chan struct{}, req *engine.PrefillRequest, source jobSource) {
	j := &job{p: p, req: req, source: source, events: make(chan func()), closed: make(chan struct{}), write: make(chan struct{})}
	p.updateStats(func(s *PrefillWorkerStats) { s.Jobs++; s.Running++ })
	defer j.countOutcome()
	defer j.running.Wait()
	defer close(j.closed)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the machine ends what runs
	defer cancel()
	j.machine, j.queue = disagg.StartJob(p.now(), p.cfg.Job, disagg.JobOffer{
		Ref: req.Ref(), Start: req.Into.Start, End: req.Into.End, Budget: time.Duration(req.Budget) * time.Millisecond,
	}, &p.cfg.Exchange, p.cfg.FindOwner(req.Decode), nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		j.perform(ctx)
		at, live := j.machine.Deadline()
		if !live {
			return
		}
		timer.Reset(at.Sub(p.now()))
		select {
		case f := <-j.events:
			f()
		case <-timer.C:
			j.queue = j.machine.Tick(p.now(), j.queue)
		case <-stop:
			j.queue = j.machine.HandleStop(j.queue)
		}
	}
}

// countOutcome counts the job.
func (j *job) countOutcome() {
	first, last := j.p.layout.BlockRange(j.req.Into.Start, j.req.Into.End)
	blocks, bytes := last-first, (last-first)*j.p.layout.BlockBytes
	if j.written && j.p.cfg.Observe != nil {
		j.p.cfg.Observe(max(j.req.Into.End-int(j.cached.Load()), 0), int64(bytes))
	}
	j.p.updateStats(func(s *PrefillWorkerStats) {
		s.Running--
		switch {
		case j.written:
			s.Written++
			s.Blocks += uint64(blocks)
			s.Bytes += uint64(bytes)
		case j.gaveUp:
			s.Failed++
		default:
			s.Unwanted++
		}
	})
}

// post has the owner call f, unless the job is over.
func (j *job) post(f func()) {
	select {
	case j.events <- f:
	case <-j.closed:
	}
}

// startGuarded runs f in the background. A panic in it fails the job.
func (j *job) startGuarded(f func()) {
	j.running.Go(func() {
		if err := bounded.RecoverPanic(func() error { f(); return nil }); err != nil {
			j.p.cfg.Log.Error("a job of a prefill worker panicked", "request", j.req.ID, "error", err)
			j.post(func() { j.queue = j.machine.HandleFailed(j.queue) })
		}
	})
}

// perform performs the effects of the machine.
func (j *job) perform(ctx context.Context) {
	for len(j.queue) > 0 {
		e := j.queue[0]
		j.queue = j.queue[1:]
		switch e.Kind {
		case disagg.FetchPrompt:
			j.startGuarded(func() { j.pullPrompt(ctx) })
		case disagg.RunPrefill:
			prompt := j.prompt
			j.work, _ = j.p.countWork()
			j.preparing.Store(true)
			j.startGuarded(func() { j.computePrompt(ctx, prompt) })
		case disagg.WriteBlocks:
			close(j.write)
		case disagg.KeepAlive:
			j.keepAlive(ctx)
		case disagg.TellDecode:
			j.tellDecode(ctx, e.Reason)
		case disagg.AckJob:
			j.startGuarded(func() { j.p.within(ctx, j.source.acknowledge) })
		case disagg.ReturnJob:
			j.gaveUp = true
			if e.Reason != disagg.Stopped {
				j.p.throttle.Log(ctx, slog.LevelWarn, "a job is left to another prefill worker",
					"request", j.req.ID, "decode_worker", uint64(j.req.Decode.ID), "reason", e.Reason.String())
			}
			j.startGuarded(func() {
				j.p.within(ctx, func(ctx context.Context) error { return j.source.giveBack(ctx, e.Reason) })
			})
		case disagg.ReleasePrompt: // the job is over: doJob ends what runs
		}
	}
}

// maxPrompt bounds an encoded prompt, in bytes.
const maxPrompt = rpc.MaxBody

// pullPrompt claims the job. The call lasts as long as the decode worker wants the blocks.
func (j *job) pullPrompt(ctx context.Context) {
	req := engine.PullRequest{ID: j.req.ID, Attempt: j.req.Attempt, Epoch: j.req.Epoch, Handle: j.req.Handle, From: engine.BlockHandoff{
		Worker: j.p.cfg.Self.Worker, Epoch: j.p.cfg.Self.Epoch, Start: j.req.Into.Start, End: j.req.Into.End, Layout: j.p.layout,
	}}
	var prompt []byte
	var budget time.Duration
	var claim uint64
	isWhole := false
	err := j.p.calls.Call(ctx, j.req.Addr, engine.MethodPull, engine.AppendPullRequest(nil, &req), func(frame []byte) error {
		var f engine.Pulled
		if err := engine.DecodePulled(frame, &f); err != nil {
			return err
		}
		if isWhole {
			return fault.New(fault.Invalid, "pull: a frame follows the last one")
		}
		if f.Budget > 0 {
			budget = time.Duration(f.Budget) * time.Millisecond
		}
		claim = cmp.Or(claim, f.Claim)
		if len(prompt)+len(f.Data) > maxPrompt {
			return fault.New(fault.TooLarge, "pull: a prompt of more than %d bytes", maxPrompt)
		}
		if prompt = append(prompt, f.Data...); !f.Last {
			return nil
		}
		r := new(engine.Request)
		err := engine.DecodeRequest(prompt, r)
		if err == nil {
			err = r.Validate()
		}
		if err != nil {
			return err
		}
		if uint64(len(prompt)) != f.Total || r.Leg != engine.LegPrefill || r.Handoff == nil || r.Handoff.Blocks == nil {
			return fault.New(fault.Invalid, "pull: the answer is no prompt to prefill")
		}
		prompt, isWhole = nil, true
		j.post(func() {
			j.prompt, j.claim = r, claim
			j.queue = j.machine.HandlePrompt(j.p.now(), budget, j.queue)
		})
		return nil
	})
	j.post(func() { j.handlePullEnd(ctx, err) })
}

// handlePullEnd handles the end of the call by which the job was claimed.
func (j *job) handlePullEnd(ctx context.Context, err error) {
	switch {
	case err == nil && j.machine.State() == disagg.Writing: // the decode worker has the blocks
		j.handleWritten()
	case err == nil, fault.CodeOf(err) == fault.Conflict, fault.CodeOf(err) == fault.Canceled:
		j.queue = j.machine.HandleRefused(j.queue)
	default:
		j.p.cfg.Log.DebugContext(ctx, "a decode worker does not answer", "request", j.req.ID, "error", err)
		j.queue = j.machine.HandleFailed(j.queue)
	}
}

func (j *job) handleWritten() {
	j.written = j.written || j.machine.State() == disagg.Writing
	j.queue = j.machine.HandleWritten(j.queue)
}

// computePrompt computes the prompt and writes its blocks.
func (j *job) computePrompt(ctx context.Context, req *engine.Request) {
	err := j.prepare(ctx, req)
	j.preparing.Store(false)
	if err == nil {
		err = j.p.eng.PrefillBlocks(ctx, req, func(held engine.HeldBlocks) error {
			j.computed = j.p.now()
			j.post(func() { j.queue = j.machine.HandleComputed(j.queue) })
			select {
			case <-j.write:
				return j.writeBlocks(ctx, req.Handoff.Blocks, held)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	if err != nil {
		j.p.cfg.Log.DebugContext(ctx, "a prompt was not prefilled for another worker", "request", j.req.ID, "error", err)
		j.post(func() { j.queue = j.machine.HandleFailed(j.queue) })
		return
	}
	j.post(j.handleWritten)
}

func (j *job) prepare(ctx context.Context, req *engine.Request) error {
	if j.p.cfg.Prepare == nil {
		return nil
	}
	return j.p.cfg.Prepare(ctx, req)
}

// pieceBytes is about how much of the blocks is copied at once, in bytes. A block is never divided.
const pieceBytes = 1 << 20

// reachOwner returns the plane by which the blocks of a transfer are written. While its owner cannot be reached, attempts
// are repeated, since what is computed costs more than they do, and count as work. What has begun to send is not repeated.
func (j *job) reachOwner(ctx context.Context, d *xfer.Descriptor) xfer.Plane {
	p, owner := j.p, fmt.Sprint(d.Endpoints)
	until := p.unreached.planAttempts(owner, p.now(), min(cmp.Or(p.cfg.ReachWait, d.Lease), d.Lease))
	return &xfer.RetryPlane{Plane: p.bulk, Until: p.born.Add(time.Duration(until)), OnOpening: func(opening bool) {
		if opening {
			j.reachUntil.Store(int64(until))
		} else {
			j.reachUntil.Store(0)
		}
	}, OnAttempt: func(err error) {
		switch {
		case err == nil:
			p.unreached.forget(owner)
			return
		case ctx.Err() == nil && xfer.IsRepeatable(err):
			p.unreached.add(owner, p.now())
		}
		p.cfg.Log.DebugContext(ctx, "the memory of a decode worker is not reached", "request", j.req.ID, "error", err)
	}}
}

// writeBlocks writes the blocks of the tokens which into names, and then the note.
func (j *job) writeBlocks(ctx context.Context, into *engine.BlockHandoff, held engine.HeldBlocks) error {
	d, err := xfer.DecodeDescriptor(into.Descriptor)
	if err != nil {
		return err
	}
	size := j.p.layout.BlockBytes
	first, last := j.p.layout.BlockRange(into.Start, into.End)
	total := (last - first) * size
	if d.Size != int64(total) {
		return fault.New(fault.Invalid, "room for %d bytes; the blocks have %d", d.Size, total)
	}
	self := j.p.cfg.Self
	j.cached.Store(int64(held.Cached()))
	note := engine.Prefilled{
		Attempt: j.req.Attempt, Epoch: j.req.Epoch, Computed: into.End, Cached: held.Cached(), Blocks: last - first, Bytes: uint64(total), Done: true,
		By: self.Worker, ByEpoch: self.Epoch,
	}
	bulk := j.reachOwner(ctx, &d)
	piece := make([]byte, min(max(pieceBytes/size, 1), last-first)*size)
	if len(piece) < total {
		return j.writePieces(ctx, bulk, d, &note, held, piece, first, last)
	}
	if err := held.ReadBlocks(ctx, piece, first, last); err != nil {
		return err
	}
	note.SendDelay = j.sendDelay()
	err = xfer.Write(ctx, bulk, d, engine.AppendPrefilled(nil, &note), piece)
	j.p.sent.Add(uint64(len(piece)))
	return err
}

// sendDelay returns the time since the prompt was computed, in microseconds, from 1 to maxSendDelay.
func (j *job) sendDelay() int {
	return int(min(max(j.p.now().Sub(j.computed).Microseconds(), 1), int64(maxSendDelay)))
}

// writePieces writes the blocks from first to below last, as many at once as piece holds, and then the note.
func (j *job) writePieces(ctx context.Context, bulk xfer.Plane, d xfer.Descriptor, note *engine.Prefilled, held engine.HeldBlocks, piece []byte, first, last int) error {
	w, err := bulk.Open(ctx, d)
	if err != nil {
		return err
	}
	each := len(piece) / j.p.layout.BlockBytes
	for ; first < last; first += each {
		n := min(each, last-first)
		part := piece[:n*j.p.layout.BlockBytes]
		if err := held.ReadBlocks(ctx, part, first, first+n); err != nil {
			w.Abort(err)
			return err
		}
		if note.SendDelay == 0 {
			note.SendDelay = j.sendDelay()
		}
		if err := w.Write(part); err != nil {
			return err
		}
		j.p.sent.Add(uint64(len(part)))
	}
	return w.Commit(engine.AppendPrefilled(nil, note))
}

// keepAlive tells the source and the decode worker that the work goes on, each unless it is still telling that one:
// neither waits for the other. The decode worker hears nothing while nothing is computed and written: a process whose engine
// stands still is not one whose work goes on.
func (j *job) keepAlive(ctx context.Context) {
	if !j.extending {
		j.extending = true
		j.startGuarded(func() {
			beat, cancel := context.WithTimeout(ctx, j.p.cfg.Job.ClaimWait)
			defer cancel()
			if err := j.source.extend(beat); err != nil { // another worker may get the job: it will be refused
				j.p.cfg.Log.DebugContext(ctx, "a job is not extended", "request", j.req.ID, "error", err)
			}
			j.post(func() { j.extending = false })
		})
	}
	if claim := j.claim; !j.reporting && j.hasWorked() {
		j.reporting = true
		j.startGuarded(func() {
			beat, cancel := context.WithTimeout(ctx, j.p.cfg.Job.ClaimWait)
			defer cancel()
			err := j.report(beat, claim, engine.GoesOn)
			j.post(func() {
				if j.reporting = false; fault.CodeOf(err) == fault.Conflict {
					j.queue = j.machine.HandleRefused(j.queue)
				}
			})
		})
	}
}

// hasWorked reports whether the work went on since the last heartbeat, as far as is known.
func (j *job) hasWorked() bool {
	work, ok := j.p.countWork()
	last := j.work
	j.work = work
	return !ok || work != last || j.preparing.Load() || int64(j.p.now()) < j.reachUntil.Load()
}

// tellDecode tells the decode worker that this worker gives the job up.
func (j *job) tellDecode(ctx context.Context, why disagg.HandoffReason) {
	j.gaveUp = true
	claim, gaveUp := j.claim, engine.GaveUpFailed
	if why == disagg.Incompatible {
		gaveUp = engine.GaveUpIncompatible
	}
	j.startGuarded(func() {
		j.p.within(ctx, func(ctx context.Context) error { return j.report(ctx, claim, gaveUp) })
	})
}

// report calls progress for a claim.
func (j *job) report(ctx context.Context, claim uint64, gaveUp engine.GaveUp) error {
	self := j.p.cfg.Self
	return j.p.calls.Call(ctx, j.req.Addr, engine.MethodProgress, engine.AppendPrefilled(nil, &engine.Prefilled{
		Attempt: j.req.Attempt, Epoch: j.req.Epoch, By: self.Worker, ByEpoch: self.Epoch, GaveUp: gaveUp,
		Claim: claim, Handle: j.req.Handle,
	}), func([]byte) error { return nil })
}
