package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// edit is a page while the writer changes it: opened, changed, and committed as the
// page's next version.
type edit struct {
	id     uint32 // 0 while there is none
	old    *version
	start  int
	n      int
	hashes []kv.SeqHash
	groups []group
	pools  []pooled
	// changed says that there is something to commit.
	changed bool
}

// open begins the change of a page.
func (x *Index) open(id uint32) *edit {
	e, v := &x.edit, x.pages.get(id)
	e.id, e.old, e.start, e.n, e.hashes = id, v, int(v.start), int(v.n), v.hashes
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	v.groups(func(g *group) { e.groups = append(e.groups, *g) })
	e.pools = append(e.pools, v.pooled()...)
	return e
}

// create begins a page of which the first block will be at an offset.
func (x *Index) create(offset int) *edit {
	e := &x.edit
	e.id, e.old, e.start, e.n, e.hashes = x.pages.reserve(), nil, offset, 0, nil
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	return e
}

// hashAt returns the hash of the block at p, in the page that is being changed too.
func (x *Index) hashAt(p place) kv.SeqHash {
	if e := &x.edit; p.page == e.id {
		return e.hashes[int(p.offset)-e.start]
	}
	return x.pages.get(p.page).at(int(p.offset))
}

// end returns the offset behind the last block.
func (e *edit) end() int { return e.start + e.n }

// extend appends a block; more is how many are expected to follow it. Versions that
// readers have end before it in the shared array.
func (e *edit) extend(seq kv.SeqHash, more int) {
	switch {
	case len(e.hashes) > e.n: // remains, which readers of older versions may be at
		e.grow(1 + more)
	case len(e.hashes) == cap(e.hashes):
		e.grow(max(1+more, e.n))
	}
	e.hashes = append(e.hashes, seq)
	e.n++
	e.changed = true
}

// grow moves the hashes to an array with room for so many more, if the window has it.
func (e *edit) grow(room int) {
	hashes := make([]kv.SeqHash, e.n, min(e.n+room, window-e.start))
	copy(hashes, e.hashes)
	e.hashes = hashes
}

// of returns what worker n holds: a group without a set, empty if it holds nothing.
func (e *edit) of(n uint32) group {
	if i := e.find(n); i >= 0 {
		return group{device: e.groups[i].device, ext: e.groups[i].ext}
	}
	return group{}
}

func (e *edit) find(n uint32) int {
	return slices.IndexFunc(e.groups, func(g group) bool { return g.set.has(n) })
}

// put says that worker n holds what h does: it moves to the group that holds the same.
func (x *Index) put(n uint32, h group) {
	e, w := &x.edit, &x.workers[n]
	had := uint64(0)
	if i := e.find(n); i >= 0 {
		g := &e.groups[i]
		if g.same(&h) {
			return
		}
		e.changed = true
		had = g.any()
		x.size.left(g)
		if g.set = g.set.without(n); g.set.one == 0 {
			e.groups = slices.Delete(e.groups, i, i+1)
		}
	}
	has := h.any()
	w.held += bits.OnesCount64(has) - bits.OnesCount64(had)
	switch {
	case has == 0:
		if had != 0 {
			w.pages.remove(e.id)
		}
		return
	case had == 0:
		w.pages.add(e.id)
	}
	e.changed = true
	x.size.came(&h)
	if i := slices.IndexFunc(e.groups, func(g group) bool { return g.same(&h) }); i >= 0 {
		e.groups[i].set = e.groups[i].set.with(n)
		return
	}
	h.set = set{}.with(n)
	e.groups = append(e.groups, h)
}

// held returns the blocks that are held by a worker or are in a pool.
func (e *edit) held() uint64 {
	var mask uint64
	for i := range e.groups {
		mask |= e.groups[i].any()
	}
	for _, p := range e.pools {
		mask |= p.mask
	}
	return mask
}

// commit makes the page's next version what readers find. A page that nobody holds
// anything of is gone.
func (x *Index) commit() {
	e := &x.edit
	defer e.close()
	if !e.changed {
		return
	}
	held := e.held()
	x.trim(held)
	var v *version
	if e.n > 0 {
		v = e.version(held)
	}
	x.leaveSpan(v)
	x.size.replaced(e.old, v)
	x.show(v)
	if v == nil {
		x.pages.release(e.id)
	} else {
		x.pages.set(e.id, v)
	}
}

// close forgets the page, and with it sets and labels that would be kept alive.
func (e *edit) close() {
	clear(e.groups)
	e.id, e.old, e.hashes, e.groups = 0, nil, nil, e.groups[:0]
}

// show lets readers find v instead of the old version: first by its own head, so that
// a page of which the beginning went is not gone for a moment.
func (x *Index) show(v *version) {
	old := x.edit.old
	if v != nil {
		x.heads.put(v)
	}
	if old != nil && (v == nil || v.head != old.head) {
		x.heads.remove(old.head)
	}
}

// trim cuts off the blocks at both ends that nobody holds.
func (x *Index) trim(held uint64) {
	e := &x.edit
	first, end := e.end(), e.end()
	if held != 0 {
		first, end = bits.TrailingZeros64(held), window-bits.LeadingZeros64(held)
	}
	for at := e.start; at < e.end(); at++ {
		if at < first || at >= end {
			x.where.remove(e.hashes[at-e.start], place{e.id, uint8(at)})
		}
	}
	e.hashes, e.start, e.n = e.hashes[first-e.start:], first, end-first
	// An array of which less than half is used is left to the versions that have it.
	if 2*e.n < cap(e.hashes) || e.old != nil && int(e.old.start) != first {
		e.grow(0)
	}
}

// version returns what e has become.
func (e *edit) version(held uint64) *version {
	v := &version{
		head: e.hashes[0], last: e.hashes[e.n-1],
		start: uint8(e.start), n: uint8(e.n), hashes: e.hashes, held: held,
	}
	var others []group
	if len(e.groups) > 0 {
		v.first, others = e.groups[0], e.groups[1:]
	}
	if len(others) > 0 || len(e.pools) > 0 {
		v.more = &more{groups: clone(others), pools: clone(e.pools)}
	}
	return v
}
