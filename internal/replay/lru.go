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
type lruCache struct {
	capacity   int // of the sample; 0 is no bound
	maxBlocks  int
	sampleBits int // leading zeros of the hashes in the sample

	nodes []lruNode // nodes[0] is the ring's head: next is the newest, prev the oldest
	table []uint32  // open addressing with linear probing; 0 is empty
}

type lruNode struct {
	hash       kv.SeqHash
	prev, next uint32
}

func newLRUCache(capacity, most int) *lruCache {
	return &lruCache{capacity: capacity, maxBlocks: most, nodes: make([]lruNode, 1), table: make([]uint32, 1<<10)}
}

// blockCount returns the number of cached blocks, scaled up from the sample.
func (l *lruCache) blockCount() int { return (len(l.nodes) - 1) << l.sampleBits }

// isSampled reports whether a block belongs to the sample.
func (l *lruCache) isSampled(h kv.SeqHash) bool {
	return bits.LeadingZeros64(uint64(h)) >= l.sampleBits
}

// countHits returns how many blocks of a prefix are cached. With a sample it is the length of the prefix
// minus the scaled-up misses, which can be negative for one prompt: misses are spread over many blocks, while
// hits are of a few popular ones which the sample has or lacks.
func (l *lruCache) countHits(chain []kv.SeqHash) int {
	for i, h := range chain {
		if l.isSampled(h) && l.table[l.findSlot(h)] == 0 {
			return len(chain) - l.countSampled(chain[i:])<<l.sampleBits
		}
	}
	return len(chain)
}

// countSampled returns how many blocks belong to the sample.
func (l *lruCache) countSampled(chain []kv.SeqHash) int {
	if l.sampleBits == 0 {
		return len(chain)
	}
	n := 0
	for _, h := range chain {
		if l.isSampled(h) {
			n++
		}
	}
	return n
}

// addPrompt makes the blocks of a prompt the newest.
func (l *lruCache) addPrompt(chain []kv.SeqHash) {
	for i := len(chain) - 1; i >= 0; i-- {
		if l.isSampled(chain[i]) {
			l.touchBlock(chain[i])
		}
	}
}

func (l *lruCache) touchBlock(h kv.SeqHash) {
	slot := l.findSlot(h)
	if n := l.table[slot]; n != 0 {
		l.unlinkNode(n)
		l.linkNewest(n)
		return
	}
	if l.capacity > 0 && len(l.nodes)-1 >= l.capacity {
		n := l.nodes[0].prev
		l.unlinkNode(n)
		l.removeHash(l.nodes[n].hash)
		l.nodes[n].hash = h
		l.table[l.findSlot(h)] = n
		l.linkNewest(n)
		return
	}
	if len(l.nodes)-1 >= l.maxBlocks {
		l.halveSample()
		if l.isSampled(h) {
			l.touchBlock(h)
		}
		return
	}
	if 4*len(l.nodes) > 3*len(l.table) {
		l.growTable()
		slot = l.findSlot(h)
	}
	n := uint32(len(l.nodes))
	l.nodes = append(l.nodes, lruNode{hash: h})
	l.table[slot] = n
	l.linkNewest(n)
}

// halveSample keeps half of the blocks.
func (l *lruCache) halveSample() {
	half := newLRUCache(l.capacity/2, l.maxBlocks)
	half.sampleBits = l.sampleBits + 1
	if l.capacity == 1 {
		half.capacity = 1
	}
	l.copyTo(half)
	*l = *half
}

// cloneWithCapacity returns a cache of another capacity with the newest blocks.
func (l *lruCache) cloneWithCapacity(capacity int) *lruCache {
	out := newLRUCache(max(capacity>>l.sampleBits, 1), l.maxBlocks)
	out.sampleBits = l.sampleBits
	l.copyTo(out)
	return out
}

// copyTo adds the blocks to o, from the oldest to the newest.
func (l *lruCache) copyTo(o *lruCache) {
	for n := l.nodes[0].prev; n != 0; n = l.nodes[n].prev {
		if h := l.nodes[n].hash; o.isSampled(h) {
			o.touchBlock(h)
		}
	}
}

func (l *lruCache) unlinkNode(n uint32) {
	node := &l.nodes[n]
	l.nodes[node.prev].next = node.next
	l.nodes[node.next].prev = node.prev
}

// linkNewest makes a node the newest.
func (l *lruCache) linkNewest(n uint32) {
	head := &l.nodes[0]
	l.nodes[n].prev, l.nodes[n].next = 0, head.next
	l.nodes[head.next].prev = n
	l.nodes[0].next = n
}

// homeSlot returns the first slot to probe for a hash. It uses the low bits, since the leading bits select
// the sample.
func (l *lruCache) homeSlot(h kv.SeqHash) int { return int(uint64(h) & uint64(len(l.table)-1)) }

// findSlot returns the slot of a hash, or the empty slot where it belongs.
func (l *lruCache) findSlot(h kv.SeqHash) int {
	at := l.homeSlot(h)
	for l.table[at] != 0 && l.nodes[l.table[at]].hash != h {
		at = (at + 1) & (len(l.table) - 1)
	}
	return at
}

// removeHash removes a hash from the table and shifts its successors up, so that no probe sequence is broken.
func (l *lruCache) removeHash(h kv.SeqHash) {
	mask := len(l.table) - 1
	hole := l.findSlot(h)
	for at := (hole + 1) & mask; l.table[at] != 0; at = (at + 1) & mask {
		home := l.homeSlot(l.nodes[l.table[at]].hash)
		if (at-home)&mask >= (at-hole)&mask {
			l.table[hole] = l.table[at]
			hole = at
		}
	}
	l.table[hole] = 0
}

func (l *lruCache) growTable() {
	l.table = make([]uint32, 2*len(l.table))
	for n := 1; n < len(l.nodes); n++ {
		l.table[l.findSlot(l.nodes[n].hash)] = uint32(n)
	}
}
