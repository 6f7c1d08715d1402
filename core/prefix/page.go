package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// window is the maximum number of blocks in a page: the number of bits in a mask.
const window = 64

// pageVersion is a page at one moment: up to 64 consecutive blocks of one chain, and which workers hold which
// of them. It is never changed; the next version shares what stayed the same.
//
// Offsets are within a window of 64 positions of the chain: the page's blocks are at start … start+n-1, and
// bit i of a mask is the block at offset i. The position of a window comes from the first event with one of
// its blocks. Nothing depends on its being true: lookups count from the head.
//
// The first and the last block have holders. Blocks without holders between them stay until they are at an
// end, so that the blocks around them remain one page.
type pageVersion struct {
	head, last   kv.SeqHash // hashes of the first and the last block
	start, count uint8
	// span is the number of pages, including this one, whose hashes lasts has: 0, or at least minSpan.
	span       uint8
	lasts      *lastHashes
	firstGroup holderGroup
	// hashes are the hashes of the blocks; elements after the first n are leftovers. Versions share its
	// array, which has spare room: the writer fills it after the end of all of them.
	hashes []kv.SeqHash
	more   *extraHolders // nil if there is one group and no pool
	// heldMask are the blocks which a worker holds or which are in a pool. With it a version takes 128 bytes,
	// which begin with a cache line of everything that most lookups need.
	heldMask uint64
}

// extraHolders is what few pages have.
type extraHolders struct {
	groups []holderGroup // in addition to the first
	pools  []pooledBlocks
}

// holderGroup is a set of workers which hold the same blocks of a page, on the same tiers, with the same
// labels. A worker is in at most one group of a page.
type holderGroup struct {
	set    numberSet
	device uint64    // blocks on the device
	ext    *groupExt // nil if they have blocks on the device only
}

// groupExt is what a group has in addition to blocks on the device.
type groupExt struct {
	slow   [kv.Tiers - 1]uint64 // the blocks on the other tiers
	labels []blockLabels        // ordered, each label once, masks disjoint
}

// pooledBlocks are the blocks of a page which are in a pool.
type pooledBlocks struct {
	mask   uint64
	labels []blockLabels // as in groupExt
	pool   uint32        // index in Index.pools
}

// upToTier returns the blocks which tiers up to t have.
func (g *holderGroup) upToTier(t int) uint64 {
	mask := g.device
	if g.ext != nil {
		for _, slow := range g.ext.slow[:t] {
			mask |= slow
		}
	}
	return mask
}

// onAnyTier returns the blocks on any tier.
func (g *holderGroup) onAnyTier() uint64 { return g.upToTier(kv.Tiers - 1) }

// onTier returns the blocks on tier t.
func (g *holderGroup) onTier(t kv.Tier) uint64 {
	switch {
	case t == kv.TierDevice:
		return g.device
	case g.ext == nil:
		return 0
	}
	return g.ext.slow[t-1]
}

// holdsSame reports whether g and o hold the same blocks.
func (g *holderGroup) holdsSame(o *holderGroup) bool {
	if g.device != o.device {
		return false
	}
	if g.ext == nil || o.ext == nil {
		return g.ext == o.ext
	}
	return g.ext.slow == o.ext.slow && slices.Equal(g.ext.labels, o.ext.labels)
}

// eachGroup calls visit with each group of v.
func (v *pageVersion) eachGroup(visit func(*holderGroup)) {
	if v.firstGroup.set.one != 0 {
		visit(&v.firstGroup)
	}
	if v.more != nil {
		for i := range v.more.groups {
			visit(&v.more.groups[i])
		}
	}
}

// pools returns the blocks of v which are in pools.
func (v *pageVersion) pools() []pooledBlocks {
	if v.more == nil {
		return nil
	}
	return v.more.pools
}

// holdingsOf returns what worker n holds: a group without a set, empty if it holds nothing.
func (v *pageVersion) holdingsOf(n uint32) holderGroup {
	var found holderGroup
	v.eachGroup(func(g *holderGroup) {
		if g.set.contains(n) {
			found = holderGroup{device: g.device, ext: g.ext}
		}
	})
	return found
}

// hashAt returns the hash of the block at an offset.
func (v *pageVersion) hashAt(offset int) kv.SeqHash { return v.hashes[offset-int(v.start)] }

// maskOf returns the mask of n blocks from an offset on.
func maskOf(offset, n int) uint64 {
	return ^uint64(0) >> (window - n) << offset
}

// leadingBlocks returns how many blocks from an offset on are in mask.
func leadingBlocks(mask uint64, offset int) int { return bits.TrailingZeros64(^(mask >> offset)) }
