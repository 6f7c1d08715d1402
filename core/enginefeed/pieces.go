package enginefeed

import (
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// enginePage is one engine block, where several consecutive ones make one Penstock block. Pages form a
// tree, because sequences may part in the middle of a Penstock block. A page without copies stays while
// others follow it.
type piece struct {
	parent, child uint32 // the previous page, and one of the following ones
	next, before  uint32 // siblings: other pages with the same parent
	depth         uint32
	live          bool
	refs          [tiers]uint16
	salt          uint16
	// For a page which ends a Penstock block: the block, and the prefix which it ends.
	hash kv.BlockHash
	seq  kv.SeqHash
}

// pageTree holds the engine's blocks, keyed by engine hash.
type pieces struct {
	index
	tokens int // in each page
	all    slab[piece]
	ids    []kv.Token // the tokens of page i start at i*tokens
	media  map[uint32][]kv.Media
	on     [tiers]int
	joined []kv.Token // scratch
}

// endsBlock reports whether p ends a Penstock block.
func (p *piece) ends(t *Table) bool { return p.depth%uint32(t.per) == uint32(t.per-1) }

// insertPage adds a page under an unknown engine hash.
func (x *pieces) put(t *Table, name kv.EngineHash, parent, depth uint32, salt uint16, tokens []kv.Token, media []kv.Media) uint32 {
	id := x.add(name)
	x.all.reach(0)
	p := x.all.reach(id)
	*p = piece{parent: parent, depth: depth, salt: salt, live: true}
	t.salts.take(salt)
	if parent != 0 {
		above := x.all.at(parent)
		if p.next = above.child; p.next != 0 {
			x.all.at(p.next).before = id
		}
		above.child = id
	}
	if need := (int(id) + 1) * x.tokens; need > len(x.ids) {
		x.ids = slices.Grow(x.ids, need-len(x.ids))[:need]
	}
	copy(x.ids[int(id)*x.tokens:], tokens)
	if len(media) > 0 {
		if x.media == nil {
			x.media = make(map[uint32][]kv.Media)
		}
		x.media[id] = slices.Clone(media)
	}
	if salt != opaque && p.ends(t) {
		x.name(t, id)
	}
	return id
}

// insertStub adds a page which ends a Penstock block and stands for all pages before it, whose hashes are
// unknown.
func (x *pieces) stub(t *Table, name kv.EngineHash, depth uint32, salt uint16, hash kv.BlockHash, seq kv.SeqHash) uint32 {
	id := x.put(t, name, 0, depth, opaque, nil, nil)
	t.salts.take(salt)
	p := x.all.at(id)
	p.salt, p.hash, p.seq = salt, hash, seq
	return id
}

// hashBlock computes the Penstock block which a page ends.
func (x *pieces) name(t *Table, id uint32) {
	tokens := slices.Grow(x.joined[:0], t.per*x.tokens)[:t.per*x.tokens]
	x.joined = tokens
	var media []kv.Media
	at := id
	for i := t.per - 1; i >= 0; i-- {
		copy(tokens[i*x.tokens:], x.ids[int(at)*x.tokens:][:x.tokens])
		media = append(media, x.media[at]...)
		at = x.all.at(at).parent
	}
	p := x.all.at(id)
	p.hash = t.name(t.salts.uses[p.salt].hasher, x.prev(at), tokens, media)
	p.seq = kv.Extend(x.prev(at), p.depth/uint32(t.per), p.hash)
}

// prefixBefore returns the prefix which ends with page id, the page before a Penstock block.
func (x *pieces) prev(id uint32) kv.SeqHash {
	if id == 0 {
		return 0
	}
	return x.all.at(id).seq
}

// addCopy counts a copy of a page, and stores the Penstock blocks which it completes.
func (x *pieces) ref(t *Table, id uint32, tier kv.Tier) {
	p := x.all.at(id)
	if p.refs[tier] < 1<<16-1 {
		p.refs[tier]++
	}
	if p.refs[tier] > 1 {
		return
	}
	x.on[tier]++
	if p.salt == opaque || !x.whole(t, id, tier) {
		return
	}
	x.below(t, id, tier, func(end uint32) { x.join(t, end, tier) })
}

// hasLeadingPages reports whether all pages from the start of its block up to this one are on a tier.
func (x *pieces) whole(t *Table, id uint32, tier kv.Tier) bool {
	for {
		p := x.all.at(id)
		if p.refs[tier] == 0 {
			return false
		}
		if p.depth%uint32(t.per) == 0 {
			return true
		}
		id = p.parent
	}
}

// forEachBlockEnd calls do for each page which ends the Penstock block of page id and is reached over pages
// on a tier.
func (x *pieces) below(t *Table, id uint32, tier kv.Tier, do func(end uint32)) {
	for at := id; ; {
		p := x.all.at(at)
		here := at == id || p.refs[tier] > 0
		switch {
		case here && p.ends(t):
			do(at)
		case here && p.child != 0 && p.salt != opaque:
			at = p.child
			continue
		}
		for at != id && x.all.at(at).next == 0 {
			at = x.all.at(at).parent
		}
		if at == id {
			return
		}
		at = x.all.at(at).next
	}
}

// storeBlock stores the Penstock block which a page ends.
func (x *pieces) join(t *Table, end uint32, tier kv.Tier) {
	p := x.all.at(end)
	if p.salt == opaque {
		return
	}
	name := *x.names.at(end)
	id := t.blocks.find(name)
	if id == 0 {
		first := end
		for range t.per {
			first = x.all.at(first).parent
		}
		b := block{prev: x.prev(first), hash: p.hash, depth: p.depth / uint32(t.per), salt: p.salt}
		if first != 0 {
			b.parent = t.blocks.find(*x.names.at(first))
		}
		id = t.blocks.put(t, name, b)
	}
	t.blocks.ref(t, id, tier, p.seq)
}

// removeCopy removes one copy of a page from a tier, and with the last copy the Penstock blocks which
// contain the page. It reports whether there was a copy.
func (x *pieces) remove(t *Table, name kv.EngineHash, tier kv.Tier) bool {
	id := x.find(name)
	if id == 0 {
		return false
	}
	p := x.all.at(id)
	if p.refs[tier] == 0 {
		return false
	}
	if p.refs[tier]--; p.refs[tier] > 0 {
		return true
	}
	x.on[tier]--
	x.below(t, id, tier, func(end uint32) { t.blocks.remove(t, *x.names.at(end), tier) })
	x.settle(t, id)
	return true
}

// dropIfUnused drops a page without copies and followers, and then those of its ancestors which have become
// such pages.
func (x *pieces) settle(t *Table, id uint32) {
	for id != 0 {
		p := x.all.at(id)
		if p.child != 0 || p.refs != [tiers]uint16{} {
			return
		}
		switch {
		case p.before != 0:
			x.all.at(p.before).next = p.next
		case p.parent != 0:
			x.all.at(p.parent).child = p.next
		}
		if p.next != 0 {
			x.all.at(p.next).before = p.before
		}
		t.salts.give(p.salt)
		delete(x.media, id)
		t.roots.drop(*x.names.at(id))
		x.drop(id)
		id, *p = p.parent, piece{}
	}
}

// clearTier removes all copies from a tier without announcing it.
func (x *pieces) empty(t *Table, tier kv.Tier) {
	for id := uint32(1); id <= x.top; id++ {
		x.all.at(id).refs[tier] = 0
	}
	for id := uint32(1); id <= x.top; id++ {
		if x.all.at(id).live {
			x.settle(t, id)
		}
	}
	x.on[tier] = 0
}

func (x *pieces) clear() {
	x.index.clear()
	*x = pieces{index: x.index, tokens: x.tokens}
}

func (x *pieces) bytes() int {
	return x.index.bytes() + int(unsafe.Sizeof(piece{}))*chunk*len(x.all.chunks) + 4*cap(x.ids) + 64*len(x.media)
}
