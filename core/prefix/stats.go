package prefix

import (
	"cmp"
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// Counts are totals since the index was created, in blocks except where noted.
type Counts struct {
	Stored     uint64 // new to the worker's tier
	Duplicates uint64 // stored again while held
	Removed    uint64
	Unknown    uint64 // removed while not held
	Refused    uint64 // beyond Config.MaxBlocks or Config.MaxBytes
	Orphans    uint64 // Stored events whose parent the worker did not hold
	Clears     uint64 // Cleared events
}

// Stats describes an index at one moment.
type Stats struct {
	Workers int // including workers without blocks
	Hidden  int // number of them which are hidden
	Blocks  int // distinct prefixes held by any worker or in any pool
	Entries int // pairs of worker and prefix
	Pools   int // shares of pools, including empty ones
	Pooled  int // pairs of pool and prefix
	Pages   int // runs of up to 64 blocks of one chain
	Ghosts  int // prefixes without holders, kept within pages
	Bytes   int // memory, as allocations are rounded; an empty index counts as nothing
	Counts  Counts
}

// sizeCounts are the sizes which the writer counts.
type sizeCounts struct {
	blocks, slots int // slots are blocks and ghosts
	entries       int
	onTier        [kv.Tiers]int // entries by tier
	pooled        int
	pages         int // bytes of versions
}

// addHolder counts the holdings of one more worker of a page; removeHolder the holdings of one fewer.
func (s *sizeCounts) addHolder(g *holderGroup)    { s.countEntries(g, 1) }
func (s *sizeCounts) removeHolder(g *holderGroup) { s.countEntries(g, -1) }

func (s *sizeCounts) countEntries(g *holderGroup, by int) {
	s.entries += by * bits.OnesCount64(g.onAnyTier())
	for t := range kv.Tier(kv.Tiers) {
		s.onTier[t] += by * bits.OnesCount64(g.onTier(t))
	}
}

// replaceVersion counts the replacement of a page's version; nil is none.
func (s *sizeCounts) replaceVersion(old, v *pageVersion) {
	s.countVersion(old, -1)
	s.countVersion(v, 1)
}

func (s *sizeCounts) countVersion(v *pageVersion, by int) {
	if v != nil {
		s.blocks += by * bits.OnesCount64(v.heldMask)
		s.slots += by * int(v.count)
		s.pages += by * v.memoryBytes()
	}
}

// Counts returns the totals of the index; it is cheaper than Stats, so that callers can compare them before
// and after every record.
func (x *Index) Counts() Counts { return x.counts }

// Stats returns the sizes and totals of the index.
func (x *Index) Stats() Stats {
	s := Stats{
		Workers: len(x.numbers),
		Blocks:  x.sizes.blocks,
		Entries: x.sizes.entries,
		Pools:   len(x.poolNumbers),
		Pooled:  x.sizes.pooled,
		Pages:   x.pages.live,
		Ghosts:  x.sizes.slots - x.sizes.blocks,
		Bytes:   x.memoryBytes(),
		Counts:  x.counts,
	}
	for i := range x.workers {
		if w := &x.workers[i]; w.known {
			s.Bytes += workerBytes + w.pages.memoryBytes()
			if w.hidden {
				s.Hidden++
			}
		}
	}
	for i := range x.pools {
		if p := &x.pools[i]; p.known {
			s.Bytes += poolBytes + p.pages.memoryBytes() + allocBytes(16*len(p.access))
		}
	}
	return s
}

// The memory of a worker and a pool in addition to the pages: its struct, its entry in the map with spare
// room, and its entry in the view.
const (
	workerBytes = 64 + 48 + 32
	poolBytes   = 80 + 32 + 48
)

// memoryBytes returns the memory of pages and their tables, which grows with every block.
func (x *Index) memoryBytes() int {
	return x.sizes.pages + x.pages.bytes + x.heads.bytes + x.blocks.bytes
}

// HeldBlocks returns how many blocks w holds, on any tier.
func (x *Index) HeldBlocks(w kv.Worker) int {
	n, ok := x.numbers[w]
	if !ok {
		return 0
	}
	return x.workers[n].held
}

// AppendWorkers appends the known workers to dst in order.
func (x *Index) AppendWorkers(dst []kv.Worker) []kv.Worker {
	v := x.view.Load()
	for _, n := range v.order {
		dst = append(dst, v.names[n])
	}
	return dst
}

// Block is a prefix which a worker holds on a tier.
type Block struct {
	Seq  kv.SeqHash
	Tier kv.Tier
}

// AppendBlocks appends the blocks of w to dst, by hash and then tier. A dump of the index goes worker by
// worker, so that no single call takes long.
func (x *Index) AppendBlocks(dst []Block, w kv.Worker) []Block {
	n, ok := x.numbers[w]
	if !ok {
		return dst
	}
	base := len(dst)
	for _, id := range x.workers[n].pages.slots {
		if id != 0 {
			dst = x.pages.pageAt(id).appendBlocks(dst, n)
		}
	}
	slices.SortFunc(dst[base:], func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tier, b.Tier))
	})
	return dst
}

// appendBlocks appends the blocks of v which worker n holds.
func (v *pageVersion) appendBlocks(dst []Block, n uint32) []Block {
	g := v.holdingsOf(n)
	for t := range kv.Tier(kv.Tiers) {
		for mask := g.onTier(t); mask != 0; mask &= mask - 1 {
			dst = append(dst, Block{Seq: v.hashAt(bits.TrailingZeros64(mask)), Tier: t})
		}
	}
	return dst
}
