package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// blockPool is a holder of blocks which is not a worker: every worker with access can attach its blocks,
// which outlive the workers. It is the share of a pool whose blocks have one access list.
type blockPool struct {
	id     kv.PoolShare
	known  bool
	access []kv.Worker // as set by SetAccess, also unknown ones; ascending
	held   int
	pages  pageSet
}

// poolNumber returns p's index, and assigns one if it has none.
func (x *Index) poolNumber(p kv.PoolShare) uint32 {
	if i, ok := x.poolNumbers[p]; ok {
		return i
	}
	v := *x.view.Load()
	var i uint32
	if last := len(x.freePools) - 1; last >= 0 {
		i, x.freePools = x.freePools[last], x.freePools[:last]
		v.reused++
	} else {
		i = uint32(len(x.pools))
		x.pools = append(x.pools, blockPool{})
	}
	x.pools[i] = blockPool{id: p, known: true}
	x.poolNumbers[p] = i
	x.publishAccess(&v, i, numberSet{})
	return i
}

// publishAccess publishes which workers can attach pool i.
func (x *Index) publishAccess(v *lookupView, i uint32, workers numberSet) {
	access := make([]numberSet, len(x.pools))
	copy(access, v.access)
	if int(i) < len(access) {
		access[i] = workers
	}
	v.access = access
	x.view.Store(v)
}

// AddToPool records that the blocks which end in seqs are in a pool. A block which no worker holds and which
// is in no pool has no known position and is skipped; AddToPool returns how many were not skipped. labels has one
// label for each block, or is nil: each replaces the label which the block has in the pool.
func (x *Index) AddToPool(p kv.PoolShare, seqs []kv.SeqHash, labels []kv.MoELabel) int {
	i, placed := x.poolNumber(p), 0
	for j, seq := range seqs {
		at, known := x.locateBlock(seq)
		if !known || x.pages.pageAt(at.page).heldMask>>at.offset&1 == 0 {
			continue
		}
		placed++
		e := x.openPage(at.page)
		b := e.inPool(i)
		b.mask |= 1 << at.offset
		b.labels = removeLabels(b.labels, 1<<at.offset)
		if labels != nil {
			b.labels = addLabel(b.labels, 1<<at.offset, labels[j])
		}
		x.setPooled(b)
		x.commitPage()
	}
	x.finishChange()
	return placed
}

// RemoveFromPool records that the blocks which end in seqs are no longer in a pool.
func (x *Index) RemoveFromPool(p kv.PoolShare, seqs []kv.SeqHash) {
	i, ok := x.poolNumbers[p]
	if !ok {
		return
	}
	for _, seq := range seqs {
		if at, known := x.locateBlock(seq); known {
			e := x.openPage(at.page)
			b := e.inPool(i)
			b.mask &^= 1 << at.offset
			b.labels = removeLabels(b.labels, 1<<at.offset)
			x.setPooled(b)
			x.commitPage()
		}
	}
	x.finishChange()
}

// maxIdle is the number of known workers without blocks up to which access lists add workers. Further ones
// can attach their pools once they are added by another call.
const maxIdle = 1 << 14

// SetAccess sets which workers can attach a pool. A listed worker which is dropped loses access until it is
// added again. A worker which holds nothing and is not hidden is removed when no list names it any more:
// lists may be long, and change often.
func (x *Index) SetAccess(p kv.PoolShare, workers []kv.Worker) {
	i := x.poolNumber(p)
	access := slices.Compact(slices.SortedFunc(slices.Values(workers), kv.Worker.Compare))
	before := x.pools[i].access
	x.pools[i].access = access
	x.removeUnlisted(before)
	x.introduceListed(access)
	x.admitListed(i)
}

// introduceListed adds the workers which are not known, as far as there is room.
func (x *Index) introduceListed(workers []kv.Worker) {
	room := maxIdle
	for n := range x.workers {
		if x.isIdle(uint32(n)) {
			room--
		}
	}
	var unknown []kv.Worker
	for _, w := range workers {
		if _, ok := x.numbers[w]; !ok && len(unknown) < room {
			unknown = append(unknown, w)
		}
	}
	if len(unknown) > 0 {
		x.addWorkers(unknown)
	}
}

// isIdle reports whether number n belongs to a worker which need not be kept.
func (x *Index) isIdle(n uint32) bool {
	w := &x.workers[n]
	return w.known && w.held == 0 && !w.hidden
}

// removeUnlisted removes the workers which are idle and on no list.
func (x *Index) removeUnlisted(workers []kv.Worker) {
	var gone []uint32
	for _, w := range workers {
		if n, ok := x.numbers[w]; ok && x.isIdle(n) && !x.hasAccess(w) {
			gone = append(gone, n)
		}
	}
	if len(gone) > 0 {
		x.removeWorkers(gone...)
	}
}

// hasAccess reports whether w can attach any pool.
func (x *Index) hasAccess(w kv.Worker) bool {
	for i := range x.pools {
		if _, ok := slices.BinarySearchFunc(x.pools[i].access, w, kv.Worker.Compare); ok {
			return true
		}
	}
	return false
}

// admitListed gives the known workers on the list of pool i access to it. The others get it when they are
// added.
func (x *Index) admitListed(i uint32) {
	v := *x.view.Load()
	x.publishAccess(&v, i, x.accessSet(&x.pools[i]))
}

// accessSet returns the known workers on the list of a pool.
func (x *Index) accessSet(p *blockPool) numberSet {
	var numbers []uint32
	for _, w := range p.access {
		if n, ok := x.numbers[w]; ok {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 {
		return numberSet{}
	}
	return setOf(numbers)
}

// DropPool removes a pool and its blocks.
func (x *Index) DropPool(p kv.PoolShare) {
	i, ok := x.poolNumbers[p]
	if !ok {
		return
	}
	for _, id := range x.pools[i].pages.takeAll() {
		if id != 0 {
			x.openPage(id)
			x.setPooled(pooledBlocks{pool: i})
			x.commitPage()
		}
	}
	delete(x.poolNumbers, p)
	access := x.pools[i].access
	x.pools[i] = blockPool{}
	x.removeUnlisted(access)
	x.freePools = append(x.freePools, i)
	v := *x.view.Load()
	if len(x.poolNumbers) == 0 {
		x.pools, x.freePools = nil, nil
		v.reused++ // all indexes are reassigned
	}
	x.publishAccess(&v, i, numberSet{})
	x.finishChange()
}

// inPool returns the blocks which are in pool i.
func (e *pageEdit) inPool(i uint32) pooledBlocks {
	for _, p := range e.pools {
		if p.pool == i {
			return p
		}
	}
	return pooledBlocks{pool: i}
}

// setPooled sets which blocks of the open page are in pool b.pool, with which labels.
func (x *Index) setPooled(b pooledBlocks) {
	e, p := &x.edit, &x.pools[b.pool]
	had := e.inPool(b.pool)
	if had.mask == b.mask && slices.Equal(had.labels, b.labels) {
		return
	}
	e.changed = true
	more := bits.OnesCount64(b.mask) - bits.OnesCount64(had.mask)
	p.held += more
	x.sizes.pooled += more
	b.labels = cloneCompact(b.labels)
	at := slices.IndexFunc(e.pools, func(p pooledBlocks) bool { return p.pool == b.pool })
	switch {
	case b.mask == 0:
		p.pages.removePage(e.id)
		e.pools = slices.Delete(e.pools, at, at+1)
	case had.mask == 0:
		p.pages.addPage(e.id)
		e.pools = append(e.pools, b)
	default:
		e.pools[at] = b
	}
}
