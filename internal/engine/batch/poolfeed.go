package batch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/pool"
)

// maxMoves is how many changes of the pool wait to be announced. The copier waits while there are as many.
const maxMoves = 1024

// listChunk is how many entries of the pool are listed before others use it.
const listChunk = 256

// poolFeed announces in the events of the engine's cache what is in the pool.
//
// The copier announces what it does, in order. A description of the cache needs a list of the pool, which is made beside
// the loop. Until it is there the loop holds back the description, and what the copier announces, so that it follows the
// list. Owners which live announce the blocks of dead workers.
//
// Another worker may evict a listed block, and announce that, before the list is announced. So the pool is listed once
// more after poolPatience, and blocks which are gone are announced as evicted. If the pool cannot be listed, it is tried
// again as often, and the blocks are announced then.
type poolFeed struct {
	id      kv.PoolID
	worker  kv.Worker // of this engine
	wake    func()    // makes the loop report
	moves   chan kv.Event
	listers sync.WaitGroup

	mu struct {
		sync.Mutex
		owners  []kv.Worker // nil: not known yet
		changed bool        // owners are not announced
		adopt   bool        // blocks of dead owners are to be announced
		missed  bool        // a description went out without the blocks
		due     bool        // the pool is to be listed without a description, too
		armed   bool        // due is set later
		lost    bool        // the pool does not come back
		listing bool
		stale   bool      // the list in progress is older than the death of an owner
		list    *poolList // nil without one
		// reported are blocks which were announced from a list, or after one, and not looked for since.
		reported []kv.SeqHash
	}
}

// poolList is what of a pool at one time is to be announced. The zero value is of a pool which cannot be used.
type poolList struct {
	usable   bool
	orphans  []kv.Event   // that blocks of workers which are no owners any more are in the pool
	own      []kv.Event   // that blocks of this worker are
	reported []kv.SeqHash // the blocks of both
	gone     []kv.SeqHash // blocks which were reported before, and are not there
}

// PoolOwnersChanged tells an engine which workers are owners of its pool, itself among them, and which have died: it
// announces that they can attach the pool, and the blocks of the dead. It may be called at any time after UsePool, and
// keeps owners.
func (e *Engine) PoolOwnersChanged(owners, dead []kv.Worker) {
	f := &e.pool.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.owners, f.mu.changed, f.mu.lost = owners, true, false
	if len(dead) > 0 { // a list which is there has them as owners
		f.mu.adopt, f.mu.due = true, true
		f.mu.stale, f.mu.list = f.mu.listing, nil
	}
	f.wake()
}

// PoolLost tells an engine that its pool cannot be used any more: it announces that it cannot attach the pool, and that
// none of its blocks are there.
func (e *Engine) PoolLost() {
	f := &e.pool.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.owners = slices.DeleteFunc(slices.Clone(f.mu.owners), func(w kv.Worker) bool { return w == f.worker })
	f.mu.changed, f.mu.lost = true, true
	f.mu.stale, f.mu.list = f.mu.listing, nil // a list which is there has blocks
	f.wake()
}

// announceMove announces a change of blocks in the pool, each with its label, unless ctx ends.
func (f *poolFeed) announceMove(ctx context.Context, to kv.PoolState, label kv.MoELabel, seqs ...kv.SeqHash) {
	if len(seqs) == 0 {
		return
	}
	ev := f.move(to, seqs)
	if label.Has != 0 {
		ev.Labels = slices.Repeat([]kv.MoELabel{label}, len(seqs))
	}
	select {
	case f.moves <- ev:
		f.wake()
	case <-ctx.Done():
	}
}

func (f *poolFeed) move(to kv.PoolState, seqs []kv.SeqHash) kv.Event {
	return kv.Event{Kind: kv.Moved, Seqs: seqs, Move: kv.PoolMove{To: to, Pool: f.id, HasPool: true}}
}

// appendMoves appends to events what is to be announced. If a description of the cache is wanted, it returns what follows
// that one, and whether it is known already: otherwise the loop is woken later. s may be nil.
func (s *poolCopier) appendMoves(events []kv.Event, describe bool) (all, contents []kv.Event, known bool) {
	if s == nil {
		return events, nil, true
	}
	f := &s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.changed {
		f.mu.changed = false
		to := kv.Pooled
		if f.mu.lost {
			to = kv.LocalGPU
		}
		events = append(events, f.moveWithOwners(to))
	}
	if (describe || f.mu.due) && f.mu.list == nil && !f.mu.listing {
		f.mu.listing, f.mu.due = true, false
		f.listers.Go(s.listPool)
	}
	if f.mu.listing {
		return events, nil, false
	}
	if list := f.mu.list; list != nil {
		f.mu.list = nil
		events = f.appendList(events, list, describe)
		if describe {
			f.wake() // what was held back follows the description
			return events, f.describe(list), true
		}
	}
	for range len(f.moves) {
		ev := <-f.moves
		if f.mu.lost && (ev.Move.To == kv.InTransit || ev.Move.To == kv.Pooled) {
			continue // it was withdrawn before
		}
		if f.mu.armed && ev.Move.To == kv.Pooled { // it may have been held back
			f.mu.reported = append(f.mu.reported, ev.Seqs...)
		}
		events = append(events, ev)
	}
	return events, nil, true
}

// appendList appends what a list says, for feeds which were described before, and has the pool listed again
// if that is needed.
func (f *poolFeed) appendList(dst []kv.Event, list *poolList, describe bool) []kv.Event {
	if !list.usable {
		f.mu.missed = f.mu.missed || describe
		f.listLater()
		return dst
	}
	if len(list.gone) > 0 {
		dst = append(dst, f.move(kv.Evicted, list.gone))
	}
	if f.mu.adopt || f.mu.missed {
		dst = append(dst, list.orphans...)
	}
	if f.mu.missed {
		dst = append(dst, list.own...)
	}
	f.mu.reported = nil
	if describe || f.mu.adopt || f.mu.missed {
		f.mu.reported = list.reported
		f.listLater()
	}
	f.mu.adopt, f.mu.missed = false, false
	return dst
}

// listLater has the pool listed after poolPatience, unless it is lost.
func (f *poolFeed) listLater() {
	if f.mu.armed || f.mu.lost {
		return
	}
	f.mu.armed = true
	time.AfterFunc(poolPatience, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.armed, f.mu.due = false, !f.mu.lost
		f.wake()
	})
}

// listPool lists the pool for the loop.
func (s *poolCopier) listPool() {
	f := &s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	for again := true; again; again = f.mu.stale {
		f.mu.stale = false
		reported := f.mu.reported
		f.mu.Unlock()
		var progress atomic.Int64
		lists := make(chan *poolList, 1)
		list := &poolList{}
		if s.runBeside(&progress, func() { lists <- s.makeList(&progress, reported) }) {
			list = <-lists
		}
		f.mu.Lock()
		f.mu.list = list
	}
	f.mu.listing = false
	f.wake()
}

// makeList lists the pool in parts, and counts them. It looks for blocks which were reported before.
func (s *poolCopier) makeList(progress *atomic.Int64, reported []kv.SeqHash) *poolList {
	var blocks []pool.PooledBlock
	var owners []kv.Worker
	for from, more := 0, true; more; progress.Add(1) {
		if err := s.memory.Use(func(p *pool.View, _ kv.Mono) error {
			if !p.IsOwner() || s.ending.Load() {
				return pool.ErrEnded
			}
			blocks, from = p.AppendPooled(blocks, from, listChunk)
			more = from < p.Blocks()
			owners = p.AppendOwners(owners[:0])
			return nil
		}); err != nil {
			return &poolList{}
		}
	}
	slices.SortStableFunc(blocks, func(a, b pool.PooledBlock) int { return cmp.Compare(a.Index, b.Index) })
	list := &poolList{usable: true}
	isOrphan := func(b *pool.PooledBlock) bool { return !slices.Contains(owners, b.Mover) }
	list.orphans = s.feed.appendPooled(nil, blocks, isOrphan)
	list.own = s.feed.appendPooled(nil, blocks, func(b *pool.PooledBlock) bool { return b.Mover == s.feed.worker && !isOrphan(b) })
	there := make(map[kv.SeqHash]bool, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		there[b.Name] = true
		if b.Mover == s.feed.worker || isOrphan(b) {
			list.reported = append(list.reported, b.Name)
		}
	}
	for _, seq := range reported {
		if !there[seq] {
			list.gone = append(list.gone, seq)
		}
	}
	return list
}

// moveWithOwners returns a move of no blocks which says which workers can attach the pool.
func (f *poolFeed) moveWithOwners(to kv.PoolState) kv.Event {
	ev := f.move(to, nil)
	ev.Move.Access = slices.Clone(f.mu.owners)
	return ev
}

// describe returns what follows a description of the cache: nothing of what this worker had announced of the pool holds,
// and what is there now, of it and of workers which are no owners any more.
func (f *poolFeed) describe(list *poolList) []kv.Event {
	return slices.Concat([]kv.Event{f.moveWithOwners(kv.LocalGPU)}, list.orphans, list.own)
}

// appendPooled appends that blocks are in the pool. It first reports them as stored in the pool, after the blocks before
// them, and afterwards as removed, so that receivers learn their prefixes even if no worker's cache has them.
func (f *poolFeed) appendPooled(dst []kv.Event, blocks []pool.PooledBlock, isReported func(*pool.PooledBlock) bool) []kv.Event {
	wanted := map[kv.SeqHash]bool{} // reported blocks, and the blocks before them
	for i := range slices.Backward(blocks) {
		if b := &blocks[i]; wanted[b.Name] || isReported(b) {
			wanted[b.Name] = true
			if b.Index > 0 {
				wanted[b.Parent] = true
			}
		}
	}
	var stored, pooled, labelled []kv.SeqHash
	var labels []kv.MoELabel
	placed := map[kv.SeqHash]bool{} // they begin their sequence, or follow one which is placed
	for i := range blocks {
		b := &blocks[i]
		if !wanted[b.Name] {
			continue
		}
		if b.Index == 0 || placed[b.Parent] {
			placed[b.Name] = true
			stored = append(stored, b.Name)
			dst = append(dst, kv.Event{Kind: kv.Stored, Tier: kv.TierPool, Start: b.Index, Parent: b.Parent, Blocks: []kv.BlockHash{b.Hash}})
		}
		switch {
		case !isReported(b):
		case b.Label.Has != 0:
			labelled, labels = append(labelled, b.Name), append(labels, b.Label)
		default:
			pooled = append(pooled, b.Name)
		}
	}
	if len(labelled) > 0 {
		moved := f.move(kv.Pooled, labelled)
		moved.Labels = labels
		dst = append(dst, moved)
	}
	if len(pooled) > 0 { // an event with labels has one for each block
		dst = append(dst, f.move(kv.Pooled, pooled))
	}
	if len(stored) > 0 {
		dst = append(dst, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: stored})
	}
	return dst
}
