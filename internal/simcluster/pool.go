package simcluster

import (
	"errors"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/paged"
	"penstock/internal/engine/sim"
)

// Pool is memory shared by workers: each copies its stored blocks to it, and fetches blocks from it instead
// of computing them. Routers must follow cache events.
type Pool struct {
	// Blocks is the capacity; 0 is no pool.
	Blocks int
	// Members is how many workers can attach it, counted from the first; 0 is all.
	Members int
	// Delay is the time of a copy into the pool in addition to [sim.Timing.Transfer].
	Delay time.Duration
}

func (p *Pool) validate() error {
	if p.Blocks < 0 || p.Members < 0 || p.Delay < 0 || p.Delay > maxDelay {
		return errors.New("simcluster: a pool's blocks, members and delay must not be negative")
	}
	return nil
}

// poolCopy is a copy of blocks into the pool in progress.
type poolCopy struct {
	worker uint32
	epoch  uint64
	seqs   []kv.SeqHash
}

// joinPool makes a starting worker a member of the pool, and attaches the pool to its engine.
func (w *simWorker) joinPool(c *cluster, cfg *paged.Config) {
	if c.pool == nil || w.isPrefill(c) || c.cfg.Pool.Members > 0 && int(w.number) >= c.cfg.Pool.Members {
		return
	}
	w.member = c.pool.AddMember(w.id)
	cfg.Remote = w.member
}

// leavePool ends the membership of a stopped worker.
func (w *simWorker) leavePool(c *cluster) {
	if w.member != nil {
		w.member.Detach()
		w.member = nil
		c.publishPoolNews()
	}
}

// startPoolCopy starts to copy newly stored blocks into the pool.
func (w *simWorker) startPoolCopy(c *cluster, events []kv.Event) {
	if w.member == nil {
		return
	}
	seqs := w.member.StartCopies(events)
	if len(seqs) == 0 {
		return
	}
	w.publishEvents(c, w.member.AppendMoved(nil, kv.InTransit, seqs))
	at := c.poolCopies.takeSlot()
	c.poolCopies.all[at] = poolCopy{w.number, w.epoch, seqs}
	took := c.cfg.Pool.Delay + w.timing.TransferDuration(len(seqs)*c.cfg.BlockSize)
	c.queue.push(c.now.Add(took), eventCopyDone, at, 0)
}

// finishPoolCopy ends a copy.
func (c *cluster) finishPoolCopy(at uint32) {
	done := c.poolCopies.all[at]
	c.poolCopies.all[at].seqs = nil
	c.poolCopies.freeSlot(at)
	w := &c.workers[done.worker]
	if !w.alive || w.epoch != done.epoch {
		return
	}
	w.member.FinishCopies(done.seqs)
	w.publishEvents(c, w.member.AppendMoved(nil, kv.Pooled, done.seqs))
	c.publishPoolNews()
}

// publishPoolNews lets members publish what others changed in the pool.
func (c *cluster) publishPoolNews() {
	for i := range c.workers {
		if o := &c.workers[i]; o.member != nil && o.member.HasPending() {
			o.publishEvents(c, o.member.AppendPending(nil))
		}
	}
}

// openPool makes the pool of a cluster with one.
func (c *cluster) openPool() (err error) {
	if c.cfg.Pool.Blocks > 0 && c.usesEvents {
		c.pool, err = sim.NewPool(0, c.cfg.Pool.Blocks)
	}
	return err
}

// applyEvent applies an event of a worker's cache.
func (r *simRouter) applyEvent(now kv.Mono, w kv.Worker, ev *kv.Event) {
	if ev.Kind == kv.Moved {
		r.pools.ApplyEffects(r.index, r.pools.ApplyMove(now, w, ev, nil))
		return
	}
	r.index.ApplyEvent(w, *ev)
	if ev.Kind == kv.Stored {
		r.pools.ApplyEffects(r.index, r.pools.RetryParked(ev, nil))
	}
}

// doubtMoves applies the tracker's verdict on a worker's pool moves, before its events are applied.
func (r *simRouter) doubtMoves(now kv.Mono, w kv.Worker, v kvfeed.FeedVerdict) {
	if v.Outcome == kvfeed.Gap || v.Lost {
		r.pools.ApplyEffects(r.index, r.pools.SuspectWorker(now, w, nil))
	}
	if v.Lost {
		r.pools.ForgetLost(w)
	}
}
