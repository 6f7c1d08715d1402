package simcluster

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// neverTokens is a token count which no response reaches.
const neverTokens = -1

// noCall is the call of a task without one.
const noCall = ^uint32(0)

// requestTask is a request on its way through workers: a frontend's state of it.
type requestTask struct {
	request replay.Request
	serial  uint64 // unique
	due     kv.Mono
	session *sessionState
	key     string
	router  uint32
	machine *migrate.Planner
	number  uint32 // of the current or next attempt

	parts         []sim.MediaPart // media of the prompt
	prompt, limit int             // prompt tokens, and the response limit
	generated     int             // response tokens
	startedWith   int             // of them, when the attempt began
	cached        int
	first, last   kv.Mono

	call          uint32 // current call, or noCall
	worker        uint32 // of the last call
	predicted     int    // predicted cached blocks
	epoch         uint64 // of its worker, 0 if unknown
	hasWorker     bool   // there was a call
	prefilled     bool
	unreported    int // tokens not yet reported to the router
	lastHeard     kv.Mono
	expected      time.Duration // predicted from placed to the first token; 0 if unknown
	placed        kv.Mono
	breakAt       int   // break at this many tokens, by a fault; or neverTokens
	awaitsWorkers bool  // waits for a change of the worker set
	lastRefusal   error // the router's last refusal
	code          fault.Code

	// wakeSeq and stallSeq number the events for which the task waits, over all tasks of a slot: earlier
	// events are ignored.
	wakeSeq, stallSeq uint32
}

// reset makes a task of a copy of a request, reusing the memory of the previous one.
func (t *requestTask) reset(r *replay.Request) {
	*t = requestTask{request: t.request, parts: t.parts, call: noCall, number: 1, wakeSeq: t.wakeSeq, stallSeq: t.stallSeq}
	t.request.CopyFrom(r) // the source overwrites its request
	t.parts = appendMediaParts(t.parts[:0], &t.request)
}

// startTask starts a request.
func (c *cluster) startTask(at uint32) {
	t := &c.tasks.all[at]
	t.router = uint32(c.started % len(c.routers))
	c.started++
	c.scaling.countArrival()
	t.key = strconv.FormatUint(t.serial, 10)
	t.prompt = len(c.expandPrompt(t))
	t.limit = min(t.request.Output, c.contextLimit()-t.prompt)
	if t.prompt < 1 || t.limit < 1 {
		c.finishTask(at, "invalid")
		return
	}
	t.machine = migrate.New(c.cfg.Migration, deriveSeed(c.cfg.Seed, t.serial))
	c.driveTask(at, c.nextStep(at))
}

// contextLimit is the most tokens of a request in total.
func (c *cluster) contextLimit() int { return min(c.cfg.MaxContext, c.cfg.Blocks*c.cfg.BlockSize) }

func (c *cluster) nextStep(at uint32) migrate.Step {
	t := &c.tasks.all[at]
	return t.machine.Next(c.now, c.routers[t.router].lookupEpoch)
}

// driveTask follows the steps of the task's migration machine until it has to wait.
func (c *cluster) driveTask(at uint32, step migrate.Step) {
	t := &c.tasks.all[at]
	for {
		switch step.Action {
		case migrate.Try:
			d, waits, err := c.chooseWorker(at, step.Exclude)
			switch {
			case waits:
				return
			case err == nil:
				c.startCall(at, d)
				return
			}
			t = &c.tasks.all[at]
			t.lastRefusal = err
			step = t.machine.HandleNoWorker(c.now, fault.CodeOf(err))
		case migrate.Pause:
			if step.Wait > 0 {
				c.scheduleWake(at, step.Wait)
				return
			}
			step = c.nextStep(at)
		case migrate.Await:
			t.awaitsWorkers = true
			r := &c.routers[t.router]
			r.waiting = append(r.waiting, at)
			c.scheduleWake(at, step.Wait)
			return
		case migrate.GiveUp:
			if step.Reason == migrate.Refused {
				t.code = fault.CodeOf(t.lastRefusal)
			}
			c.finishTask(at, errorWord(t.code))
			return
		}
	}
}

func (c *cluster) scheduleWake(at uint32, d time.Duration) {
	t := &c.tasks.all[at]
	t.wakeSeq++
	c.queue.push(c.now.Add(d), eventTaskWake, at, t.wakeSeq)
}

// wakeTask ends a wait.
func (c *cluster) wakeTask(at, number uint32) {
	t := &c.tasks.all[at]
	if t.wakeSeq != number {
		return
	}
	t.wakeSeq++
	if t.awaitsWorkers {
		t.awaitsWorkers = false
		r := &c.routers[t.router]
		r.waiting = slices.DeleteFunc(r.waiting, func(other uint32) bool { return other == at })
	}
	c.driveTask(at, c.nextStep(at))
}

// startCall calls the chosen worker.
func (c *cluster) startCall(at uint32, d route.Decision) {
	t := &c.tasks.all[at]
	w := uint32(d.Worker.ID - 1)
	t.worker, t.hasWorker, t.prefilled, t.predicted = w, true, false, d.OverlapBlocks
	t.startedWith = t.generated
	t.epoch, _ = c.routers[t.router].lookupEpoch(d.Worker.ID)
	t.call = c.calls.takeSlot()
	cl := &c.calls.all[t.call]
	cl.reset(at, t, w)
	t.lastHeard = c.now
	t.stallSeq++
	c.queue.push(c.now.Add(c.cfg.StallTimeout), eventTaskStall, at, t.stallSeq)
	t.breakAt = neverTokens
	if c.faults.breaksCall(c.now) {
		t.breakAt = t.generated + c.faults.random.Below(t.limit-t.generated)
	}
	if c.faults.breaksCall(c.now) { // in transit, before the worker sees it
		cl.state = callFinished
		c.sendBatch(c.newBatchOf(responseFrame{call: t.call, generation: cl.generation, kind: frameFailed, code: fault.Unavailable}), 2*c.cfg.Delay)
		return
	}
	c.queue.push(c.now.Add(c.cfg.Delay), eventCallArrived, t.call, 0)
}

// checkStall ends an attempt whose worker was silent for too long.
func (c *cluster) checkStall(at, number uint32) {
	t := &c.tasks.all[at]
	if t.stallSeq != number {
		return
	}
	if due := t.lastHeard.Add(c.cfg.StallTimeout); due > c.now {
		c.queue.push(due, eventTaskStall, at, number)
		return
	}
	c.cancelCall(t.call)
	c.failAttempt(at, fault.Unavailable)
}

// deliverFrames delivers the frames of a batch to their tasks.
func (c *cluster) deliverFrames(batch uint32) {
	gap, n := time.Duration(0), 0
	for _, f := range c.batches.all[batch] {
		cl := &c.calls.all[f.call]
		if cl.generation != f.generation {
			continue // freed
		}
		at := cl.task
		t := &c.tasks.all[at]
		mine := cl.clientWaits
		if f.kind == frameFailed || f.last {
			c.freeCall(f.call)
		}
		if !mine {
			continue
		}
		t.lastHeard = c.now
		switch f.kind {
		case frameAccepted:
			c.breakCall(at)
		case frameFailed:
			c.failAttempt(at, f.code)
		case frameToken:
			if !t.prefilled {
				t.prefilled = true
				c.routers[t.router].recordFirstToken(c, t, f.cached)
			}
			if t.generated > 0 {
				d := c.now.Sub(t.last)
				if n > 0 && d != gap {
					c.record.RecordGap(gap, n)
					n = 0
				}
				gap, n = d, n+1
			}
			if f.position != t.generated {
				c.internalError = fmt.Errorf("simcluster: request %d got token %d after %d", t.request.Index, f.position, t.generated)
			}
			if t.generated == 0 {
				t.first, t.cached = c.now, f.cached
			}
			t.generated, t.last = t.generated+1, c.now
			c.routers[t.router].recordOutput(c, t)
			c.breakCall(at)
			if f.last {
				t.call = noCall
				c.routers[t.router].recordAnswer(c, t)
				c.routers[t.router].freeReservation(c, t)
				c.finishTask(at, "")
			}
		}
	}
	if n > 0 {
		c.record.RecordGap(gap, n)
	}
	c.freeBatch(batch)
}

// breakCall breaks a task's call if its break is due.
func (c *cluster) breakCall(at uint32) {
	t := &c.tasks.all[at]
	if t.breakAt == t.generated {
		c.cancelCall(t.call)
		c.failAttempt(at, fault.Unavailable)
	}
}

// failAttempt ends an attempt which did not complete the task.
func (c *cluster) failAttempt(at uint32, code fault.Code) {
	t := &c.tasks.all[at]
	r := &c.routers[t.router]
	t.call = noCall
	t.stallSeq++
	r.freeReservation(c, t)
	t.number++
	t.code = code
	if code.Class().Retryable {
		r.recordFailure(c, t.worker, code)
	}
	id := kv.WorkerID(t.worker + 1)
	epoch := t.epoch
	if epoch == 0 {
		epoch, _ = r.lookupEpoch(id)
	}
	c.driveTask(at, t.machine.HandleFailure(c.now, migrate.Failure{Worker: id, Epoch: epoch, Code: code, Tokens: t.generated}))
}

// finishTask records the outcome of a finished task.
func (c *cluster) finishTask(at uint32, problem string) {
	t := &c.tasks.all[at]
	s := replay.Sample{
		Index: t.request.Index, Due: sinceStart(t.due), Sent: sinceStart(t.due), Done: sinceStart(c.now),
		Input: t.prompt, Cached: t.cached, Output: t.generated, Error: problem,
	}
	if t.generated > 0 {
		s.First, s.Last = sinceStart(t.first), sinceStart(t.last)
		if t.expected > 0 {
			s.Predicted = sinceStart(t.placed.Add(t.expected))
		}
	}
	if t.hasWorker {
		s.Worker = uint64(t.worker + 1)
	}
	session := t.session
	t.session, t.machine, t.lastRefusal, t.key = nil, nil, nil, ""
	t.wakeSeq++
	t.stallSeq++
	c.tasks.freeSlot(at)
	c.record.RecordSample(&s)
	c.scaling.countAnswer(&s)
	if session != nil {
		c.releaseSession(session)
	}
}

// errorWord is the name of an error in samples.
func errorWord(code fault.Code) string {
	switch code {
	case fault.Invalid:
		return "invalid"
	case fault.Overloaded, fault.Limited:
		return "overloaded"
	case fault.Unavailable, fault.Draining:
		return "unavailable"
	case fault.Deadline:
		return "timeout"
	}
	return code.String()
}
