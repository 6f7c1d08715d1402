package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// window is the most blocks that a page has: as many as a mask has bits.
const window = 64

// version is a page at one moment: up to 64 consecutive blocks of one chain, and who
// holds which of them. It is never changed; the next version shares what stayed the
// same.
//
// Offsets are those of a window of 64 positions of the chain: the page's blocks are at
// start … start+n-1, and bit i of a mask is the block at offset i. Where windows lie is
// what the first event that named a block said of its position. Nothing depends on it
// being true: lookups count from the head.
//
// Somebody holds the first block and the last. Blocks between that nobody holds stay
// until they are at an end, so that those around them go on being one page.
type version struct {
	head, last kv.SeqHash // of the first block and of the last
	start, n   uint8
	// span is of how many pages, this one included, lasts has the hashes: 0, or at least minSpan.
	span  uint8
	lasts *lasts
	first group
	// hashes are those of the blocks; more than n are remains. Its array has room, and
	// is shared by versions: the writer fills it behind the end of all of them.
	hashes []kv.SeqHash
	more   *more // nil if there is one group and no pool
	// held are the blocks that a worker holds or that are in a pool. It makes the version 128
	// bytes, which begin with a cache line of all that most lookups need.
	held uint64
}

// more is what few pages have.
type more struct {
	groups []group // beside the first
	pools  []pooled
}

// group is a set of workers that hold the same blocks of a page, on the same tiers,
// with the same labels. A worker is in at most one group of a page.
type group struct {
	set    set
	device uint64 // the blocks on the tier that nearly all are on
	ext    *ext   // nil if they have nothing but that
}

// ext is what a group has beside blocks on the device.
type ext struct {
	slow   [kv.Tiers - 1]uint64 // the blocks on the other tiers
	labels []label              // ordered, each label once, masks disjoint
}

// pooled are the blocks of a page that are in a pool.
type pooled struct {
	mask uint64
	pool uint32 // its place in Index.pools
}

// upTo returns the blocks that tiers up to t have.
func (g *group) upTo(t int) uint64 {
	mask := g.device
	if g.ext != nil {
		for _, slow := range g.ext.slow[:t] {
			mask |= slow
		}
	}
	return mask
}

// any returns the blocks on any tier.
func (g *group) any() uint64 { return g.upTo(kv.Tiers - 1) }

// on returns the blocks on tier t.
func (g *group) on(t kv.Tier) uint64 {
	switch {
	case t == kv.TierDevice:
		return g.device
	case g.ext == nil:
		return 0
	}
	return g.ext.slow[t-1]
}

// same reports whether both hold the same.
func (g *group) same(o *group) bool {
	if g.device != o.device {
		return false
	}
	if g.ext == nil || o.ext == nil {
		return g.ext == o.ext
	}
	return g.ext.slow == o.ext.slow && slices.Equal(g.ext.labels, o.ext.labels)
}

// groups calls visit with each group of v.
func (v *version) groups(visit func(*group)) {
	if v.first.set.one != 0 {
		visit(&v.first)
	}
	if v.more != nil {
		for i := range v.more.groups {
			visit(&v.more.groups[i])
		}
	}
}

// pooled returns the blocks of v that are in pools.
func (v *version) pooled() []pooled {
	if v.more == nil {
		return nil
	}
	return v.more.pools
}

// of returns what worker n holds: a group without a set, empty if it holds nothing.
func (v *version) of(n uint32) group {
	var found group
	v.groups(func(g *group) {
		if g.set.has(n) {
			found = group{device: g.device, ext: g.ext}
		}
	})
	return found
}

// at returns the hash of the block at an offset.
func (v *version) at(offset int) kv.SeqHash { return v.hashes[offset-int(v.start)] }

// maskOf returns the mask of n blocks from an offset on.
func maskOf(offset, n int) uint64 {
	return ^uint64(0) >> (window - n) << offset
}

// leading returns how many blocks from an offset on are in mask.
func leading(mask uint64, offset int) int { return bits.TrailingZeros64(^(mask >> offset)) }
