package router

import (
	"fmt"
	"slices"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/prefix"
	"penstock/core/route"
)

// checkNow states what holds at any time, under any faults:
//
//   - For a worker whose feed is live or repaired a router has exactly what that epoch had
//     reported up to the last event that the router applied: only events in flight may be missing.
//     For a worker in doubt it has nothing.
//   - Only live entries are matched, and none of an epoch older than discovery's.
//   - A pooled block is matched only for workers with access, and only if the last event of one of
//     the workers about it, as far as the router received it and unless that feed is in doubt, said
//     that it is in the pool.
func (w *world) checkNow() {
	w.t.Helper()
	w.engines.Lock()
	defer w.engines.Unlock()
	for i, at := range w.routers {
		if !at.alive() {
			continue
		}
		if err := w.checkCache(&at.router.cache); err != nil {
			w.t.Fatalf("router %d: %v", i, err)
		}
	}
}

func (w *world) checkCache(c *cacheIndex) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range []error{c.mu.index.Check(), c.mu.tracker.Check(), c.mu.pools.Check()} {
		if err != nil {
			return err
		}
	}
	own := map[kv.Worker][]prefix.Block{} // of the workers that may be matched
	for _, at := range w.workers {
		h, known := c.mu.tracker.HealthOf(at.as())
		blocks := c.mu.index.AppendBlocks(nil, at.as())
		got := seqsOf(blocks)
		var want []kv.SeqHash
		if known && h.State != kvfeed.Resyncing && h.LastSeq > 0 {
			l := w.life(at.as(), h.Epoch)
			if l == nil || h.LastSeq > uint64(len(l.events)) {
				return fmt.Errorf("worker %d is at event %d of life %d, which it has not told", at.id, h.LastSeq, h.Epoch)
			}
			want = l.at(h.LastSeq)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("worker %d (%v, event %d of life %d): %d blocks, told were %d", at.id, h.State, h.LastSeq, h.Epoch, len(got), len(want))
		}
		if l, known := c.mu.lives[at.as()]; known && h.Epoch < l.epoch && len(got) > 0 {
			return fmt.Errorf("worker %d: %d blocks of life %d, and it is in life %d", at.id, len(got), h.Epoch, l.epoch)
		}
		if known && h.State == kvfeed.Live {
			own[at.as()] = blocks
		}
	}
	var m prefix.Match
	pooled := map[kv.SeqHash]bool{}
	for _, p := range w.prompts {
		c.matchPrefix(&m, p.chain, nil)
		for _, o := range m.AppendOverlaps(nil) {
			held, trusted := own[o.Worker]
			n := 0
			for n < len(p.chain) && slices.Contains(held, prefix.Block{Seq: p.chain[n]}) {
				n++
			}
			if got := o.Blocks[kv.TierDevice]; trusted && got != n || !trusted && got != 0 {
				return fmt.Errorf("worker %d is matched with %d blocks, held are %d, live %t", o.Worker.ID, got, n, trusted)
			}
			for _, seq := range p.chain[:o.Depth()] {
				if slices.ContainsFunc(held, func(b prefix.Block) bool { return b.Seq == seq }) || pooled[seq] {
					continue
				}
				if !w.mayBePooled(c, seq) {
					return fmt.Errorf("block %x is matched for worker %d as pooled: %+v%s", seq, o.Worker.ID, c.mu.pools.AppendBlock(nil, seq), w.words(c, seq))
				}
				pooled[seq] = true
			}
		}
	}
	return nil
}

// mayBePooled reports whether the last event of any worker about the block, as far as the router of c
// knows, says that it is in the pool. For an epoch whose end the router has not received, and for one
// that it has forgotten, any event may be the last one.
func (w *world) mayBePooled(c *cacheIndex, seq kv.SeqHash) bool {
	for _, at := range w.workers {
		h, known := c.mu.tracker.HealthOf(at.as())
		for _, l := range w.told[at.as()] {
			switch {
			case !known || l.epoch != h.Epoch:
				for i := range l.events {
					if ev := &l.events[i]; ev.Kind == kv.Moved && ev.Move.To == kv.Pooled && slices.Contains(ev.Seqs, seq) {
						return true
					}
				}
			case h.State == kvfeed.Live && l.said(seq, h.LastSeq) == kv.Pooled:
				return true
			}
		}
	}
	return false
}

// words lists the events of workers about a block.
func (w *world) words(c *cacheIndex, seq kv.SeqHash) (all string) {
	for _, at := range w.workers {
		h, _ := c.mu.tracker.HealthOf(at.as())
		all += fmt.Sprintf("\n\tworker %d %v at event %d of life %d:", at.id, h.State, h.LastSeq, h.Epoch)
		for _, l := range w.told[at.as()] {
			for i := range l.events {
				ev := &l.events[i]
				switch {
				case ev.Kind == kv.Cleared:
					all += fmt.Sprintf(" %d.%d cleared", l.epoch, i+1)
				case ev.Kind == kv.Moved && (len(ev.Seqs) == 0 || slices.Contains(ev.Seqs, seq)):
					all += fmt.Sprintf(" %d.%d %v of %d", l.epoch, i+1, ev.Move.To, len(ev.Seqs))
				}
			}
		}
	}
	return all
}

func (w *world) life(of kv.Worker, epoch uint64) *story {
	for _, l := range w.told[of] {
		if l.epoch == epoch {
			return l
		}
	}
	return nil
}

func seqsOf(blocks []prefix.Block) (seqs []kv.SeqHash) {
	for _, b := range blocks {
		seqs = append(seqs, b.Seq)
	}
	return seqs
}

// checkHealed states what holds without faults: every router has exactly the cached blocks, finds what
// every worker can use, and knows all requests. If all is false it may know less of the pool than is
// there.
func (w *world) checkHealed(all bool) {
	w.t.Helper()
	w.checkNow()
	w.engines.Lock()
	defer w.engines.Unlock()
	for i, at := range w.routers {
		if err := w.healed(at, all); err != nil {
			w.t.Errorf("router %d: %v", i, err)
		}
	}
}

func (w *world) healed(at *chaosRouter, all bool) error {
	c := &at.router.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, wk := range w.workers {
		h, _ := c.mu.tracker.HealthOf(wk.as())
		var want []kv.SeqHash
		for _, b := range wk.engine.cache {
			want = append(want, b.seq)
		}
		slices.Sort(want)
		l := w.life(wk.as(), wk.epoch)
		if got := seqsOf(c.mu.index.AppendBlocks(nil, wk.as())); h.State != kvfeed.Live || h.LastSeq != uint64(len(l.events)) || !slices.Equal(got, want) {
			return fmt.Errorf("worker %d holds %d blocks at event %d of life %d; known are %d: %+v", wk.id, len(want), len(l.events), wk.epoch, len(got), h)
		}
	}
	if err := w.agreesOnPool(c, all); err != nil {
		return err
	}
	return w.agreesOnRequests(at)
}

// agreesOnPool compares the pool index of a router, and the matches that it allows, with the pool. The
// caller holds the locks.
func (w *world) agreesOnPool(c *cacheIndex, all bool) error {
	there := w.inPool()
	known := map[kv.SeqHash]bool{}
	for _, p := range w.prompts {
		for _, seq := range p.chain {
			for _, b := range c.mu.pools.AppendBlock(nil, seq) {
				known[seq] = known[seq] || b.State == kv.Pooled && !b.Doubt && !b.Parked
			}
			switch {
			case known[seq] && !there[seq]:
				return fmt.Errorf("block %x is not in the pool: %+v", seq, c.mu.pools.AppendBlock(nil, seq))
			case all && there[seq] && !known[seq]:
				return fmt.Errorf("block %x is in the pool: %+v", seq, c.mu.pools.AppendBlock(nil, seq))
			}
		}
	}
	if !all {
		return nil // it may also be unknown which workers can attach the pool
	}
	var m prefix.Match
	for _, p := range w.prompts {
		c.matchPrefix(&m, p.chain, &kv.MoEQuery{Layer: 1, Experts: []uint32{1}, Fallback: true})
		found := map[kv.Worker]kv.Overlap{}
		for _, o := range m.AppendOverlaps(nil) {
			found[o.Worker] = o
		}
		for _, wk := range w.workers {
			depth, own, labelled := 0, 0, 0
			for depth < len(p.chain) && (wk.engine.holds(p.chain[depth]) || known[p.chain[depth]]) {
				if l := labelOf(p.chain[depth]); wk.engine.holds(p.chain[depth]) && l.Has != 0 && l.Expert == 1 {
					labelled++
				}
				if own == depth && wk.engine.holds(p.chain[depth]) {
					own++
				}
				depth++
			}
			o := found[wk.as()]
			if o.Depth() != depth || o.Blocks[kv.TierDevice] != own || o.Labelled < labelled {
				return fmt.Errorf("worker %d has %d blocks of a prompt of %d, %d of them itself and %d labelled; found is %+v", wk.id, depth, len(p.chain), own, labelled, o)
			}
		}
	}
	return nil
}

// inPool returns the contents of the pool. The caller holds the engines' lock.
func (w *world) inPool() map[kv.SeqHash]bool {
	there := map[kv.SeqHash]bool{}
	member := w.pool.AddMember(kv.Worker{ID: 1000})
	defer member.Detach()
	for _, p := range w.prompts {
		for _, seq := range p.chain {
			there[seq] = member.Has(seq)
		}
	}
	return there
}

// agreesOnRequests compares the load that a router counts with the existing requests. The caller holds
// the engines' and the cache's lock.
func (w *world) agreesOnRequests(at *chaosRouter) error {
	want := map[kv.Worker]activeseq.Load{}
	own := map[kv.Worker]int{}
	for _, s := range w.active {
		l := want[s.worker]
		l.Requests++
		want[s.worker] = l
		if s.router == at {
			own[s.worker]++
		}
	}
	r := at.router
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mu.replica.Check(); err != nil {
		return err
	}
	p, _ := r.poolLocked("m")
	for _, wk := range w.workers {
		got := p.active.LoadOf(wk.as()).Requests
		if others := p.active.OthersShare(wk.as()).Requests; got != want[wk.as()].Requests || got-others != own[wk.as()] {
			return fmt.Errorf("worker %d: %d requests, %d of them of others; there are %d, and %d are its own", wk.id, got, others, want[wk.as()].Requests, own[wk.as()])
		}
	}
	return p.active.Check()
}

// loads returns the load that a router counts on each worker: in mode time without prompt tokens, whose progress a router
// counts from when it heard of them.
func (w *world) loads(at *chaosRouter) (all [worldWorkers]activeseq.Load) {
	r := at.router
	r.mu.Lock()
	defer r.mu.Unlock()
	p, _ := r.poolLocked("m")
	for i, wk := range w.workers {
		all[i] = p.active.LoadOf(wk.as())
		if w.mode == route.Time {
			all[i].PrefillTokens = 0
		}
	}
	return all
}
