package prefix

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// ApproxConfig bounds an Approx.
type ApproxConfig struct {
	// TTL is how long a block is predicted to be cached after its last use. Time is counted in ticks of a
	// 64th of it, so the prediction may last one tick longer.
	TTL time.Duration
	// MaxBlocks is the maximum number of predicted pairs of worker and block. Beyond it a fifth is evicted:
	// the soonest to expire, and of equal expiry the deepest first, because a block is useless without the
	// blocks before it.
	MaxBlocks int
	// Index bounds the index of predicted blocks.
	Index Config
}

// EnsureDefaults fills in the fields which are not set: 120 s, 1 Mi blocks.
func (c *ApproxConfig) EnsureDefaults() {
	c.TTL = cmp.Or(c.TTL, 120*time.Second)
	c.MaxBlocks = cmp.Or(c.MaxBlocks, 1<<20)
	c.Index.EnsureDefaults()
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *ApproxConfig) Validate() error {
	errs := []error{c.Index.Validate()}
	if c.TTL < time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "prefix: the ttl of what is predicted must be at least 1ms, not %v", c.TTL))
	}
	if c.MaxBlocks < 1 {
		errs = append(errs, fault.New(fault.Invalid, "prefix: at least 1 predicted block must be possible, not %d", c.MaxBlocks))
	}
	return errors.Join(errs...)
}

// Approx predicts the blocks which workers have cached from the prompts which were sent to them: the worker
// chosen for a prompt is predicted to cache its blocks for the TTL. It needs no events. Alone it replaces
// them; together with an index of events it covers a prompt from the moment it was sent, before the worker
// has computed anything.
//
// It has one writer. Match may run concurrently, as for [Index].
type Approx struct {
	cfg       ApproxConfig
	tick      time.Duration
	index     *Index
	workers   []*workerEntries // ascending by worker
	lastTick  int64            // latest tick which was processed
	indexed   int              // predicted blocks of all workers: those in the index
	runBlocks int              // blocks in the runs of all workers
	counts    ApproxCounts

	soonest []expiringRun // scratch
	deepest []deepBlock   // scratch
}

// ApproxCounts are totals since an Approx was made, in blocks.
type ApproxCounts struct {
	Inserted  uint64 // newly predicted
	Refreshed uint64 // used again
	Expired   uint64
	Pruned    uint64 // evicted because of ApproxConfig.MaxBlocks
	Refuted   uint64 // contradicted by the worker
}

// ApproxStats describes an Approx at one moment.
type ApproxStats struct {
	Stats
	// EntryBytes is the memory of the expiry entries, in bytes; it is part of Bytes.
	EntryBytes int
	Totals     ApproxCounts
}

const ticksPerTTL = 64

// NewApprox returns an Approx without predictions.
func NewApprox(cfg ApproxConfig) (*Approx, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	index, err := New(cfg.Index)
	if err != nil {
		return nil, err
	}
	return &Approx{cfg: cfg, tick: cfg.TTL / ticksPerTTL, index: index}, nil
}

// Index returns the index of the predicted blocks, for reading.
func (a *Approx) Index() *Index { return a.index }

// Match finds which workers are predicted to hold how much of a prompt, as [Index.Match] does.
func (a *Approx) Match(m *Match, chain []kv.SeqHash, moe *kv.MoEQuery) { a.index.Match(m, chain, moe) }

// RecordSent records that a prompt was sent to w; chain are the prefixes of its full blocks. Predicted blocks
// restart their TTL. Time must not go backwards between calls.
func (a *Approx) RecordSent(now kv.Mono, w kv.Worker, chain []kv.SeqHash) {
	a.ExpireBlocks(now)
	if len(chain) == 0 {
		return
	}
	b := a.entriesOf(w)
	sure := b.runBlocks == b.indexed // all blocks in runs are predicted
	from := b.touchChain(chain, a.dueAt(now))
	if !sure {
		from = 0
	}
	refused := a.index.counts.Refused
	a.storeBlocks(w, chain, from)
	inserted := uint64(a.updateCounts(b))
	a.counts.Inserted += inserted
	a.counts.Refreshed += uint64(len(chain)) - inserted - (a.index.counts.Refused - refused)
	if a.indexed > a.cfg.MaxBlocks {
		a.pruneTo(a.cfg.MaxBlocks - a.cfg.MaxBlocks/5)
	}
	a.sweepRuns()
}

// storeBlocks adds the blocks of a prompt to the index, from index from on.
func (a *Approx) storeBlocks(w kv.Worker, chain []kv.SeqHash, from int) {
	if from == len(chain) {
		return
	}
	ev := kv.Event{Kind: kv.Stored, Start: uint32(from)}
	if from > 0 {
		ev.Parent = chain[from-1]
	}
	a.index.storeHashed(a.index.numberOf(w), ev, chain[from:])
	a.index.finishChange()
}

// updateCounts updates the counts for b from the index and the runs, and returns the increase of its blocks
// in the index.
func (a *Approx) updateCounts(b *workerEntries) (more int) {
	held := 0
	if n, known := a.index.numbers[b.worker]; known {
		held = a.index.workers[n].held
	}
	more = held - b.indexed
	a.indexed += more
	a.runBlocks += b.runBlocks - b.counted
	b.indexed, b.counted = held, b.runBlocks
	return more
}

// RecordReport records that w reported how many leading blocks of a prompt sent to it were cached when it
// started. predicted is how many were predicted when w was chosen, at most what a worker can report: the last
// token of a prompt is always computed.
//
// If the worker had fewer, it evicts earlier than predicted, so the rest of the prompt is no longer
// predicted, although it was computed again. If it had as many or more, the prompt is predicted for the full
// TTL from now. A worker which has never reported cached blocks may not support such reports, and is ignored.
func (a *Approx) RecordReport(now kv.Mono, w kv.Worker, chain []kv.SeqHash, predicted, held int) {
	at, known := a.findWorker(w)
	if !known {
		return // it was removed, or its entries expired
	}
	b := a.workers[at]
	b.reportsCached = b.reportsCached || held > 0
	switch {
	case held >= predicted:
		a.RecordSent(now, w, chain)
	case b.reportsCached:
		a.refuteBlocks(b, chain, held)
	}
}

// RetractEvent removes the prediction of blocks which an event of w says are not, or no longer, on its
// device.
func (a *Approx) RetractEvent(w kv.Worker, ev *kv.Event) {
	switch {
	case ev.Kind == kv.Cleared:
		a.DropWorker(w)
	case ev.Kind == kv.Removed && ev.Tier == kv.TierDevice:
		if at, known := a.findWorker(w); known {
			a.refuteBlocks(a.workers[at], ev.Seqs, 0)
		}
	}
}

// refuteBlocks removes the prediction of the blocks of a prompt after the first held ones. If a run also has
// other blocks which may be predicted, the refuted ones stay in it until it expires.
func (a *Approx) refuteBlocks(b *workerEntries, chain []kv.SeqHash, held int) {
	if held >= len(chain) {
		return
	}
	chain = chain[max(held, 0):]
	a.removeBlocks(b.worker, chain)
	b.releaseRefuted(chain)
	a.counts.Refuted += uint64(-a.updateCounts(b))
	a.sweepRuns()
}

// DropWorker removes w and its predictions. It reports whether w was known.
func (a *Approx) DropWorker(w kv.Worker) bool {
	at, known := a.findWorker(w)
	if known {
		b := a.workers[at]
		a.indexed -= b.indexed
		a.runBlocks -= b.counted
		a.workers = slices.Delete(a.workers, at, at+1)
	}
	a.index.DropWorker(w)
	return known
}

// ExpireBlocks removes the blocks which have not been used for the TTL. RecordSent also does it; a caller
// with nothing to record calls it from time to time.
func (a *Approx) ExpireBlocks(now kv.Mono) {
	t := a.tickAt(now)
	if len(a.workers) == 0 {
		a.lastTick = t
		return
	}
	if t <= a.lastTick {
		return
	}
	first := max(a.lastTick+1, t-wheelSize+1) // once per list is enough
	for _, b := range a.workers {
		for tick := first; tick <= t; tick++ {
			a.expireTick(b, tick, t)
		}
		a.counts.Expired += uint64(-a.updateCounts(b))
		b.shrinkMemory()
	}
	a.lastTick = t
	a.dropEmptyWorkers()
}

// expireTick removes the expired runs from the list of a tick, and relinks the others; now is the current
// tick.
func (a *Approx) expireTick(b *workerEntries, tick, now int64) {
	for at := b.takeList(tick); at != noRun; {
		r := &b.runs[at]
		next := r.next
		if r.due <= now {
			a.removeBlocks(b.worker, r.seqs)
			b.releaseRun(at)
		} else {
			b.linkRun(at)
		}
		at = next
	}
}

// removeBlocks removes blocks from the index which w is no longer predicted to hold.
func (a *Approx) removeBlocks(w kv.Worker, seqs []kv.SeqHash) {
	if len(seqs) > 0 {
		a.index.ApplyEvent(w, kv.Event{Kind: kv.Removed, Seqs: seqs})
	}
}

// expiringRun is a run which expires with a tick and is in no list. Its first left blocks stay.
type expiringRun struct {
	worker *workerEntries
	run    uint32
	left   int
}

// deepBlock is a predicted block of such a run, for sorting by depth.
type deepBlock struct {
	seq      kv.SeqHash
	worker   kv.Worker
	position uint32
	run      int // index in Approx.soonest
}

// pruneTo evicts blocks, soonest to expire first, until target blocks are left.
func (a *Approx) pruneTo(target int) {
	for t := a.lastTick + 1; a.indexed > target && t <= a.lastTick+wheelSize; t++ {
		a.gatherExpiring(t)
		a.evictDeepest(min(a.indexed-target, len(a.deepest)))
	}
	for _, b := range a.workers {
		b.shrinkMemory()
	}
	a.dropEmptyWorkers()
	clear(a.soonest)
	a.soonest = a.soonest[:0]
}

// gatherExpiring takes the runs which expire with a tick out of their lists, and collects their predicted
// blocks, the deepest first.
func (a *Approx) gatherExpiring(tick int64) {
	a.soonest, a.deepest = a.soonest[:0], a.deepest[:0]
	for _, b := range a.workers {
		for at := b.takeList(tick); at != noRun; {
			r := &b.runs[at]
			next := r.next
			if r.due != tick {
				b.linkRun(at)
				at = next
				continue
			}
			for i, seq := range r.seqs {
				if a.PredictsBlock(b.worker, seq) {
					a.deepest = append(a.deepest, deepBlock{seq, b.worker, r.start + uint32(i), len(a.soonest)})
				}
			}
			a.soonest = append(a.soonest, expiringRun{worker: b, run: at})
			at = next
		}
	}
	slices.SortFunc(a.deepest, func(p, q deepBlock) int {
		return cmp.Or(cmp.Compare(q.position, p.position), p.worker.Compare(q.worker), cmp.Compare(p.seq, q.seq))
	})
}

// PredictsBlock reports whether w is predicted to hold a block.
func (a *Approx) PredictsBlock(w kv.Worker, seq kv.SeqHash) bool {
	n, known := a.index.numbers[w]
	if !known {
		return false
	}
	at, known := a.index.locateBlock(seq)
	return known && a.index.holdsBlock(n, at)
}

// evictDeepest evicts the n deepest gathered blocks, and puts what is left of the runs back into their lists.
// All deeper blocks are evicted too, predicted or not, so that no run is left without the blocks before it.
func (a *Approx) evictDeepest(n int) {
	a.setRemaining(n)
	for _, e := range a.soonest {
		r := &e.worker.runs[e.run]
		if e.left < len(r.seqs) {
			a.removeBlocks(e.worker.worker, r.seqs[e.left:])
		}
		if e.left == 0 {
			e.worker.releaseRun(e.run)
		} else {
			e.worker.cutRun(e.run, e.left)
			e.worker.linkRun(e.run)
		}
	}
	for _, b := range a.workers {
		a.counts.Pruned += uint64(-a.updateCounts(b))
	}
}

// setRemaining sets how many blocks of each gathered run stay without the n deepest blocks.
func (a *Approx) setRemaining(n int) {
	if n == len(a.deepest) {
		return // no block stays
	}
	depth := int(a.deepest[n-1].position)
	for i := range a.soonest {
		e := &a.soonest[i]
		r := &e.worker.runs[e.run]
		e.left = min(len(r.seqs), max(0, depth+1-int(r.start)))
	}
	for _, d := range a.deepest[:n] {
		if int(d.position) == depth {
			a.soonest[d.run].left--
		}
	}
}

// sweepRuns removes the blocks which are not predicted from the runs when there are many of them.
func (a *Approx) sweepRuns() {
	if a.runBlocks-a.indexed <= max(a.cfg.MaxBlocks/4, ticksPerTTL) {
		return
	}
	for _, b := range a.workers {
		b.sweepBlocks(func(seq kv.SeqHash) bool { return a.PredictsBlock(b.worker, seq) })
		a.updateCounts(b)
	}
	a.dropEmptyWorkers()
}

// dropEmptyWorkers removes workers without runs.
func (a *Approx) dropEmptyWorkers() {
	a.workers = slices.DeleteFunc(a.workers, func(b *workerEntries) bool {
		if b.used == 0 {
			a.index.DropWorker(b.worker)
		}
		return b.used == 0
	})
}

// Stats returns the sizes and totals.
func (a *Approx) Stats() ApproxStats {
	st := ApproxStats{Stats: a.index.Stats(), Totals: a.counts}
	for _, b := range a.workers {
		st.EntryBytes += b.memoryBytes()
	}
	st.Bytes += st.EntryBytes
	return st
}

// tickAt returns the tick of now; dueAt returns the tick at whose end a block used now expires.
func (a *Approx) tickAt(now kv.Mono) int64 { return int64(now) / int64(a.tick) }
func (a *Approx) dueAt(now kv.Mono) int64  { return a.tickAt(now.Add(a.cfg.TTL)) + 1 }

func (a *Approx) entriesOf(w kv.Worker) *workerEntries {
	at, known := a.findWorker(w)
	if !known {
		a.workers = slices.Insert(a.workers, at, newWorkerEntries(w, factorOf(a.cfg.Index.Seed)))
	}
	return a.workers[at]
}

func (a *Approx) findWorker(w kv.Worker) (at int, known bool) {
	return slices.BinarySearchFunc(a.workers, w, func(b *workerEntries, w kv.Worker) int { return b.worker.Compare(w) })
}

// Check reports the first violated invariant: every worker's entries are consistent and counted, and the
// index has no block which is not among them.
func (a *Approx) Check() error {
	live, kept := 0, 0
	for i, b := range a.workers {
		if i > 0 && a.workers[i-1].worker.Compare(b.worker) >= 0 {
			return fmt.Errorf("prefix: check: worker %v is out of order", b.worker)
		}
		if err := b.checkRuns(a.lastTick, a.index.AppendBlocks(nil, b.worker)); err != nil {
			return err
		}
		live += b.indexed
		kept += b.runBlocks
	}
	if live != a.indexed || kept != a.runBlocks || live > a.cfg.MaxBlocks {
		return fmt.Errorf("prefix: check: %d blocks are believed and %d are in stretches, %d and %d are counted, %d allowed", live, kept, a.indexed, a.runBlocks, a.cfg.MaxBlocks)
	}
	if n := len(a.index.AppendWorkers(nil)); n > len(a.workers) {
		return fmt.Errorf("prefix: check: %d workers in the index, %d believed to hold anything", n, len(a.workers))
	}
	return a.index.Check()
}

// AppendLarger appends to dst, ordered by worker, the combination of known and predicted, both ordered by
// worker: for each worker and tier, the longer of the runs over the tier and all faster ones. Predictions are
// for the device.
func AppendLarger(dst, known, predicted []kv.Overlap) []kv.Overlap {
	for len(known) > 0 && len(predicted) > 0 {
		k, p := &known[0], &predicted[0]
		switch k.Worker.Compare(p.Worker) {
		case -1:
			dst, known = append(dst, *k), known[1:]
		case 1:
			dst, predicted = append(dst, *p), predicted[1:]
		default:
			dst, known, predicted = append(dst, largerOverlap(*k, *p)), known[1:], predicted[1:]
		}
	}
	return append(append(dst, known...), predicted...)
}

func largerOverlap(k, p kv.Overlap) kv.Overlap {
	reachedK, reachedP, reached := 0, 0, 0
	out := k
	for t := range kv.Tiers {
		reachedK += k.Blocks[t]
		reachedP += p.Blocks[t]
		out.Blocks[t] = max(reachedK, reachedP) - reached
		reached += out.Blocks[t]
	}
	return out
}
