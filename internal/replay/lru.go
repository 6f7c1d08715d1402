package replay

import (
	"math/bits"

	"penstock/core/kv"
)

// lruCache is a set of blocks which evicts the least recently used. A prompt's blocks are added from the last
// to the first, so that a block is always newer than its successors: eviction removes the ends of prefixes,
// and a prefix is cached up to its first missing block.
//
// It tracks at most maxBlocks blocks. Beyond that it keeps half of them, the ones whose hash has one more
// leading zero, and half the capacity. The counts of such a sample, times the same power of two, estimate the
// counts of all blocks (Waldspurger and others, "Efficient MRC construction with SHARDS", 2015). A block
// takes 16 bytes, and 5 to 11 in the table.
type lru struct {
	capacity int // of the sample; 0 is no bound
	most     int
	skip     int // leading zeros of the hashes in the sample

	nodes []lruNode // nodes[0] is the ring's head: next is the newest, prev the oldest
	table []uint32  // open addressing with linear probing; 0 is empty
}

type lruNode struct {
	hash       kv.SeqHash
	prev, next uint32
}

func newLRU(capacity, most int) *lru {
	return &lru{capacity: capacity, most: most, nodes: make([]lruNode, 1), table: make([]uint32, 1<<10)}
}

// blockCount returns the number of cached blocks, scaled up from the sample.
func (l *lru) size() int { return (len(l.nodes) - 1) << l.skip }

// isSampled reports whether a block belongs to the sample.
func (l *lru) sampled(h kv.SeqHash) bool { return bits.LeadingZeros64(uint64(h)) >= l.skip }

// countHits returns how many blocks of a prefix are cached. With a sample it is the length of the prefix
// minus the scaled-up misses, which can be negative for one prompt: misses are spread over many blocks, while
// hits are of a few popular ones which the sample has or lacks.
func (l *lru) hits(chain []kv.SeqHash) int {
	for i, h := range chain {
		if l.sampled(h) && l.table[l.find(h)] == 0 {
			return len(chain) - l.members(chain[i:])<<l.skip
		}
	}
	return len(chain)
}

// countSampled returns how many blocks belong to the sample.
func (l *lru) members(chain []kv.SeqHash) int {
	if l.skip == 0 {
		return len(chain)
	}
	n := 0
	for _, h := range chain {
		if l.sampled(h) {
			n++
		}
	}
	return n
}

// addPrompt makes the blocks of a prompt the newest.
func (l *lru) put(chain []kv.SeqHash) {
	for i := len(chain) - 1; i >= 0; i-- {
		if l.sampled(chain[i]) {
			l.touch(chain[i])
		}
	}
}

func (l *lru) touch(h kv.SeqHash) {
	slot := l.find(h)
	if n := l.table[slot]; n != 0 {
		l.unlink(n)
		l.link(n)
		return
	}
	if l.capacity > 0 && len(l.nodes)-1 >= l.capacity {
		n := l.nodes[0].prev
		l.unlink(n)
		l.forget(l.nodes[n].hash)
		l.nodes[n].hash = h
		l.table[l.find(h)] = n
		l.link(n)
		return
	}
	if len(l.nodes)-1 >= l.most {
		l.thin()
		if l.sampled(h) {
			l.touch(h)
		}
		return
	}
	if 4*len(l.nodes) > 3*len(l.table) {
		l.grow()
		slot = l.find(h)
	}
	n := uint32(len(l.nodes))
	l.nodes = append(l.nodes, lruNode{hash: h})
	l.table[slot] = n
	l.link(n)
}

// halveSample keeps half of the blocks.
func (l *lru) thin() {
	half := newLRU(l.capacity/2, l.most)
	half.skip = l.skip + 1
	if l.capacity == 1 {
		half.capacity = 1
	}
	l.copyTo(half)
	*l = *half
}

// cloneWithCapacity returns a cache of another capacity with the newest blocks.
func (l *lru) clone(capacity int) *lru {
	out := newLRU(max(capacity>>l.skip, 1), l.most)
	out.skip = l.skip
	l.copyTo(out)
	return out
}

// copyTo adds the blocks to o, from the oldest to the newest.
func (l *lru) copyTo(o *lru) {
	for n := l.nodes[0].prev; n != 0; n = l.nodes[n].prev {
		if h := l.nodes[n].hash; o.sampled(h) {
			o.touch(h)
		}
	}
}

func (l *lru) unlink(n uint32) {
	node := &l.nodes[n]
	l.nodes[node.prev].next = node.next
	l.nodes[node.next].prev = node.prev
}

// linkNewest makes a node the newest.
func (l *lru) link(n uint32) {
	head := &l.nodes[0]
	l.nodes[n].prev, l.nodes[n].next = 0, head.next
	l.nodes[head.next].prev = n
	l.nodes[0].next = n
}

// homeSlot returns the first slot to probe for a hash. It uses the low bits, since the leading bits select
// the sample.
func (l *lru) home(h kv.SeqHash) int { return int(uint64(h) & uint64(len(l.table)-1)) }

// findSlot returns the slot of a hash, or the empty slot where it belongs.
func (l *lru) find(h kv.SeqHash) int {
	at := l.home(h)
	for l.table[at] != 0 && l.nodes[l.table[at]].hash != h {
		at = (at + 1) & (len(l.table) - 1)
	}
	return at
}

// removeHash removes a hash from the table and shifts its successors up, so that no probe sequence is broken.
func (l *lru) forget(h kv.SeqHash) {
	mask := len(l.table) - 1
	hole := l.find(h)
	for at := (hole + 1) & mask; l.table[at] != 0; at = (at + 1) & mask {
		home := l.home(l.nodes[l.table[at]].hash)
		if (at-home)&mask >= (at-hole)&mask {
			l.table[hole] = l.table[at]
			hole = at
		}
	}
	l.table[hole] = 0
}

func (l *lru) grow() {
	l.table = make([]uint32, 2*len(l.table))
	for n := 1; n < len(l.nodes); n++ {
		l.table[l.find(l.nodes[n].hash)] = uint32(n)
	}
}
