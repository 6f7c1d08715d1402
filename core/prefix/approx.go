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
	live    int        // believed blocks, of all workers
	doubted int        // places of those that are not believed any more, of all workers
	counts  ApproxCounts

	expired []kv.SeqHash // scratch
	soonest []expiring   // scratch
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

const (
	ticksPerTTL = 64
	// gone is when a block expired that was refuted.
	gone = -1 << 63
)

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

// Insert notes that a prompt was sent to w: its full blocks, the prefixes that they end in
// chain and their contents in blocks. What was believed already is believed for the full
// time again. It is an error if the two are not of one length. Time must not go backwards
// between calls.
func (a *Approx) Insert(now kv.Mono, w kv.Worker, chain []kv.SeqHash, blocks []kv.BlockHash) error {
	if len(chain) != len(blocks) {
		return fmt.Errorf("prefix: insert: %d prefixes and %d blocks", len(chain), len(blocks))
	}
	a.Expire(now)
	if len(chain) == 0 {
		return nil
	}
	b := a.worker(w)
	due := a.dueAt(now)
	from := 0 // of the run that is new
	for i, seq := range chain {
		switch b.touch(seq, uint32(i), due) {
		case inserted:
			a.live++
			a.counts.Inserted++
			continue
		case revived:
			a.live++
			a.doubted--
			a.counts.Inserted++
			continue
		}
		a.counts.Refreshed++
		a.store(w, chain, blocks, from, i)
		from = i + 1
	}
	a.store(w, chain, blocks, from, len(chain))
	if a.live > a.cfg.MaxBlocks {
		a.prune(a.cfg.MaxBlocks - a.cfg.MaxBlocks/5)
	}
	return nil
}

// store puts the blocks [from, to) of a prompt into the index.
func (a *Approx) store(w kv.Worker, chain []kv.SeqHash, blocks []kv.BlockHash, from, to int) {
	if from == to {
		return
	}
	ev := kv.Event{Kind: kv.Stored, Start: uint32(from), Blocks: blocks[from:to]}
	if from > 0 {
		ev.Parent = chain[from-1]
	}
	a.index.Apply(w, ev)
}

// Report notes what w said of a prompt that was sent to it: that it had held leading blocks
// of it cached when it began. Predicted is how many it was believed to hold when it was
// chosen, and not more than a worker can say: the last token of a prompt is always computed.
//
// A worker that had less evicts what it was sent sooner than is believed here, so the rest of
// the prompt is not believed any more, though it was computed again; one that had as much, or
// more, is believed to hold the prompt for the full time from now. A worker that has never
// said that it had anything cached may be one that does not say, and is not heeded.
func (a *Approx) Report(now kv.Mono, w kv.Worker, chain []kv.SeqHash, blocks []kv.BlockHash, predicted, held int) error {
	at, known := a.find(w)
	if !known {
		return nil // it is gone, or it took so long
	}
	b := a.workers[at]
	b.tells = b.tells || held > 0
	if held >= predicted {
		return a.Insert(now, w, chain, blocks)
	}
	if b.tells {
		a.refute(b, chain, held)
	}
	return nil
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

// refute ends the belief in the blocks of a prompt after the first held ones.
func (a *Approx) refute(b *beliefs, chain []kv.SeqHash, held int) {
	if held >= len(chain) {
		return
	}
	a.expired = a.expired[:0]
	for _, seq := range chain[max(held, 0):] {
		if b.doubt(seq) {
			a.expired = append(a.expired, seq)
		}
	}
	a.live -= len(a.expired)
	a.doubted += len(a.expired)
	a.counts.Refuted += uint64(len(a.expired))
	a.remove(b.worker, a.expired)
	if a.doubted > max(a.cfg.MaxBlocks/4, ticksPerTTL) {
		a.sweep()
	}
}

// Drop forgets w and all that it is believed to hold. It reports whether w was known.
func (a *Approx) Drop(w kv.Worker) bool {
	at, known := a.find(w)
	if known {
		b := a.workers[at]
		a.live -= b.live
		a.doubted -= b.used - b.live
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
		a.expired = a.expired[:0]
		doubted := 0
		for tick := first; tick <= t; tick++ {
			a.expired, doubted = b.turn(tick, t, a.expired, doubted)
		}
		a.live -= len(a.expired)
		a.doubted -= doubted
		a.counts.Expired += uint64(len(a.expired))
		a.remove(b.worker, a.expired)
		b.shrink()
	}
	a.last = t
	a.forgetEmpty()
}

// remove takes blocks that w is believed no longer to hold out of the index.
func (a *Approx) remove(w kv.Worker, seqs []kv.SeqHash) {
	if len(seqs) > 0 {
		a.index.Apply(w, kv.Event{Kind: kv.Removed, Seqs: seqs})
	}
}

// expiring is a believed block, for ordering.
type expiring struct {
	seq      kv.SeqHash
	of       *beliefs
	position uint32
	at       uint32
}

// prune forgets, soonest to expire first, until target blocks are left.
func (a *Approx) prune(target int) {
	for t := a.last + 1; a.live > target && t <= a.last+wheelSize; t++ {
		a.soonest = a.soonest[:0]
		for _, b := range a.workers {
			doubted := 0
			a.soonest, doubted = b.soonest(t, a.soonest, doubted)
			a.doubted -= doubted
		}
		slices.SortFunc(a.soonest, func(p, q expiring) int {
			return cmp.Or(cmp.Compare(q.position, p.position), p.of.worker.Compare(q.of.worker), cmp.Compare(p.seq, q.seq))
		})
		n := min(a.live-target, len(a.soonest))
		for _, p := range a.soonest[n:] {
			p.of.link(p.at)
		}
		a.forget(a.soonest[:n])
	}
	for _, b := range a.workers {
		b.shrink()
	}
	a.forgetEmpty()
}

// forget removes blocks that are in no list of their worker any more.
func (a *Approx) forget(places []expiring) {
	a.live -= len(places)
	a.counts.Pruned += uint64(len(places))
	for _, p := range places {
		p.of.live--
		p.of.release(p.at)
	}
	slices.SortFunc(places, func(p, q expiring) int {
		return cmp.Or(p.of.worker.Compare(q.of.worker), cmp.Compare(p.position, q.position), cmp.Compare(p.seq, q.seq))
	})
	for i := 0; i < len(places); {
		b := places[i].of
		a.expired = a.expired[:0]
		for ; i < len(places) && places[i].of == b; i++ {
			a.expired = append(a.expired, places[i].seq)
		}
		a.remove(b.worker, a.expired)
	}
}

// sweep gives the places back of all that is not believed any more.
func (a *Approx) sweep() {
	for _, b := range a.workers {
		b.rebuild()
	}
	a.doubted = 0
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

// Check reports the first violated invariant: every worker's beliefs are sound, are counted,
// and nothing is in the index that is not among them.
func (a *Approx) Check() error {
	live, doubted := 0, 0
	for i, b := range a.workers {
		if i > 0 && a.workers[i-1].worker.Compare(b.worker) >= 0 {
			return fmt.Errorf("prefix: check: worker %v is out of order", b.worker)
		}
		if err := b.check(a.last); err != nil {
			return err
		}
		for _, block := range a.index.AppendBlocks(nil, b.worker) {
			if at := b.lookup(block.Seq); at == none || b.marks[at].due == gone {
				return fmt.Errorf("prefix: check: worker %v has block %x in the index and is not believed to", b.worker, uint64(block.Seq))
			}
		}
		live += b.live
		doubted += b.used - b.live
	}
	if live != a.live || doubted != a.doubted || live > a.cfg.MaxBlocks {
		return fmt.Errorf("prefix: check: %d blocks are believed and %d doubted, %d and %d are counted, %d allowed", live, doubted, a.live, a.doubted, a.cfg.MaxBlocks)
	}
	if n := len(a.index.AppendWorkers(nil)); n > len(a.workers) {
		return fmt.Errorf("prefix: check: %d workers in the index, %d believed to hold anything", n, len(a.workers))
	}
	return a.index.Check()
}
