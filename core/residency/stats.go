package residency

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// Counts are totals since the table was made, in blocks.
type Counts struct {
	Moved      uint64 // by events that changed something
	Same       uint64 // of which nothing new was said
	Ignored    uint64 // of which was said what is about another copy
	Unknown    uint64 // that nothing was known of
	Refused    uint64 // beyond Config's bounds
	Stuck      uint64 // in transit for too long
	Overflowed uint64 // beyond a pool's capacity
	Forgotten  uint64 // that were in doubt for too long, or whose events were lost
}

// Stats describes a table at one moment, in blocks unless it says otherwise.
type Stats struct {
	Pools     int // number of pools
	InTransit int
	Pooled    int // in doubt and parked ones included
	Doubtful  int // pooled, and not in the index until somebody speaks of them
	Parked    int // pooled, and not in the index until their place in it is known
	Evicted   int // remembered
	Bytes     int // estimated memory
	Counts    Counts
}

// What an entry costs: its fields, and its share of a map that is on average two thirds full.
const bytesPerEntry = 64 + (8+4)*3/2

// Stats returns the sizes and totals of the table.
func (t *Table) Stats() Stats {
	return Stats{
		Pools: len(t.byID), InTransit: t.transit.len, Pooled: t.pooled, Doubtful: t.doubtful, Parked: t.parked,
		Evicted: t.evicted.len, Bytes: len(t.entries) * bytesPerEntry, Counts: t.counts,
	}
}

// Pool is what is known of one pool.
type Pool struct {
	ID     kv.PoolID
	Said   bool        // that Access is known
	Access []kv.Worker // ascending; the table's, not to be changed, valid until the next call
	Pooled int         // blocks
}

// AppendPools appends all pools to dst by their ids.
func (t *Table) AppendPools(dst []Pool) []Pool {
	base := len(dst)
	for i := range t.pools {
		if p := &t.pools[i]; p.used {
			dst = append(dst, Pool{ID: p.id, Said: p.said, Access: p.access, Pooled: p.pooled.len})
		}
	}
	slices.SortFunc(dst[base:], func(a, b Pool) int { return cmp.Compare(a.ID, b.ID) })
	return dst
}

// Block is what is known of a block in a pool.
type Block struct {
	Pool  kv.PoolID
	State kv.PoolState
	Mover kv.Worker // which last changed what is known
	// Since is when it got into its state; of a pooled block, when it was spoken of last.
	Since kv.Mono
	// Doubt says that the block's mover may have lost events, Parked that the index has
	// no place for it. Both are of pooled blocks, and keep them out of the index.
	Doubt, Parked bool
}

// AppendBlock appends to dst what is known of a block, first of the pool that an event
// without a pool would be about.
func (t *Table) AppendBlock(dst []Block, seq kv.SeqHash) []Block {
	at, ok := t.where[seq]
	if !ok {
		return dst
	}
	for ; at != none; at = t.entries[at].other {
		e := &t.entries[at]
		dst = append(dst, Block{
			Pool: t.pools[e.pool].id, State: e.state, Mover: t.movers[e.mover].worker,
			Since: e.since, Doubt: e.doubt, Parked: e.parked,
		})
	}
	return dst
}
