package engineevents

import (
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// enginePage is one engine block, where several consecutive ones make one Penstock block. Pages form a
// tree, because sequences may part in the middle of a Penstock block. A page without copies stays while
// others follow it.
type enginePage struct {
	parent, firstChild       uint32 // the previous page, and one of the following ones
	nextSibling, prevSibling uint32 // siblings: other pages with the same parent
	depth                    uint32
	live                     bool
	refs                     [tierCount]uint16
	salt                     uint16
	// For a page which ends a Penstock block: the block, and the prefix which it ends.
	hash kv.BlockHash
	seq  kv.SeqHash
}

// pageTree holds the engine's blocks, keyed by engine hash.
type pageTree struct {
	hashIndex
	pageTokens   int // in each page
	entries      chunkedArray[enginePage]
	tokenIDs     []kv.Token // the tokens of page i start at i*tokens
	media        map[uint32][]kv.Media
	onTier       [tierCount]int
	joinedTokens []kv.Token // scratch
}

// endsBlock reports whether p ends a Penstock block.
func (p *enginePage) endsBlock(t *Table) bool {
	return p.depth%uint32(t.pagesPerBlock) == uint32(t.pagesPerBlock-1)
}

// insertPage adds a page under an unknown engine hash.
func (x *pageTree) insertPage(t *Table, name kv.EngineHash, parent, depth uint32, salt uint16, tokens []kv.Token, media []kv.Media) uint32 {
	id := x.assignID(name)
	x.entries.ensure(0)
	p := x.entries.ensure(id)
	*p = enginePage{parent: parent, depth: depth, salt: salt, live: true}
	t.salts.retain(salt)
	if parent != 0 {
		above := x.entries.at(parent)
		if p.nextSibling = above.firstChild; p.nextSibling != 0 {
			x.entries.at(p.nextSibling).prevSibling = id
		}
		above.firstChild = id
	}
	if need := (int(id) + 1) * x.pageTokens; need > len(x.tokenIDs) {
		x.tokenIDs = slices.Grow(x.tokenIDs, need-len(x.tokenIDs))[:need]
	}
	copy(x.tokenIDs[int(id)*x.pageTokens:], tokens)
	if len(media) > 0 {
		if x.media == nil {
			x.media = make(map[uint32][]kv.Media)
		}
		x.media[id] = slices.Clone(media)
	}
	if salt != opaqueSalt && p.endsBlock(t) {
		x.hashBlock(t, id)
	}
	return id
}

// insertStub adds a page which ends a Penstock block and stands for all pages before it, whose hashes are
// unknown.
func (x *pageTree) insertStub(t *Table, name kv.EngineHash, depth uint32, salt uint16, hash kv.BlockHash, seq kv.SeqHash) uint32 {
	id := x.insertPage(t, name, 0, depth, opaqueSalt, nil, nil)
	t.salts.retain(salt)
	p := x.entries.at(id)
	p.salt, p.hash, p.seq = salt, hash, seq
	return id
}

// hashBlock computes the Penstock block which a page ends.
func (x *pageTree) hashBlock(t *Table, id uint32) {
	tokens := slices.Grow(x.joinedTokens[:0], t.pagesPerBlock*x.pageTokens)[:t.pagesPerBlock*x.pageTokens]
	x.joinedTokens = tokens
	var media []kv.Media
	at := id
	for i := t.pagesPerBlock - 1; i >= 0; i-- {
		copy(tokens[i*x.pageTokens:], x.tokenIDs[int(at)*x.pageTokens:][:x.pageTokens])
		media = append(media, x.media[at]...)
		at = x.entries.at(at).parent
	}
	p := x.entries.at(id)
	p.hash = t.hashBlock(t.salts.entries[p.salt].hasher, x.prefixBefore(at), tokens, media)
	p.seq = kv.ExtendSeq(x.prefixBefore(at), p.depth/uint32(t.pagesPerBlock), p.hash)
}

// prefixBefore returns the prefix which ends with page id, the page before a Penstock block.
func (x *pageTree) prefixBefore(id uint32) kv.SeqHash {
	if id == 0 {
		return 0
	}
	return x.entries.at(id).seq
}

// addCopy counts a copy of a page, and stores the Penstock blocks which it completes.
func (x *pageTree) addCopy(t *Table, id uint32, tier kv.Tier) {
	p := x.entries.at(id)
	if p.refs[tier] < 1<<16-1 {
		p.refs[tier]++
	}
	if p.refs[tier] > 1 {
		return
	}
	x.onTier[tier]++
	if p.salt == opaqueSalt || !x.hasLeadingPages(t, id, tier) {
		return
	}
	x.forEachBlockEnd(t, id, tier, func(end uint32) { x.storeBlock(t, end, tier) })
}

// hasLeadingPages reports whether all pages from the start of its block up to this one are on a tier.
func (x *pageTree) hasLeadingPages(t *Table, id uint32, tier kv.Tier) bool {
	for {
		p := x.entries.at(id)
		if p.refs[tier] == 0 {
			return false
		}
		if p.depth%uint32(t.pagesPerBlock) == 0 {
			return true
		}
		id = p.parent
	}
}

// forEachBlockEnd calls do for each page which ends the Penstock block of page id and is reached over pages
// on a tier.
func (x *pageTree) forEachBlockEnd(t *Table, id uint32, tier kv.Tier, do func(end uint32)) {
	for at := id; ; {
		p := x.entries.at(at)
		here := at == id || p.refs[tier] > 0
		switch {
		case here && p.endsBlock(t):
			do(at)
		case here && p.firstChild != 0 && p.salt != opaqueSalt:
			at = p.firstChild
			continue
		}
		for at != id && x.entries.at(at).nextSibling == 0 {
			at = x.entries.at(at).parent
		}
		if at == id {
			return
		}
		at = x.entries.at(at).nextSibling
	}
}

// storeBlock stores the Penstock block which a page ends.
func (x *pageTree) storeBlock(t *Table, end uint32, tier kv.Tier) {
	p := x.entries.at(end)
	if p.salt == opaqueSalt {
		return
	}
	name := *x.hashes.at(end)
	id := t.blocks.findID(name)
	if id == 0 {
		first := end
		for range t.pagesPerBlock {
			first = x.entries.at(first).parent
		}
		b := blockEntry{prefix: x.prefixBefore(first), hash: p.hash, depth: p.depth / uint32(t.pagesPerBlock), salt: p.salt}
		if first != 0 {
			b.parent = t.blocks.findID(*x.hashes.at(first))
		}
		id = t.blocks.insertBlock(t, name, b)
	}
	t.blocks.addCopy(t, id, tier, p.seq)
}

// removeCopy removes one copy of a page from a tier, and with the last copy the Penstock blocks which
// contain the page. It reports whether there was a copy.
func (x *pageTree) removeCopy(t *Table, name kv.EngineHash, tier kv.Tier) bool {
	id := x.findID(name)
	if id == 0 {
		return false
	}
	p := x.entries.at(id)
	if p.refs[tier] == 0 {
		return false
	}
	if p.refs[tier]--; p.refs[tier] > 0 {
		return true
	}
	x.onTier[tier]--
	x.forEachBlockEnd(t, id, tier, func(end uint32) { t.blocks.removeCopy(t, *x.hashes.at(end), tier) })
	x.dropIfUnused(t, id)
	return true
}

// dropIfUnused drops a page which has neither copies nor followers, then each ancestor which is left without
// both.
func (x *pageTree) dropIfUnused(t *Table, id uint32) {
	for id != 0 {
		p := x.entries.at(id)
		if p.firstChild != 0 || p.refs != [tierCount]uint16{} {
			return
		}
		switch {
		case p.prevSibling != 0:
			x.entries.at(p.prevSibling).nextSibling = p.nextSibling
		case p.parent != 0:
			x.entries.at(p.parent).firstChild = p.nextSibling
		}
		if p.nextSibling != 0 {
			x.entries.at(p.nextSibling).prevSibling = p.prevSibling
		}
		if len(t.labels) > 0 && p.endsBlock(t) {
			delete(t.labels, p.seq)
		}
		t.salts.release(p.salt)
		delete(x.media, id)
		t.roots.removeRoot(*x.hashes.at(id))
		x.releaseID(id)
		id, *p = p.parent, enginePage{}
	}
}

// clearTier removes all copies from a tier without announcing it.
func (x *pageTree) clearTier(t *Table, tier kv.Tier) {
	for id := uint32(1); id <= x.maxID; id++ {
		x.entries.at(id).refs[tier] = 0
	}
	for id := uint32(1); id <= x.maxID; id++ {
		if x.entries.at(id).live {
			x.dropIfUnused(t, id)
		}
	}
	x.onTier[tier] = 0
}

func (x *pageTree) clearPages() {
	x.hashIndex.clearIndex()
	*x = pageTree{hashIndex: x.hashIndex, pageTokens: x.pageTokens}
}

func (x *pageTree) sizeBytes() int {
	return x.hashIndex.sizeBytes() + int(unsafe.Sizeof(enginePage{}))*chunkLen*len(x.entries.chunks) + 4*cap(x.tokenIDs) + 64*len(x.media)
}
