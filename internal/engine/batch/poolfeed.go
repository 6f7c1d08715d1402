package batch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

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
// list. The blocks of workers which are dead are announced by those which are owners.
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
		listing bool
		list    *poolList // nil without one
	}
}

// poolList is what was in a pool at one time. The zero value is of a pool which cannot be used.
type poolList struct {
	blocks []pool.PooledBlock
	owners []kv.Worker
}

// PoolOwnersChanged tells an engine which workers are owners of its pool, itself among them, and which have died: it
// announces that they can attach the pool, and the blocks of the dead. It may be called at any time after UsePool, and
// keeps owners.
func (e *Engine) PoolOwnersChanged(owners, dead []kv.Worker) {
	f := &e.pool.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.owners, f.mu.changed = owners, true
	f.mu.adopt = f.mu.adopt || len(dead) > 0
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
		ev := f.move(kv.Pooled, nil)
		ev.Move.Access = slices.Clone(f.mu.owners)
		events = append(events, ev)
	}
	if (describe || f.mu.adopt) && f.mu.list == nil && !f.mu.listing {
		f.mu.listing = true
		f.listers.Go(s.listPool)
	}
	if f.mu.listing {
		return events, nil, false
	}
	if list := f.mu.list; list != nil {
		f.mu.list = nil
		if f.mu.adopt {
			f.mu.adopt = false
			events = f.appendPooled(events, list, list.isOrphan)
		}
		if describe {
			f.wake() // what was held back follows the description
			return events, f.describe(list), true
		}
	}
	for range len(f.moves) {
		events = append(events, <-f.moves)
	}
	return events, nil, true
}

// listPool lists the pool for the loop.
func (s *poolCopier) listPool() {
	var progress atomic.Int64
	lists := make(chan *poolList, 1)
	list := &poolList{}
	if s.runBeside(&progress, func() { lists <- s.makeList(&progress) }) {
		list = <-lists
	}
	f := &s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.listing, f.mu.list = false, list
	f.wake()
}

// makeList lists the pool in parts, and counts them.
func (s *poolCopier) makeList(progress *atomic.Int64) *poolList {
	list := &poolList{}
	for from, more := 0, true; more; progress.Add(1) {
		if err := s.memory.Use(func(p *pool.View, _ kv.Mono) error {
			if !p.IsOwner() {
				return pool.ErrEnded
			}
			list.blocks, from = p.AppendPooled(list.blocks, from, listChunk)
			more = from < p.Blocks()
			list.owners = p.AppendOwners(list.owners[:0])
			return nil
		}); err != nil {
			return &poolList{}
		}
	}
	slices.SortStableFunc(list.blocks, func(a, b pool.PooledBlock) int { return cmp.Compare(a.Index, b.Index) })
	return list
}

// isOrphan reports whether the worker which has moved b into the pool is no owner any more.
func (l *poolList) isOrphan(b *pool.PooledBlock) bool { return !slices.Contains(l.owners, b.Mover) }

// describe returns what follows a description of the cache: nothing of what this worker had announced of the pool holds,
// and what is there now, of it and of workers which are no owners any more.
func (f *poolFeed) describe(list *poolList) []kv.Event {
	retract := f.move(kv.LocalGPU, nil)
	retract.Move.Access = slices.Clone(f.mu.owners)
	return f.appendPooled([]kv.Event{retract}, list, func(b *pool.PooledBlock) bool { return b.Mover == f.worker || list.isOrphan(b) })
}

// appendPooled appends that blocks are in the pool. It first reports them as stored in the pool, after the blocks before
// them, and afterwards as removed, so that receivers learn their prefixes even if no worker's cache has them.
func (f *poolFeed) appendPooled(dst []kv.Event, list *poolList, isReported func(*pool.PooledBlock) bool) []kv.Event {
	wanted := map[kv.SeqHash]bool{} // reported blocks, and the blocks before them
	for i := range slices.Backward(list.blocks) {
		if b := &list.blocks[i]; wanted[b.Name] || isReported(b) {
			wanted[b.Name] = true
			if b.Index > 0 {
				wanted[b.Parent] = true
			}
		}
	}
	var stored, pooled []kv.SeqHash
	var labels []kv.MoELabel
	placed := map[kv.SeqHash]bool{} // they begin their sequence, or follow one which is placed
	for i := range list.blocks {
		b := &list.blocks[i]
		if !wanted[b.Name] {
			continue
		}
		if b.Index == 0 || placed[b.Parent] {
			placed[b.Name] = true
			stored = append(stored, b.Name)
			dst = append(dst, kv.Event{Kind: kv.Stored, Tier: kv.TierPool, Start: b.Index, Parent: b.Parent, Blocks: []kv.BlockHash{b.Hash}})
		}
		if isReported(b) {
			pooled, labels = append(pooled, b.Name), append(labels, b.Label)
		}
	}
	if len(pooled) == 0 {
		return dst
	}
	moved := f.move(kv.Pooled, pooled)
	if slices.ContainsFunc(labels, func(l kv.MoELabel) bool { return l.Has != 0 }) {
		moved.Labels = labels
	}
	dst = append(dst, moved)
	if len(stored) > 0 {
		dst = append(dst, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: stored})
	}
	return dst
}
