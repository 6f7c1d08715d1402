package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// pool is a holder of blocks that is no worker: what is in it can be had by every
// worker that has access, and outlives all of them.
type pool struct {
	id     kv.PoolID
	known  bool
	access []kv.Worker // as SetAccess said, whether they are known or not; ascending
	held   int
	pages  idSet
}

// pool returns p's place, giving it one if it has none.
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

// attach publishes who can attach pool i.
func (x *Index) attach(v *view, i uint32, who set) {
	access := make([]set, len(x.pools))
	copy(access, v.access)
	if int(i) < len(access) {
		access[i] = who
	}
	v.access = access
	x.view.Store(v)
}

// Place says that the blocks that end in seqs are in a pool. A block that no worker holds
// and that is in no pool has no known place among prefixes and is left out; Place returns
// how many were not.
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

// Displace says that the blocks that end in seqs are no longer in a pool.
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

// SetAccess says which workers can attach a pool. A worker among them that is dropped
// can no more, until it is known again.
func (x *Index) SetAccess(p kv.PoolID, workers []kv.Worker) {
	i := x.pool(p)
	access := slices.Compact(slices.SortedFunc(slices.Values(workers), kv.Worker.Compare))
	for _, w := range access {
		x.number(w)
	}
	x.admit(i, access)
}

// admit gives the workers in access that are known access to pool i, and the others when
// they are.
func (x *Index) admit(i uint32, access []kv.Worker) {
	var who set
	for _, w := range access {
		if n, ok := x.numbers[w]; ok {
			who = who.with(n)
		}
	}
	x.pools[i].access = access
	v := *x.view.Load()
	x.attach(&v, i, who)
}

// DropPool forgets a pool and all that was in it.
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
	x.pools[i] = pool{}
	x.free = append(x.free, i)
	v := *x.view.Load()
	if len(x.places) == 0 {
		x.pools, x.free = nil, nil
		v.reused++ // all places begin anew
	}
	x.attach(&v, i, set{})
	x.settle()
}

// inPool returns the blocks that are in pool i.
func (e *edit) inPool(i uint32) uint64 {
	for _, p := range e.pools {
		if p.pool == i {
			return p.mask
		}
	}
	return 0
}

// putPooled says which blocks of the open page are in pool i.
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
