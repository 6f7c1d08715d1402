package paged

import (
	"slices"

	"penstock/core/kv"
)

// none stands for no block.
const none = -1

// state is what a physical block is.
type state uint8

const (
	free       state = iota // empty, in the free list
	private                 // held, and not in the index
	registered              // in the index; if nobody holds it, in the order of disuse
)

// block is what the pool knows of one physical block.
type block struct {
	// Of a registered block: its names and its place in its sequence.
	seq    kv.SeqHash
	hash   kv.BlockHash
	parent int32 // the registered block before it, none for the first
	index  uint32

	refs       int32 // sequences that hold it
	prev, next int32 // in the order of disuse; next also links the free list
	state      state
	noted      bool // pool.notes has more of its content
}

// note is what few blocks have: media, and of a sequence's first block the salt.
type note struct {
	salt  kv.Salt
	media []kv.Media // those that show in the block
}

// content is what a full block holds and after what. Two blocks of equal content
// hold equal K and V.
type content struct {
	seq    kv.SeqHash
	hash   kv.BlockHash
	parent int32 // the registered block before it, none for the first
	index  uint32
	after  kv.SeqHash // parent's name, if any
	tokens []kv.Token
	start  int        // position of tokens[0]
	media  []kv.Media // of the whole sequence
	salt   kv.Salt
}

// pool owns the physical blocks: which are free, held or cached, and the index of
// those that can be reused.
type pool struct {
	capacity int
	size     int // tokens per block

	blocks []block    // of the physical blocks used so far
	tokens []kv.Token // size per block; of registered ones only
	notes  map[int32]note
	index  map[kv.SeqHash]int32

	vacant         int32 // head of the list of free blocks below len(blocks)
	oldest, newest int32 // ends of the order of disuse
	used           int   // blocks held
	cached         int   // blocks in the order of disuse

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

// available is the number of blocks that take can give.
func (p *pool) available() int { return p.capacity - p.used }

// take returns an empty block, held once, evicting the block out of use for the
// longest time if there is no other way. Something must be available.
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

// hold adds a holder to a block that has some or is cached.
func (p *pool) hold(b int32) {
	blk := &p.blocks[b]
	if blk.refs == 0 {
		p.unlink(b)
		p.used++
	}
	blk.refs++
}

// drop takes a holder from b. Without holders a registered block stays for reuse
// and any other is free.
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

// find returns the registered block that has exactly this content. The name
// alone proves nothing; together with the identity of the block before, which was
// compared the same way, equal tokens, media and salt do.
func (p *pool) find(c *content) (b int32, ok bool) {
	b, ok = p.index[c.seq]
	return b, ok && p.holds(b, c)
}

// register puts the private block b into the index under c, unless the name is
// taken. It returns the block to use from now on: b, or the one that has the same
// content already. If the name belongs to other content, it returns ok false and
// b stays private.
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

// holds reports whether the registered block b has content c.
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

// write keeps what holds compares.
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

// evict empties a cached block.
func (p *pool) evict(b int32) {
	p.unlink(b)
	p.unregister(b)
	p.log.removed(p.blocks[b].seq)
	p.evictions++
}

// unregister takes b out of the index; it keeps its holders.
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

// release puts a block that nobody holds into the free list.
func (p *pool) release(b int32) {
	p.blocks[b].state = free
	p.blocks[b].next = p.vacant
	p.vacant = b
}

// link makes b the most recently used of the cached blocks.
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

// unlink takes b out of the order of disuse.
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
