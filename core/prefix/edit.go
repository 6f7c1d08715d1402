package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// pageEdit is a page while the writer changes it: opened, changed, and committed as the page's next version.
type pageEdit struct {
	id     uint32 // 0 if there is none
	old    *pageVersion
	start  int
	count  int
	hashes []kv.SeqHash
	groups []holderGroup
	pools  []pooledBlocks
	// changed says that there is something to commit.
	changed bool
}

// openPage starts the change of a page.
func (x *Index) openPage(id uint32) *pageEdit {
	e, v := &x.edit, x.pages.pageAt(id)
	e.id, e.old, e.start, e.count, e.hashes = id, v, int(v.start), int(v.count), v.hashes
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	v.eachGroup(func(g *holderGroup) { e.groups = append(e.groups, *g) })
	e.pools = append(e.pools, v.pools()...)
	return e
}

// createPage starts a new page whose first block will be at an offset.
func (x *Index) createPage(offset int) *pageEdit {
	e := &x.edit
	e.id, e.old, e.start, e.count, e.hashes = x.pages.reserveID(), nil, offset, 0, nil
	e.groups, e.pools, e.changed = e.groups[:0], e.pools[:0], false
	return e
}

// blockHash returns the hash of the block at p, also in the page which is being changed.
func (x *Index) blockHash(p blockLocation) kv.SeqHash {
	if e := &x.edit; p.page == e.id {
		return e.hashes[int(p.offset)-e.start]
	}
	return x.pages.pageAt(p.page).hashAt(int(p.offset))
}

// endOffset returns the offset after the last block.
func (e *pageEdit) endOffset() int { return e.start + e.count }

// appendBlock appends a block; more is how many are expected to follow it. The versions which readers have
// end before it in the shared array.
func (e *pageEdit) appendBlock(seq kv.SeqHash, more int) {
	switch {
	case len(e.hashes) > e.count: // leftovers, which readers of older versions may read
		e.growHashes(1 + more)
	case len(e.hashes) == cap(e.hashes):
		e.growHashes(max(1+more, e.count))
	}
	e.hashes = append(e.hashes, seq)
	e.count++
	e.changed = true
}

// growHashes moves the hashes to an array with room for the given number of further blocks, up to the window.
func (e *pageEdit) growHashes(room int) {
	hashes := make([]kv.SeqHash, e.count, min(e.count+room, window-e.start))
	copy(hashes, e.hashes)
	e.hashes = hashes
}

// holdingsOf returns what worker n holds: a group without a set, empty if it holds nothing.
func (e *pageEdit) holdingsOf(n uint32) holderGroup {
	if i := e.findGroup(n); i >= 0 {
		return holderGroup{device: e.groups[i].device, ext: e.groups[i].ext}
	}
	return holderGroup{}
}

func (e *pageEdit) findGroup(n uint32) int {
	return slices.IndexFunc(e.groups, func(g holderGroup) bool { return g.set.contains(n) })
}

// setHoldings sets the holdings of worker n to h: it moves to the group with the same holdings.
func (x *Index) setHoldings(n uint32, h holderGroup) {
	e, w := &x.edit, &x.workers[n]
	had := uint64(0)
	if i := e.findGroup(n); i >= 0 {
		g := &e.groups[i]
		if g.holdsSame(&h) {
			return
		}
		e.changed = true
		had = g.onAnyTier()
		x.sizes.removeHolder(g)
		if g.set = g.set.withoutNumber(n); g.set.one == 0 {
			e.groups = slices.Delete(e.groups, i, i+1)
		}
	}
	has := h.onAnyTier()
	w.held += bits.OnesCount64(has) - bits.OnesCount64(had)
	switch {
	case has == 0:
		if had != 0 {
			w.pages.removePage(e.id)
		}
		return
	case had == 0:
		w.pages.addPage(e.id)
	}
	e.changed = true
	x.sizes.addHolder(&h)
	if i := slices.IndexFunc(e.groups, func(g holderGroup) bool { return g.holdsSame(&h) }); i >= 0 {
		e.groups[i].set = e.groups[i].set.withNumber(n)
		return
	}
	h.set = numberSet{}.withNumber(n)
	e.groups = append(e.groups, h)
}

// heldMask returns the blocks which are held by a worker or are in a pool.
func (e *pageEdit) heldMask() uint64 {
	var mask uint64
	for i := range e.groups {
		mask |= e.groups[i].onAnyTier()
	}
	for _, p := range e.pools {
		mask |= p.mask
	}
	return mask
}

// commitPage publishes the page's next version. A page without holders is removed.
func (x *Index) commitPage() {
	e := &x.edit
	defer e.closePage()
	if !e.changed {
		return
	}
	held := e.heldMask()
	x.trimEnds(held)
	var v *pageVersion
	if e.count > 0 {
		v = e.newVersion(held)
	}
	x.leaveSpan(v)
	x.sizes.replaceVersion(e.old, v)
	x.publishVersion(v)
	if v == nil {
		x.pages.releaseID(e.id)
	} else {
		x.pages.setPage(e.id, v)
	}
}

// closePage resets the edit, so that it does not keep sets and labels alive.
func (e *pageEdit) closePage() {
	clear(e.groups)
	clear(e.pools)
	e.id, e.old, e.hashes, e.groups, e.pools = 0, nil, nil, e.groups[:0], e.pools[:0]
}

// publishVersion makes readers find v instead of the old version. It inserts v by its own head first, so that
// a page whose first blocks were removed never disappears.
func (x *Index) publishVersion(v *pageVersion) {
	old := x.edit.old
	if v != nil {
		x.heads.putPage(v)
	}
	if old != nil && (v == nil || v.head != old.head) {
		x.heads.removePage(old.head)
	}
}

// trimEnds removes the blocks without holders at both ends.
func (x *Index) trimEnds(held uint64) {
	e := &x.edit
	first, end := e.endOffset(), e.endOffset()
	if held != 0 {
		first, end = bits.TrailingZeros64(held), window-bits.LeadingZeros64(held)
	}
	for at := e.start; at < e.endOffset(); at++ {
		if at < first || at >= end {
			x.blocks.removeBlock(e.hashes[at-e.start], blockLocation{e.id, uint8(at)})
		}
	}
	e.hashes, e.start, e.count = e.hashes[first-e.start:], first, end-first
	// An array which is less than half used is left to the versions which share it.
	if 2*e.count < cap(e.hashes) || e.old != nil && int(e.old.start) != first {
		e.growHashes(0)
	}
}

// newVersion returns the version which e has become.
func (e *pageEdit) newVersion(held uint64) *pageVersion {
	v := &pageVersion{
		head: e.hashes[0], last: e.hashes[e.count-1],
		start: uint8(e.start), count: uint8(e.count), hashes: e.hashes, heldMask: held,
	}
	var others []holderGroup
	if len(e.groups) > 0 {
		v.firstGroup, others = e.groups[0], e.groups[1:]
	}
	if len(others) > 0 || len(e.pools) > 0 {
		v.more = &extraHolders{groups: cloneCompact(others), pools: cloneCompact(e.pools)}
	}
	return v
}
