package paged

import (
	"slices"

	"penstock/core/kv"
)

// noBlock stands for no block.
const noBlock = -1

// blockState is the state of a physical block.
type blockState uint8

const (
	stateFree       blockState = iota // empty, in the free list
	statePrivate                      // held, and not in the index
	stateRegistered                   // in the index, and in the LRU list if it has no holder
)

// physicalBlock is the state of one physical block.
type physicalBlock struct {
	// For a registered block: its hashes and its position in its sequence.
	seq    kv.SeqHash
	hash   kv.BlockHash
	parent int32 // the registered block before it, noBlock for the first
	index  uint32

	refs       int32 // sequences which hold it
	prev, next int32 // in the LRU list; next also links the free list
	state      blockState
	hasExtra   bool // blockPool.extras has the rest of its content
}

// extraContent is content which few blocks have: media, and, for a sequence's first block, the salt.
type extraContent struct {
	salt  kv.Salt
	media []kv.Media // which overlap the block
}

// blockContent is the content of a full block with its predecessor. Blocks of equal content hold equal K
// and V.
type blockContent struct {
	seq       kv.SeqHash
	hash      kv.BlockHash
	parent    int32 // the registered block before it, noBlock for the first
	index     uint32
	parentSeq kv.SeqHash // parent's prefix hash, if any
	tokens    []kv.Token
	start     int        // position of tokens[0]
	media     []kv.Media // of the whole sequence
	salt      kv.Salt
}

// blockPool owns the physical blocks: which are free, held or cached, and the index of reusable ones.
type blockPool struct {
	capacity  int
	blockSize int // tokens per block

	blocks []physicalBlock // the physical blocks used so far
	tokens []kv.Token      // size per block; valid for registered ones only
	extras map[int32]extraContent
	index  map[kv.SeqHash]int32

	freeList       int32 // head of the list of free blocks below len(blocks)
	oldest, newest int32 // ends of the LRU list
	used           int   // blocks held
	cached         int   // blocks in the LRU list

	log        eventLog
	observer   BlockObserver
	evictions  uint64
	collisions uint64
}

func newPool(cfg Config) blockPool {
	return blockPool{
		capacity:  cfg.Blocks,
		blockSize: cfg.BlockSize,
		freeList:  noBlock,
		oldest:    noBlock,
		newest:    noBlock,
		log:       newEventLog(cfg.Blocks),
		observer:  cfg.Observer,
	}
}

// availableBlocks is the number of blocks which takeBlock can return.
func (p *blockPool) availableBlocks() int { return p.capacity - p.used }

// takeBlock returns an empty block with one holder. If there is no other way it evicts the least recently
// used block. A block must be available.
func (p *blockPool) takeBlock() int32 {
	b := p.freeList
	switch {
	case b != noBlock:
		p.freeList = p.blocks[b].next
	case len(p.blocks) < p.capacity:
		b = int32(len(p.blocks))
		p.blocks = append(p.blocks, physicalBlock{})
	default:
		b = p.oldest
		p.evictBlock(b)
	}
	p.blocks[b] = physicalBlock{state: statePrivate, refs: 1, parent: noBlock, prev: noBlock, next: noBlock}
	p.used++
	return b
}

// holdBlock adds a holder to a block which is held or cached.
func (p *blockPool) holdBlock(b int32) {
	blk := &p.blocks[b]
	if blk.refs == 0 {
		p.removeCached(b)
		p.used++
	}
	blk.refs++
}

// dropHolder removes a holder from b. Without holders a registered block stays cached and any other is
// freed.
func (p *blockPool) dropHolder(b int32) {
	blk := &p.blocks[b]
	blk.refs--
	if blk.refs > 0 {
		return
	}
	p.used--
	if blk.state == stateRegistered {
		p.pushCached(b)
		return
	}
	p.freeBlock(b)
}

// findBlock returns the registered block with exactly this content. The hash alone proves nothing. Equal
// tokens, media and salt after the same previous block, which was compared the same way, do.
func (p *blockPool) findBlock(c *blockContent) (b int32, ok bool) {
	b, ok = p.index[c.seq]
	return b, ok && p.hasContent(b, c)
}

// registerBlock adds the private block b to the index under c, unless the hash is taken. It returns the
// block to use from now on: b, or the block which has the same content already. If the hash belongs to
// other content, ok is false and b stays private.
func (p *blockPool) registerBlock(b int32, c *blockContent) (own int32, ok bool) {
	if other, taken := p.index[c.seq]; taken {
		if p.hasContent(other, c) {
			return other, true
		}
		p.collisions++
		return b, false
	}
	blk := &p.blocks[b]
	blk.state, blk.seq, blk.hash, blk.parent, blk.index = stateRegistered, c.seq, c.hash, c.parent, c.index
	if p.index == nil {
		p.index = map[kv.SeqHash]int32{}
	}
	p.index[c.seq] = b
	p.storeContent(b, c)
	p.log.logStored(c)
	if p.observer != nil {
		p.observer.BlockRegistered(b, c.parent, c.describe())
	}
	return b, true
}

// hasContent reports whether the registered block b has content c.
func (p *blockPool) hasContent(b int32, c *blockContent) bool {
	blk := &p.blocks[b]
	if blk.parent != c.parent || blk.index != c.index || !slices.Equal(p.blockTokens(b), c.tokens) {
		return false
	}
	if !blk.hasExtra {
		return (c.parent != noBlock || c.salt == kv.Salt{}) && !c.hasMedia()
	}
	n := p.extras[b]
	return (c.parent != noBlock || n.salt == c.salt) && c.showsExactly(n.media)
}

// storeContent stores what hasContent compares.
func (p *blockPool) storeContent(b int32, c *blockContent) {
	if need := (int(b) + 1) * p.blockSize; len(p.tokens) < need {
		p.tokens = slices.Grow(p.tokens, need-len(p.tokens))[:need]
	}
	copy(p.blockTokens(b), c.tokens)
	var n extraContent
	if c.parent == noBlock {
		n.salt = c.salt
	}
	n.media = c.shownMedia()
	if (n.salt == kv.Salt{}) && n.media == nil {
		return
	}
	if p.extras == nil {
		p.extras = map[int32]extraContent{}
	}
	p.extras[b] = n
	p.blocks[b].hasExtra = true
}

func (p *blockPool) blockTokens(b int32) []kv.Token {
	return p.tokens[int(b)*p.blockSize : (int(b)+1)*p.blockSize]
}

// evictBlock empties a cached block.
func (p *blockPool) evictBlock(b int32) {
	p.removeCached(b)
	p.unregisterBlock(b)
	p.log.logRemoved(p.blocks[b].seq)
	p.evictions++
}

// unregisterBlock removes b from the index; b keeps its holders.
func (p *blockPool) unregisterBlock(b int32) {
	blk := &p.blocks[b]
	delete(p.index, blk.seq)
	if blk.hasExtra {
		delete(p.extras, b)
		blk.hasExtra = false
	}
	blk.state = statePrivate
	blk.parent = noBlock
}

// freeBlock puts a block without holders into the free list.
func (p *blockPool) freeBlock(b int32) {
	p.blocks[b].state = stateFree
	p.blocks[b].next = p.freeList
	p.freeList = b
}

// pushCached makes b the most recently used of the cached blocks.
func (p *blockPool) pushCached(b int32) {
	blk := &p.blocks[b]
	blk.prev, blk.next = p.newest, noBlock
	if p.newest == noBlock {
		p.oldest = b
	} else {
		p.blocks[p.newest].next = b
	}
	p.newest = b
	p.cached++
}

// removeCached removes b from the LRU list.
func (p *blockPool) removeCached(b int32) {
	blk := &p.blocks[b]
	if blk.prev == noBlock {
		p.oldest = blk.next
	} else {
		p.blocks[blk.prev].next = blk.next
	}
	if blk.next == noBlock {
		p.newest = blk.prev
	} else {
		p.blocks[blk.next].prev = blk.prev
	}
	blk.prev, blk.next = noBlock, noBlock
	p.cached--
}

// A block's hash covers only the content of its media. K and V also depend on which row of an object each
// position shows, so blocks compare the ranges too: the same image at another offset is other content.

// overlapsMedia reports whether m overlaps the block.
func (c *blockContent) overlapsMedia(m kv.Media) bool {
	return m.Start < c.start+len(c.tokens) && m.End > c.start
}

func (c *blockContent) hasMedia() bool {
	for _, m := range c.media {
		if c.overlapsMedia(m) {
			return true
		}
	}
	return false
}

// shownMedia returns the media which overlap the block; nil if there are none.
func (c *blockContent) shownMedia() []kv.Media {
	var shown []kv.Media
	for _, m := range c.media {
		if c.overlapsMedia(m) {
			shown = append(shown, m)
		}
	}
	return shown
}

// showsExactly reports whether media are exactly the media which overlap the block.
func (c *blockContent) showsExactly(media []kv.Media) bool {
	n := 0
	for _, m := range c.media {
		if !c.overlapsMedia(m) {
			continue
		}
		if n == len(media) || media[n] != m {
			return false
		}
		n++
	}
	return n == len(media)
}
