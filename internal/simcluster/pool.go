package simcluster

import (
	"errors"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
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
type copying struct {
	worker uint32
	epoch  uint64
	seqs   []kv.SeqHash
}

// joinPool makes a starting worker a member of the pool, and attaches the pool to its engine.
func (w *worker) join(c *cluster, cfg *paged.Config) {
	if c.pool == nil || c.cfg.Pool.Members > 0 && int(w.number) >= c.cfg.Pool.Members {
		return
	}
	w.member = c.pool.Join(w.id)
	cfg.Elsewhere = w.member
}

// leavePool ends the membership of a stopped worker.
func (w *worker) part(c *cluster) {
	if w.member != nil {
		w.member.Leave()
		w.member = nil
		c.tellPool()
	}
}

// startPoolCopy starts to copy newly stored blocks into the pool.
func (w *worker) copy(c *cluster, events []kv.Event) {
	if w.member == nil {
		return
	}
	seqs := w.member.Offer(events)
	if len(seqs) == 0 {
		return
	}
	w.tell(c, w.member.Moved(nil, kv.InTransit, seqs))
	at := c.copies.take()
	c.copies.all[at] = copying{w.number, w.epoch, seqs}
	took := c.cfg.Pool.Delay + w.timing.Transfer(len(seqs)*c.cfg.BlockSize)
	c.queue.push(c.now.Add(took), copied, at, 0)
}

// finishPoolCopy ends a copy.
func (c *cluster) copied(at uint32) {
	done := c.copies.all[at]
	c.copies.all[at].seqs = nil
	c.copies.give(at)
	w := &c.workers[done.worker]
	if !w.alive || w.epoch != done.epoch {
		return
	}
	w.member.End(done.seqs)
	w.tell(c, w.member.Moved(nil, kv.Pooled, done.seqs))
	c.tellPool()
}

// publishPoolNews lets members publish what others changed in the pool.
func (c *cluster) tellPool() {
	for i := range c.workers {
		if o := &c.workers[i]; o.member != nil && o.member.Waits() {
			o.tell(c, o.member.News(nil))
		}
	}
}

// openPool makes the pool of a cluster with one.
func (c *cluster) openPool() (err error) {
	if c.cfg.Pool.Blocks > 0 && c.follow {
		c.pool, err = sim.NewPool(0, c.cfg.Pool.Blocks)
	}
	return err
}

// applyEvent applies an event of a worker's cache.
func (r *router) applyEvent(now kv.Mono, w kv.Worker, ev *kv.Event) {
	if ev.Kind == kv.Moved {
		r.pools.Settle(r.index, r.pools.Move(now, w, ev, nil))
		return
	}
	r.index.Apply(w, *ev)
	if ev.Kind == kv.Stored {
		r.pools.Settle(r.index, r.pools.Stored(ev, nil))
	}
}

// doubtMoves applies the tracker's verdict on a worker's pool moves, before its events are applied.
func (r *router) doubtMoves(now kv.Mono, w kv.Worker, v feed.Verdict) {
	if v.Outcome == feed.Gap || v.Lost {
		r.pools.Settle(r.index, r.pools.Doubt(now, w, nil))
	}
	if v.Lost {
		r.pools.Lost(w)
	}
}
