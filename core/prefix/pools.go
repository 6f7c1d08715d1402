package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// blockPool is a holder of blocks which is not a worker: every worker with access can attach its blocks,
// which outlive the workers.
type pool struct {
	id     kv.PoolID
	known  bool
	access []kv.Worker // as set by SetAccess, also unknown ones; ascending
	held   int
	pages  idSet
}

// poolNumber returns p's index, and assigns one if it has none.
func (x *Index) pool(p kv.PoolID) uint32 {
	if i, ok := x.places[p]; ok {
		return i
	}
	v := *x.view.Load()
	var i uint32
	if last := len(x.free) - 1; last >= 0 {
		i, x.free = x.free[last], x.free[:last]
		v.reused++
	} else {
		i = uint32(len(x.pools))
		x.pools = append(x.pools, pool{})
	}
	x.pools[i] = pool{id: p, known: true}
	x.places[p] = i
	x.attach(&v, i, set{})
	return i
}

// publishAccess publishes which workers can attach pool i.
func (x *Index) attach(v *view, i uint32, who set) {
	access := make([]set, len(x.pools))
	copy(access, v.access)
	if int(i) < len(access) {
		access[i] = who
	}
	v.access = access
	x.view.Store(v)
}

// AddToPool records that the blocks which end in seqs are in a pool. A block which no worker holds and which
// is in no pool has no known position and is skipped; AddToPool returns how many were not skipped.
func (x *Index) Place(p kv.PoolID, seqs []kv.SeqHash) int {
	i, placed := x.pool(p), 0
	for _, seq := range seqs {
		at, known := x.locate(seq)
		if !known || x.pages.get(at.page).held>>at.offset&1 == 0 {
			continue
		}
		placed++
		e := x.open(at.page)
		x.putPooled(i, e.inPool(i)|1<<at.offset)
		x.commit()
	}
	x.settle()
	return placed
}

// RemoveFromPool records that the blocks which end in seqs are no longer in a pool.
func (x *Index) Displace(p kv.PoolID, seqs []kv.SeqHash) {
	i, ok := x.places[p]
	if !ok {
		return
	}
	for _, seq := range seqs {
		if at, known := x.locate(seq); known {
			e := x.open(at.page)
			x.putPooled(i, e.inPool(i)&^(1<<at.offset))
			x.commit()
		}
	}
	x.settle()
}

// maxIdle is the number of known workers without blocks up to which access lists add workers. Further ones
// can attach their pools once they are added by another call.
const maxIdle = 1 << 14

// SetAccess sets which workers can attach a pool. A listed worker which is dropped loses access until it is
// added again. A worker which holds nothing and is not hidden is removed when no list names it any more:
// lists may be long, and change often.
func (x *Index) SetAccess(p kv.PoolID, workers []kv.Worker) {
	i := x.pool(p)
	access := slices.Compact(slices.SortedFunc(slices.Values(workers), kv.Worker.Compare))
	before := x.pools[i].access
	x.pools[i].access = access
	x.unlist(before)
	x.list(access)
	x.admit(i)
}

// introduceListed adds the workers which are not known, as far as there is room.
func (x *Index) list(workers []kv.Worker) {
	room := maxIdle
	for n := range x.workers {
		if x.idle(uint32(n)) {
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
		x.introduce(unknown)
	}
}

// isIdle reports whether number n belongs to a worker which need not be kept.
func (x *Index) idle(n uint32) bool {
	w := &x.workers[n]
	return w.known && w.held == 0 && !w.hidden
}

// removeUnlisted removes the workers which are idle and on no list.
func (x *Index) unlist(workers []kv.Worker) {
	var gone []uint32
	for _, w := range workers {
		if n, ok := x.numbers[w]; ok && x.idle(n) && !x.onList(w) {
			gone = append(gone, n)
		}
	}
	if len(gone) > 0 {
		x.forget(gone...)
	}
}

// hasAccess reports whether w can attach any pool.
func (x *Index) onList(w kv.Worker) bool {
	for i := range x.pools {
		if _, ok := slices.BinarySearchFunc(x.pools[i].access, w, kv.Worker.Compare); ok {
			return true
		}
	}
	return false
}

// admitListed gives the known workers on the list of pool i access to it. The others get it when they are
// added.
func (x *Index) admit(i uint32) {
	v := *x.view.Load()
	x.attach(&v, i, x.whoOf(&x.pools[i]))
}

// accessSet returns the known workers on the list of a pool.
func (x *Index) whoOf(p *pool) set {
	var who []uint32
	for _, w := range p.access {
		if n, ok := x.numbers[w]; ok {
			who = append(who, n)
		}
	}
	if len(who) == 0 {
		return set{}
	}
	return setOf(who)
}

// DropPool removes a pool and its blocks.
func (x *Index) DropPool(p kv.PoolID) {
	i, ok := x.places[p]
	if !ok {
		return
	}
	for _, id := range x.pools[i].pages.take() {
		if id != 0 {
			x.open(id)
			x.putPooled(i, 0)
			x.commit()
		}
	}
	delete(x.places, p)
	access := x.pools[i].access
	x.pools[i] = pool{}
	x.unlist(access)
	x.free = append(x.free, i)
	v := *x.view.Load()
	if len(x.places) == 0 {
		x.pools, x.free = nil, nil
		v.reused++ // all indexes are reassigned
	}
	x.attach(&v, i, set{})
	x.settle()
}

// inPool returns the blocks which are in pool i.
func (e *edit) inPool(i uint32) uint64 {
	for _, p := range e.pools {
		if p.pool == i {
			return p.mask
		}
	}
	return 0
}

// setPooled sets which blocks of the open page are in pool i.
func (x *Index) putPooled(i uint32, mask uint64) {
	e, p := &x.edit, &x.pools[i]
	had := e.inPool(i)
	if had == mask {
		return
	}
	e.changed = true
	p.held += bits.OnesCount64(mask) - bits.OnesCount64(had)
	x.size.pooled += bits.OnesCount64(mask) - bits.OnesCount64(had)
	at := slices.IndexFunc(e.pools, func(p pooled) bool { return p.pool == i })
	switch {
	case mask == 0:
		p.pages.remove(e.id)
		e.pools = slices.Delete(e.pools, at, at+1)
	case had == 0:
		p.pages.add(e.id)
		e.pools = append(e.pools, pooled{mask: mask, pool: i})
	default:
		e.pools[at].mask = mask
	}
}
