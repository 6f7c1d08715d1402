package simcluster

import (
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine/sim"
)

// simWorker is a batching engine with its worker process.
type worker struct {
	number  uint32
	id      kv.Worker
	alive   bool
	leaving bool   // it finishes its calls
	epoch   uint64 // of the worker, from 1

	sched   *paged.Scheduler
	plan    paged.Step
	sampled []paged.Sampled
	timing  sim.Timing
	passes  uint64 // over all epochs
	busy    bool   // it computes a batch
	inbox   []uint32
	aborts  []uint32
	held    int // calls which run or wait

	// registered is the state in discovery; a dead worker stays registered until its lease expires.
	registered      bool
	registeredEpoch uint64

	publisher
	member *sim.PoolMember // nil without a pool
	load   loadReport      // the last one
	loadAt kv.Mono
}

// openWorker starts the first epoch of a worker. Engines differ in their jitter.
func (c *cluster) openWorker(number int) error {
	w := &c.workers[number]
	w.number, w.id = uint32(number), kv.Worker{ID: kv.WorkerID(number + 1)}
	w.timing = c.cfg.Timing
	w.timing.Seed = derive(c.cfg.Timing.Seed, uint64(number))
	if err := w.live(c); err != nil {
		return err
	}
	w.registered, w.registeredEpoch = true, w.epoch
	return nil
}

// startEpoch starts an epoch with an empty cache.
func (w *worker) live(c *cluster) error {
	w.part(c)
	cfg := paged.Config{
		Blocks: c.cfg.Blocks, BlockSize: c.cfg.BlockSize, MaxSeqs: c.cfg.MaxSeqs,
		TokenBudget: c.cfg.TokenBudget, MaxContext: c.cfg.MaxContext,
		MaxWaiting: c.cfg.MaxSeqs + c.cfg.MaxWaiting, // the limit on heldCalls is reached first
	}
	w.join(c, &cfg)
	sched, err := paged.New(cfg)
	if err != nil {
		return err
	}
	w.sched, w.alive, w.leaving, w.busy = sched, true, false, false
	w.epoch++
	w.held, w.inbox, w.aborts = 0, w.inbox[:0], w.aborts[:0]
	if w.publisher, err = newPublisher(w.epoch); err != nil {
		return err
	}
	w.describe(c)
	return nil
}

// acceptCall accepts or refuses a call.
func (w *worker) called(c *cluster, at uint32) {
	cl := &c.calls.all[at]
	switch {
	case !cl.client:
		c.forget(at)
		return
	case !w.alive:
		w.end(c, at, fault.Unavailable)
		return
	case w.leaving:
		w.end(c, at, fault.Draining)
		return
	case w.held >= c.cfg.MaxSeqs+c.cfg.MaxWaiting:
		w.end(c, at, fault.Overloaded)
		return
	}
	cl.state = inbox
	w.held++
	w.inbox = append(w.inbox, at)
	if !w.busy {
		w.turn(c)
	}
}

// failCall sends the last frame of a failed call.
func (w *worker) end(c *cluster, at uint32, code fault.Code) {
	cl := &c.calls.all[at]
	cl.state = over
	c.send(c.batchOf(frame{call: at, life: cl.life, kind: failure, code: code}), c.cfg.Delay)
}

// startBatch handles new calls, and starts the next batch if there is one.
func (w *worker) turn(c *cluster) {
	w.abort(c)
	w.take(c)
	w.sched.Step(&w.plan)
	for _, id := range w.plan.Failed {
		// Impossible: a response ends at the context's length.
		w.held--
		w.end(c, uint32(id), fault.Internal)
	}
	w.busy = len(w.plan.Work) > 0
	if !w.busy {
		w.publish(c)
		return
	}
	pass := sim.Describe(&w.plan, w.sched.Stats(), c.cfg.Blocks)
	for i := range w.plan.Work {
		work := &w.plan.Work[i]
		pass.Media += max(0, min(c.calls.all[work.ID].media, work.Start+work.Prefill)-work.Start)
	}
	d := c.chaos.slowed(c.now, w.timing.Pass(&pass, w.passes))
	w.passes++
	c.queue.push(c.now.Add(d), passed, w.number, uint32(w.epoch))
}

// removeAborted drops the calls whose clients are gone.
func (w *worker) abort(c *cluster) {
	for _, at := range w.aborts {
		cl := &c.calls.all[at]
		switch cl.state {
		case inbox:
			w.inbox = slices.DeleteFunc(w.inbox, func(other uint32) bool { return other == at })
		case running:
			w.sched.Remove(paged.SeqID(at))
		default:
			continue // its last frame is in flight and ends it
		}
		w.held--
		c.forget(at)
	}
	w.aborts = w.aborts[:0]
}

// scheduleInbox adds the new calls to the schedule.
func (w *worker) take(c *cluster) {
	if len(w.inbox) == 0 {
		return
	}
	accepted := c.batch()
	for _, at := range w.inbox {
		cl := &c.calls.all[at]
		c.put(accepted, frame{call: at, life: cl.life, kind: acceptance})
		t := &c.tasks.all[cl.task]
		tokens := c.expand(t)
		for i := range cl.generated {
			tokens = append(tokens, output(cl.index, i))
		}
		c.prompt = tokens[:cl.prompt]
		err := w.sched.Add(paged.Sequence{ID: paged.SeqID(at), Tokens: tokens, Prompt: cl.prompt})
		cl.state = running
		if err != nil {
			w.held--
			cl.state = over
			c.put(accepted, frame{call: at, life: cl.life, kind: failure, code: fault.Of(err)})
		}
	}
	w.inbox = w.inbox[:0]
	c.send(accepted, c.cfg.Delay)
}

// finishBatch ends a batch: its tokens are known.
func (w *worker) passed(c *cluster, epoch uint32) {
	if uint32(w.epoch) != epoch || !w.alive {
		return // of an earlier epoch
	}
	w.sampled = w.sampled[:0]
	batch := c.batch()
	for i := range w.plan.Work {
		work := &w.plan.Work[i]
		if !work.Sample {
			continue
		}
		at := uint32(work.ID)
		cl := &c.calls.all[at]
		w.sampled = append(w.sampled, paged.Sampled{ID: work.ID, Token: output(cl.index, cl.generated)})
		f := frame{call: at, life: cl.life, kind: token, position: cl.generated, cached: work.Cached}
		cl.generated++
		f.last = cl.generated == cl.limit
		c.put(batch, f)
	}
	w.sched.Commit(w.sampled)
	for _, f := range c.batches.all[batch] {
		if f.last {
			w.sched.Remove(paged.SeqID(f.call))
			w.held--
			c.calls.all[f.call].state = over
		}
	}
	w.publish(c)
	w.busy = false
	c.send(batch, c.cfg.Delay)
	w.turn(c)
}

// hasElapsed reports whether d has passed from one time to another.
func elapsed(from, to kv.Mono, d time.Duration) bool { return to.Sub(from) >= d }
