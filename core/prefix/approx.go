package prefix

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// ApproxConfig bounds an Approx.
type ApproxConfig struct {
	// TTL is how long a block is believed to be cached after its last use. Time is
	// counted in ticks of a 64th of it, so it may be believed for one tick longer.
	TTL time.Duration
	// MaxBlocks is how many pairs of worker and block are believed in. Beyond it a fifth
	// is forgotten: those that would expire soonest, and of those that would expire in one
	// tick the deepest first, since a block is worth nothing without those before it.
	MaxBlocks int
	// Index bounds the index that the beliefs are in.
	Index Config
}

// EnsureDefaults fills in what is not set: 120 s, 1 Mi blocks.
func (c *ApproxConfig) EnsureDefaults() {
	if c.TTL == 0 {
		c.TTL = 120 * time.Second
	}
	if c.MaxBlocks == 0 {
		c.MaxBlocks = 1 << 20
	}
	c.Index.EnsureDefaults()
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *ApproxConfig) Validate() error {
	errs := []error{c.Index.Validate()}
	if c.TTL < time.Millisecond {
		errs = append(errs, fmt.Errorf("prefix: the ttl of what is predicted must be at least 1ms, not %v", c.TTL))
	}
	if c.MaxBlocks < 1 {
		errs = append(errs, fmt.Errorf("prefix: at least 1 predicted block must be possible, not %d", c.MaxBlocks))
	}
	return errors.Join(errs...)
}

// Approx predicts what workers have cached from what was sent to them: the blocks of a
// prompt are believed to be cached by the worker that was chosen for it, for a while. It
// needs no events. Alone it stands in for them; beside an index of events it knows of a
// prompt from the moment it was sent, before the worker has computed anything.
//
// It has one writer. Match may be called beside it, as that of [Index].
type Approx struct {
	cfg     ApproxConfig
	tick    time.Duration
	index   *Index
	workers []*beliefs // ascending by worker
	last    int64      // tick that is done
	live    int        // believed blocks, of all workers: those in the index
	kept    int        // blocks in their stretches
	counts  ApproxCounts

	soonest []expiring // scratch
	deepest []deep     // scratch
}

// ApproxCounts are totals since an Approx was made, in blocks.
type ApproxCounts struct {
	Inserted  uint64 // not believed in before
	Refreshed uint64 // used again
	Expired   uint64
	Pruned    uint64 // beyond ApproxConfig.MaxBlocks
	Refuted   uint64 // by what the worker reported
}

// ApproxStats describes an Approx at one moment.
type ApproxStats struct {
	Stats
	// Beliefs is the memory of when blocks expire, in bytes; it is part of Bytes.
	Beliefs int
	Totals  ApproxCounts
}

const ticksPerTTL = 64

// NewApprox returns an Approx that believes nothing.
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

// Index returns the index of what is believed now, to be read.
func (a *Approx) Index() *Index { return a.index }

// Match finds who is believed to hold how much of a prompt, as [Index.Match] does.
func (a *Approx) Match(m *Match, chain []kv.SeqHash, moe *kv.MoEQuery) { a.index.Match(m, chain, moe) }

// Insert notes that a prompt was sent to w, whose full blocks end the prefixes in chain. What
// was believed already is believed for the full time again. Time must not go backwards between
// calls.
func (a *Approx) Insert(now kv.Mono, w kv.Worker, chain []kv.SeqHash) {
	a.Expire(now)
	if len(chain) == 0 {
		return
	}
	b := a.worker(w)
	sure := b.kept == b.live // what is in stretches is believed
	from := b.touch(chain, a.dueAt(now))
	if !sure {
		from = 0
	}
	refused := a.index.counts.Refused
	a.store(w, chain, from)
	inserted := uint64(a.count(b))
	a.counts.Inserted += inserted
	a.counts.Refreshed += uint64(len(chain)) - inserted - (a.index.counts.Refused - refused)
	if a.live > a.cfg.MaxBlocks {
		a.prune(a.cfg.MaxBlocks - a.cfg.MaxBlocks/5)
	}
	a.sweep()
}

// store puts the blocks of a prompt from one on into the index.
func (a *Approx) store(w kv.Worker, chain []kv.SeqHash, from int) {
	if from == len(chain) {
		return
	}
	ev := kv.Event{Kind: kv.Stored, Start: uint32(from)}
	if from > 0 {
		ev.Parent = chain[from-1]
	}
	a.index.storeNamed(a.index.number(w), ev, chain[from:])
	a.index.settle()
}

// count takes over how much of b is in the index and in stretches, and returns how much more of it is
// in the index than was.
func (a *Approx) count(b *beliefs) (more int) {
	held := 0
	if n, known := a.index.numbers[b.worker]; known {
		held = a.index.workers[n].held
	}
	more = held - b.live
	a.live += more
	a.kept += b.kept - b.counted
	b.live, b.counted = held, b.kept
	return more
}

// Report notes what w said of a prompt that was sent to it: that it had held leading blocks
// of it cached when it began. Predicted is how many it was believed to hold when it was
// chosen, and not more than a worker can say: the last token of a prompt is always computed.
//
// A worker that had less evicts what it was sent sooner than is believed here, so the rest of
// the prompt is not believed any more, though it was computed again; one that had as much, or
// more, is believed to hold the prompt for the full time from now. A worker that has never
// said that it had anything cached may be one that does not say, and is not heeded.
func (a *Approx) Report(now kv.Mono, w kv.Worker, chain []kv.SeqHash, predicted, held int) {
	at, known := a.find(w)
	if !known {
		return // it is gone, or it took so long
	}
	b := a.workers[at]
	b.tells = b.tells || held > 0
	switch {
	case held >= predicted:
		a.Insert(now, w, chain)
	case b.tells:
		a.refute(b, chain, held)
	}
}

// Retract ends the belief in what an event of w says is not, or no longer, on its device.
func (a *Approx) Retract(w kv.Worker, ev *kv.Event) {
	switch {
	case ev.Kind == kv.Cleared:
		a.Drop(w)
	case ev.Kind == kv.Removed && ev.Tier == kv.TierDevice:
		if at, known := a.find(w); known {
			a.refute(a.workers[at], ev.Seqs, 0)
		}
	}
}

// refute ends the belief in the blocks of a prompt after the first held ones. Where others of a stretch
// may be believed in, they stay in it until it expires.
func (a *Approx) refute(b *beliefs, chain []kv.SeqHash, held int) {
	if held >= len(chain) {
		return
	}
	chain = chain[max(held, 0):]
	a.remove(b.worker, chain)
	b.refuted(chain)
	a.counts.Refuted += uint64(-a.count(b))
	a.sweep()
}

// Drop forgets w and all that it is believed to hold. It reports whether w was known.
func (a *Approx) Drop(w kv.Worker) bool {
	at, known := a.find(w)
	if known {
		b := a.workers[at]
		a.live -= b.live
		a.kept -= b.counted
		a.workers = slices.Delete(a.workers, at, at+1)
	}
	a.index.Drop(w)
	return known
}

// Expire forgets what has not been used for its time. Insert does it too; whoever has
// nothing to insert calls it now and then.
func (a *Approx) Expire(now kv.Mono) {
	t := a.tickAt(now)
	if len(a.workers) == 0 {
		a.last = t
		return
	}
	if t <= a.last {
		return
	}
	first := max(a.last+1, t-wheelSize+1) // each list once is enough
	for _, b := range a.workers {
		for tick := first; tick <= t; tick++ {
			a.turn(b, tick, t)
		}
		a.counts.Expired += uint64(-a.count(b))
		b.shrink()
	}
	a.last = t
	a.forgetEmpty()
}

// turn takes the list of a tick apart, when it is now: what has expired is forgotten.
func (a *Approx) turn(b *beliefs, tick, now int64) {
	for at := b.take(tick); at != none; {
		r := &b.stretches[at]
		next := r.next
		if r.due <= now {
			a.remove(b.worker, r.seqs)
			b.release(at)
		} else {
			b.link(at)
		}
		at = next
	}
}

// remove takes blocks that w is believed no longer to hold out of the index.
func (a *Approx) remove(w kv.Worker, seqs []kv.SeqHash) {
	if len(seqs) > 0 {
		a.index.Apply(w, kv.Event{Kind: kv.Removed, Seqs: seqs})
	}
}

// expiring is a stretch that expires with a tick and is in no list. Its first left blocks stay.
type expiring struct {
	of   *beliefs
	at   uint32
	left int
}

// deep is a believed block of such a stretch, for ordering.
type deep struct {
	seq      kv.SeqHash
	worker   kv.Worker
	position uint32
	stretch  int // in Approx.soonest
}

// prune forgets, soonest to expire first, until target blocks are left.
func (a *Approx) prune(target int) {
	for t := a.last + 1; a.live > target && t <= a.last+wheelSize; t++ {
		a.gather(t)
		a.forget(min(a.live-target, len(a.deepest)))
	}
	for _, b := range a.workers {
		b.shrink()
	}
	a.forgetEmpty()
	clear(a.soonest)
	a.soonest = a.soonest[:0]
}

// gather takes the stretches that expire with a tick out of their lists, and the believed blocks of
// them, the deepest first.
func (a *Approx) gather(tick int64) {
	a.soonest, a.deepest = a.soonest[:0], a.deepest[:0]
	for _, b := range a.workers {
		for at := b.take(tick); at != none; {
			r := &b.stretches[at]
			next := r.next
			if r.due != tick {
				b.link(at)
				at = next
				continue
			}
			for i, seq := range r.seqs {
				if a.believes(b.worker, seq) {
					a.deepest = append(a.deepest, deep{seq, b.worker, r.start + uint32(i), len(a.soonest)})
				}
			}
			a.soonest = append(a.soonest, expiring{of: b, at: at})
			at = next
		}
	}
	slices.SortFunc(a.deepest, func(p, q deep) int {
		return cmp.Or(cmp.Compare(q.position, p.position), p.worker.Compare(q.worker), cmp.Compare(p.seq, q.seq))
	})
}

// believes reports whether a block is in the index.
func (a *Approx) believes(w kv.Worker, seq kv.SeqHash) bool {
	n, known := a.index.numbers[w]
	if !known {
		return false
	}
	at, known := a.index.locate(seq)
	return known && a.index.holds(n, at)
}

// forget forgets the n deepest blocks of what was gathered, and puts what is left of the stretches
// back into their lists. All that is deeper goes with them, believed or not: so no stretch is left
// without what is before it.
func (a *Approx) forget(n int) {
	a.leave(n)
	for _, e := range a.soonest {
		r := &e.of.stretches[e.at]
		if e.left < len(r.seqs) {
			a.remove(e.of.worker, r.seqs[e.left:])
		}
		if e.left == 0 {
			e.of.release(e.at)
		} else {
			e.of.cut(e.at, e.left)
			e.of.link(e.at)
		}
	}
	for _, b := range a.workers {
		a.counts.Pruned += uint64(-a.count(b))
	}
}

// leave says how much is left of each stretch that was gathered, without the n deepest blocks.
func (a *Approx) leave(n int) {
	if n == len(a.deepest) {
		return // nothing
	}
	depth := int(a.deepest[n-1].position)
	for i := range a.soonest {
		e := &a.soonest[i]
		r := &e.of.stretches[e.at]
		e.left = min(len(r.seqs), max(0, depth+1-int(r.start)))
	}
	for _, d := range a.deepest[:n] {
		if int(d.position) == depth {
			a.soonest[d.stretch].left--
		}
	}
}

// sweep forgets the blocks of stretches that are not believed in when they are many.
func (a *Approx) sweep() {
	if a.kept-a.live <= max(a.cfg.MaxBlocks/4, ticksPerTTL) {
		return
	}
	for _, b := range a.workers {
		b.sweep(func(seq kv.SeqHash) bool { return a.believes(b.worker, seq) })
		a.count(b)
	}
	a.forgetEmpty()
}

// forgetEmpty lets workers go of whom nothing is believed.
func (a *Approx) forgetEmpty() {
	a.workers = slices.DeleteFunc(a.workers, func(b *beliefs) bool {
		if b.used == 0 {
			a.index.Drop(b.worker)
		}
		return b.used == 0
	})
}

// Stats returns the sizes and totals.
func (a *Approx) Stats() ApproxStats {
	st := ApproxStats{Stats: a.index.Stats(), Totals: a.counts}
	for _, b := range a.workers {
		st.Beliefs += b.bytes()
	}
	st.Bytes += st.Beliefs
	return st
}

// tickAt returns the tick that now is in, dueAt the one with whose end a block expires that
// is used now.
func (a *Approx) tickAt(now kv.Mono) int64 { return int64(now) / int64(a.tick) }
func (a *Approx) dueAt(now kv.Mono) int64  { return a.tickAt(now.Add(a.cfg.TTL)) + 1 }

func (a *Approx) worker(w kv.Worker) *beliefs {
	at, known := a.find(w)
	if !known {
		a.workers = slices.Insert(a.workers, at, newBeliefs(w, factorOf(a.cfg.Index.Seed)))
	}
	return a.workers[at]
}

func (a *Approx) find(w kv.Worker) (at int, known bool) {
	return slices.BinarySearchFunc(a.workers, w, func(b *beliefs, w kv.Worker) int { return b.worker.Compare(w) })
}

// Check reports the first violated invariant: every worker's beliefs are sound and counted, and
// nothing is in the index that is not among them.
func (a *Approx) Check() error {
	live, kept := 0, 0
	for i, b := range a.workers {
		if i > 0 && a.workers[i-1].worker.Compare(b.worker) >= 0 {
			return fmt.Errorf("prefix: check: worker %v is out of order", b.worker)
		}
		if err := b.check(a.last, a.index.AppendBlocks(nil, b.worker)); err != nil {
			return err
		}
		live += b.live
		kept += b.kept
	}
	if live != a.live || kept != a.kept || live > a.cfg.MaxBlocks {
		return fmt.Errorf("prefix: check: %d blocks are believed and %d are in stretches, %d and %d are counted, %d allowed", live, kept, a.live, a.kept, a.cfg.MaxBlocks)
	}
	if n := len(a.index.AppendWorkers(nil)); n > len(a.workers) {
		return fmt.Errorf("prefix: check: %d workers in the index, %d believed to hold anything", n, len(a.workers))
	}
	return a.index.Check()
}
