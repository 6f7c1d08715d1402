package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// pageEdit is a page while the writer changes it: opened, changed, and committed as the page's next version.
type edit struct {
	id     uint32 // 0 if there is none
	old    *version
	start  int
	n      int
	hashes []kv.SeqHash
	groups []group
	pools  []pooled
	// changed says that there is something to commit.
	changed bool
}

// openPage starts the change of a page.
func (x *Index) open(id uint32) *edit {
	e, v := &x.edit, x.pages.get(id)
	e.id, e.old, e.start, e.n, e.hashes = id, v, int(v.start), int(v.n), v.hashes
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	v.groups(func(g *group) { e.groups = append(e.groups, *g) })
	e.pools = append(e.pools, v.pooled()...)
	return e
}

// createPage starts a new page whose first block will be at an offset.
func (x *Index) create(offset int) *edit {
	e := &x.edit
	e.id, e.old, e.start, e.n, e.hashes = x.pages.reserve(), nil, offset, 0, nil
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	return e
}

// blockHash returns the hash of the block at p, also in the page which is being changed.
func (x *Index) hashAt(p place) kv.SeqHash {
	if e := &x.edit; p.page == e.id {
		return e.hashes[int(p.offset)-e.start]
	}
	return x.pages.get(p.page).at(int(p.offset))
}

// endOffset returns the offset after the last block.
func (e *edit) end() int { return e.start + e.n }

// appendBlock appends a block; more is how many are expected to follow it. The versions which readers have
// end before it in the shared array.
func (e *edit) extend(seq kv.SeqHash, more int) {
	switch {
	case len(e.hashes) > e.n: // leftovers, which readers of older versions may read
		e.grow(1 + more)
	case len(e.hashes) == cap(e.hashes):
		e.grow(max(1+more, e.n))
	}
	e.hashes = append(e.hashes, seq)
	e.n++
	e.changed = true
}

// growHashes moves the hashes to an array with room for the given number of further blocks, up to the window.
func (e *edit) grow(room int) {
	hashes := make([]kv.SeqHash, e.n, min(e.n+room, window-e.start))
	copy(hashes, e.hashes)
	e.hashes = hashes
}

// holdingsOf returns what worker n holds: a group without a set, empty if it holds nothing.
func (e *edit) of(n uint32) group {
	if i := e.find(n); i >= 0 {
		return group{device: e.groups[i].device, ext: e.groups[i].ext}
	}
	return group{}
}

func (e *edit) find(n uint32) int {
	return slices.IndexFunc(e.groups, func(g group) bool { return g.set.has(n) })
}

// setHoldings sets the holdings of worker n to h: it moves to the group with the same holdings.
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

// heldMask returns the blocks which are held by a worker or are in a pool.
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

// commitPage publishes the page's next version. A page without holders is removed.
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

// closePage resets the edit, so that it does not keep sets and labels alive.
func (e *edit) close() {
	clear(e.groups)
	e.id, e.old, e.hashes, e.groups = 0, nil, nil, e.groups[:0]
}

// publishVersion makes readers find v instead of the old version. It inserts v by its own head first, so that
// a page whose first blocks were removed never disappears.
func (x *Index) show(v *version) {
	old := x.edit.old
	if v != nil {
		x.heads.put(v)
	}
	if old != nil && (v == nil || v.head != old.head) {
		x.heads.remove(old.head)
	}
}

// trimEnds removes the blocks without holders at both ends.
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
	// An array which is less than half used is left to the versions which share it.
	if 2*e.n < cap(e.hashes) || e.old != nil && int(e.old.start) != first {
		e.grow(0)
	}
}

// newVersion returns the version which e has become.
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
