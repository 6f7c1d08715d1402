package paged

import (
	"slices"

	"penstock/core/kv"
)

// noBlock stands for no block.
const none = -1

// blockState is the state of a physical block.
type state uint8

const (
	free       state = iota // empty, in the free list
	private                 // held, and not in the index
	registered              // in the index, and in the LRU list if it has no holder
)

// physicalBlock is the state of one physical block.
type block struct {
	// For a registered block: its hashes and its position in its sequence.
	seq    kv.SeqHash
	hash   kv.BlockHash
	parent int32 // the registered block before it, noBlock for the first
	index  uint32

	refs       int32 // sequences which hold it
	prev, next int32 // in the LRU list; next also links the free list
	state      state
	noted      bool // blockPool.extras has the rest of its content
}

// extraContent is content which few blocks have: media, and, for a sequence's first block, the salt.
type note struct {
	salt  kv.Salt
	media []kv.Media // which overlap the block
}

// blockContent is the content of a full block with its predecessor. Blocks of equal content hold equal K
// and V.
type content struct {
	seq    kv.SeqHash
	hash   kv.BlockHash
	parent int32 // the registered block before it, noBlock for the first
	index  uint32
	after  kv.SeqHash // parent's prefix hash, if any
	tokens []kv.Token
	start  int        // position of tokens[0]
	media  []kv.Media // of the whole sequence
	salt   kv.Salt
}

// blockPool owns the physical blocks: which are free, held or cached, and the index of reusable ones.
type pool struct {
	capacity int
	size     int // tokens per block

	blocks []block    // the physical blocks used so far
	tokens []kv.Token // size per block; valid for registered ones only
	notes  map[int32]note
	index  map[kv.SeqHash]int32

	vacant         int32 // head of the list of free blocks below len(blocks)
	oldest, newest int32 // ends of the LRU list
	used           int   // blocks held
	cached         int   // blocks in the LRU list

	log        log
	evictions  uint64
	collisions uint64
}

func newPool(cfg Config) pool {
	return pool{
		capacity: cfg.Blocks,
		size:     cfg.BlockSize,
		vacant:   none,
		oldest:   none,
		newest:   none,
		log:      newLog(cfg.Blocks),
	}
}

// availableBlocks is the number of blocks which takeBlock can return.
func (p *pool) available() int { return p.capacity - p.used }

// takeBlock returns an empty block with one holder. If there is no other way it evicts the least recently
// used block. A block must be available.
func (p *pool) take() int32 {
	b := p.vacant
	switch {
	case b != none:
		p.vacant = p.blocks[b].next
	case len(p.blocks) < p.capacity:
		b = int32(len(p.blocks))
		p.blocks = append(p.blocks, block{})
	default:
		b = p.oldest
		p.evict(b)
	}
	p.blocks[b] = block{state: private, refs: 1, parent: none, prev: none, next: none}
	p.used++
	return b
}

// holdBlock adds a holder to a block which is held or cached.
func (p *pool) hold(b int32) {
	blk := &p.blocks[b]
	if blk.refs == 0 {
		p.unlink(b)
		p.used++
	}
	blk.refs++
}

// dropHolder removes a holder from b. Without holders a registered block stays cached and any other is
// freed.
func (p *pool) drop(b int32) {
	blk := &p.blocks[b]
	blk.refs--
	if blk.refs > 0 {
		return
	}
	p.used--
	if blk.state == registered {
		p.link(b)
		return
	}
	p.release(b)
}

// findBlock returns the registered block with exactly this content. The hash alone proves nothing. Equal
// tokens, media and salt after the same previous block, which was compared the same way, do.
func (p *pool) find(c *content) (b int32, ok bool) {
	b, ok = p.index[c.seq]
	return b, ok && p.holds(b, c)
}

// registerBlock adds the private block b to the index under c, unless the hash is taken. It returns the
// block to use from now on: b, or the block which has the same content already. If the hash belongs to
// other content, ok is false and b stays private.
func (p *pool) register(b int32, c *content) (own int32, ok bool) {
	if other, taken := p.index[c.seq]; taken {
		if p.holds(other, c) {
			return other, true
		}
		p.collisions++
		return b, false
	}
	blk := &p.blocks[b]
	blk.state, blk.seq, blk.hash, blk.parent, blk.index = registered, c.seq, c.hash, c.parent, c.index
	if p.index == nil {
		p.index = map[kv.SeqHash]int32{}
	}
	p.index[c.seq] = b
	p.write(b, c)
	p.log.stored(c)
	return b, true
}

// hasContent reports whether the registered block b has content c.
func (p *pool) holds(b int32, c *content) bool {
	blk := &p.blocks[b]
	if blk.parent != c.parent || blk.index != c.index || !slices.Equal(p.tokensOf(b), c.tokens) {
		return false
	}
	if !blk.noted {
		return (c.parent != none || c.salt == kv.Salt{}) && !c.hasMedia()
	}
	n := p.notes[b]
	return (c.parent != none || n.salt == c.salt) && c.shows(n.media)
}

// storeContent stores what hasContent compares.
func (p *pool) write(b int32, c *content) {
	if need := (int(b) + 1) * p.size; len(p.tokens) < need {
		p.tokens = slices.Grow(p.tokens, need-len(p.tokens))[:need]
	}
	copy(p.tokensOf(b), c.tokens)
	var n note
	if c.parent == none {
		n.salt = c.salt
	}
	n.media = c.shown()
	if (n.salt == kv.Salt{}) && n.media == nil {
		return
	}
	if p.notes == nil {
		p.notes = map[int32]note{}
	}
	p.notes[b] = n
	p.blocks[b].noted = true
}

func (p *pool) tokensOf(b int32) []kv.Token {
	return p.tokens[int(b)*p.size : (int(b)+1)*p.size]
}

// evictBlock empties a cached block.
func (p *pool) evict(b int32) {
	p.unlink(b)
	p.unregister(b)
	p.log.removed(p.blocks[b].seq)
	p.evictions++
}

// unregisterBlock removes b from the index; b keeps its holders.
func (p *pool) unregister(b int32) {
	blk := &p.blocks[b]
	delete(p.index, blk.seq)
	if blk.noted {
		delete(p.notes, b)
		blk.noted = false
	}
	blk.state = private
	blk.parent = none
}

// freeBlock puts a block without holders into the free list.
func (p *pool) release(b int32) {
	p.blocks[b].state = free
	p.blocks[b].next = p.vacant
	p.vacant = b
}

// pushCached makes b the most recently used of the cached blocks.
func (p *pool) link(b int32) {
	blk := &p.blocks[b]
	blk.prev, blk.next = p.newest, none
	if p.newest == none {
		p.oldest = b
	} else {
		p.blocks[p.newest].next = b
	}
	p.newest = b
	p.cached++
}

// removeCached removes b from the LRU list.
func (p *pool) unlink(b int32) {
	blk := &p.blocks[b]
	if blk.prev == none {
		p.oldest = blk.next
	} else {
		p.blocks[blk.prev].next = blk.next
	}
	if blk.next == none {
		p.newest = blk.prev
	} else {
		p.blocks[blk.next].prev = blk.prev
	}
	blk.prev, blk.next = none, none
	p.cached--
}
