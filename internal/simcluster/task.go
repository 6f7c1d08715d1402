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
	"penstock/core/slots"
	"penstock/internal/replay"
)

// neverTokens is a token count which no response reaches.
const never = -1

// noCall is the call of a task without one.
const nowhere = ^uint32(0)

// requestTask is a request on its way through workers: a frontend's state of it.
type task struct {
	request replay.Request
	serial  uint64 // unique
	due     kv.Mono
	session *session
	key     string
	router  uint32
	machine *migrate.Machine
	number  uint32 // of the current or next attempt

	prompt, limit int // prompt tokens, and the response limit
	got           int // response tokens
	cached        int
	first, last   kv.Mono

	call      uint32 // current call, or noCall
	worker    uint32 // of the last call
	predicted int    // predicted cached blocks
	epoch     uint64 // of its worker, 0 if unknown
	tried     bool   // there was a call
	prefilled bool
	grown     int // tokens not yet reported to the router
	heard     kv.Mono
	breaks    int   // break at this many tokens, by a fault; or neverTokens
	awaits    bool  // waits for a change of the worker set
	refused   error // the router's last refusal
	code      fault.Code

	// wakeSeq and stallSeq number the events for which the task waits, over all tasks of a slot: earlier
	// events are ignored.
	wakes, stalls uint32
}

// reset makes a task of a copy of a request, reusing the memory of the previous one.
func (t *task) reset(r *replay.Request) {
	old, wakes, stalls := t.request, t.wakes, t.stalls
	*t = task{request: old, call: nowhere, number: 1, wakes: wakes, stalls: stalls}
	t.request.Set(r) // the source overwrites its request
}

// startTask starts a request.
func (c *cluster) begin(at uint32) {
	t := &c.tasks.all[at]
	t.router = uint32(c.served % len(c.routers))
	c.served++
	t.key = strconv.FormatUint(t.serial, 10)
	t.prompt = len(c.expand(t))
	t.limit = min(t.request.Output, c.limit()-t.prompt)
	if t.prompt < 1 || t.limit < 1 {
		c.end(at, "invalid")
		return
	}
	t.machine = migrate.New(c.cfg.Migration, derive(c.cfg.Seed, t.serial))
	c.drive(at, c.next(at))
}

// contextLimit is the most tokens of a request in total.
func (c *cluster) limit() int { return min(c.cfg.MaxContext, c.cfg.Blocks*c.cfg.BlockSize) }

func (c *cluster) next(at uint32) migrate.Step {
	t := &c.tasks.all[at]
	return t.machine.Next(c.now, c.routers[t.router].life)
}

// driveTask follows the steps of the task's migration machine until it has to wait.
func (c *cluster) drive(at uint32, step migrate.Step) {
	t := &c.tasks.all[at]
	for {
		switch step.Do {
		case migrate.Try:
			d, err := c.choose(t, step.Exclude)
			if err == nil {
				c.place(at, d)
				return
			}
			t.refused = err
			step = t.machine.NoWorker(c.now, fault.Of(err))
		case migrate.Pause:
			if step.For > 0 {
				c.sleep(at, step.For)
				return
			}
			step = c.next(at)
		case migrate.Await:
			t.awaits = true
			r := &c.routers[t.router]
			r.waiting = append(r.waiting, at)
			c.sleep(at, step.For)
			return
		case migrate.GiveUp:
			if step.Why == migrate.Refused {
				t.code = fault.Of(t.refused)
			}
			c.end(at, word(t.code))
			return
		}
	}
}

func (c *cluster) sleep(at uint32, d time.Duration) {
	t := &c.tasks.all[at]
	t.wakes++
	c.queue.push(c.now.Add(d), wake, at, t.wakes)
}

// wakeTask ends a wait.
func (c *cluster) wake(at, number uint32) {
	t := &c.tasks.all[at]
	if t.wakes != number {
		return
	}
	t.wakes++
	if t.awaits {
		t.awaits = false
		r := &c.routers[t.router]
		r.waiting = slices.DeleteFunc(r.waiting, func(other uint32) bool { return other == at })
	}
	c.drive(at, c.next(at))
}

// chooseWorker asks the task's router for a worker which is not in exclude, and reserves the task's load
// there.
func (c *cluster) choose(t *task, exclude []kv.WorkerID) (route.Decision, error) {
	q := route.Query{
		Key: slots.Key{ID: t.key, Attempt: t.number}, PromptTokens: t.prompt,
		Exclude: exclude, Moving: t.number > 1,
	}
	d, err := c.routers[t.router].route(c, &q, c.expand(t))
	if c.decided != nil && err == nil {
		c.decided(t, &q, d)
	}
	return d, err
}

// startCall calls the chosen worker.
func (c *cluster) place(at uint32, d route.Decision) {
	t := &c.tasks.all[at]
	w := uint32(d.Worker.ID - 1)
	t.worker, t.tried, t.prefilled, t.predicted = w, true, false, d.OverlapBlocks
	t.epoch, _ = c.routers[t.router].life(d.Worker.ID)
	t.call = c.calls.take()
	cl := &c.calls.all[t.call]
	cl.reset(at, t, w)
	t.heard = c.now
	t.stalls++
	c.queue.push(c.now.Add(c.cfg.StallTimeout), stall, at, t.stalls)
	t.breaks = never
	if c.chaos.breaks(c.now) {
		t.breaks = t.got + c.chaos.random.Below(t.limit-t.got)
	}
	if c.chaos.breaks(c.now) { // in transit, before the worker sees it
		cl.state = over
		c.send(c.batchOf(frame{call: t.call, life: cl.life, kind: failure, code: fault.Unavailable}), 2*c.cfg.Delay)
		return
	}
	c.queue.push(c.now.Add(c.cfg.Delay), called, t.call, 0)
}

// checkStall ends an attempt whose worker was silent for too long.
func (c *cluster) stall(at, number uint32) {
	t := &c.tasks.all[at]
	if t.stalls != number {
		return
	}
	if due := t.heard.Add(c.cfg.StallTimeout); due > c.now {
		c.queue.push(due, stall, at, number)
		return
	}
	c.drop(t.call)
	c.failed(at, fault.Unavailable)
}

// deliverFrames delivers the frames of a batch to their tasks.
func (c *cluster) deliver(batch uint32) {
	gap, n := time.Duration(0), 0
	for _, f := range c.batches.all[batch] {
		cl := &c.calls.all[f.call]
		if cl.life != f.life {
			continue // freed
		}
		at := cl.task
		t := &c.tasks.all[at]
		mine := cl.client
		if f.kind == failure || f.last {
			c.forget(f.call)
		}
		if !mine {
			continue
		}
		t.heard = c.now
		switch f.kind {
		case acceptance:
			c.sever(at)
		case failure:
			c.failed(at, f.code)
		case token:
			if !t.prefilled {
				t.prefilled = true
				c.routers[t.router].prefilled(c, t, f.cached)
			}
			if t.got > 0 {
				d := c.now.Sub(t.last)
				if n > 0 && d != gap {
					c.record.Gap(gap, n)
					n = 0
				}
				gap, n = d, n+1
			}
			if f.position != t.got {
				c.defect = fmt.Errorf("simcluster: request %d got token %d after %d", t.request.Index, f.position, t.got)
			}
			if t.got == 0 {
				t.first, t.cached = c.now, f.cached
			}
			t.got, t.last = t.got+1, c.now
			c.routers[t.router].grown(c, t)
			c.sever(at)
			if f.last {
				t.call = nowhere
				c.routers[t.router].free(c, t)
				c.end(at, "")
			}
		}
	}
	if n > 0 {
		c.record.Gap(gap, n)
	}
	c.recycle(batch)
}

// breakCall breaks a task's call if its break is due.
func (c *cluster) sever(at uint32) {
	t := &c.tasks.all[at]
	if t.breaks == t.got {
		c.drop(t.call)
		c.failed(at, fault.Unavailable)
	}
}

// failAttempt ends an attempt which did not complete the task.
func (c *cluster) failed(at uint32, code fault.Code) {
	t := &c.tasks.all[at]
	r := &c.routers[t.router]
	t.call = nowhere
	t.stalls++
	r.free(c, t)
	t.number++
	t.code = code
	if code.Class().Retryable {
		r.failed(c, t.worker, code)
	}
	id := kv.WorkerID(t.worker + 1)
	epoch := t.epoch
	if epoch == 0 {
		epoch, _ = r.life(id)
	}
	c.drive(at, t.machine.Failed(c.now, migrate.Failure{Worker: id, Epoch: epoch, Code: code, Tokens: t.got}))
}

// finishTask records the outcome of a finished task.
func (c *cluster) end(at uint32, problem string) {
	t := &c.tasks.all[at]
	s := replay.Sample{
		Index: t.request.Index, Due: since(t.due), Sent: since(t.due), Done: since(c.now),
		Input: t.prompt, Cached: t.cached, Output: t.got, Error: problem,
	}
	if t.got > 0 {
		s.First, s.Last = since(t.first), since(t.last)
	}
	if t.tried {
		s.Worker = uint64(t.worker + 1)
	}
	session := t.session
	t.session, t.machine, t.refused, t.key = nil, nil, nil, ""
	t.wakes++
	t.stalls++
	c.tasks.give(at)
	c.record.Sample(&s)
	if session != nil {
		c.free(session)
	}
}

// errorWord is the name of an error in samples.
func word(code fault.Code) string {
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
