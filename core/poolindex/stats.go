package poolindex

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// Counts are totals, in blocks, since the table was created.
type Counts struct {
	Moved      uint64 // by events which changed something
	Same       uint64 // reported again without a change
	Ignored    uint64 // reported for another copy
	Unknown    uint64 // unknown blocks
	Refused    uint64 // beyond the bounds of Config
	Stuck      uint64 // in transit for too long
	Overflowed uint64 // beyond a pool's capacity
	Forgotten  uint64 // suspect for too long, or their events were lost
}

// Stats describes a table at one moment, in blocks unless it says otherwise.
type Stats struct {
	Pools     int // number of pools
	InTransit int
	Pooled    int // including suspect and parked ones
	Doubtful  int // pooled, and not in the prefix index until they are reported again
	Parked    int // pooled, and not in the prefix index until their place in it is known
	Evicted   int // remembered evicted blocks
	Bytes     int // estimated memory
	Counts    Counts
}

// bytesPerEntry is the memory of an entry: its fields, and its share of a map which is on average two
// thirds full.
const bytesPerEntry = 72 + (8+4)*3/2

// Stats returns the sizes and totals of the table.
func (t *Table) Stats() Stats {
	return Stats{
		Pools: len(t.byID), InTransit: t.transit.len, Pooled: t.pooledCount, Doubtful: t.suspectCount, Parked: t.parkedCount,
		Evicted: t.evicted.len, Bytes: len(t.entries) * bytesPerEntry, Counts: t.counts,
	}
}

// PoolStatus is the state of one pool.
type PoolStatus struct {
	ID          kv.PoolID
	AccessKnown bool        // Access is known
	Access      []kv.Worker // ascending; owned by the table, read-only, valid until the next call
	Attached    []kv.Worker // ascending:  the workers which moved blocks into it; they count if AccessKnown is false
	Pooled      int         // blocks
}

// AppendPools appends all pools to dst in order of id.
func (t *Table) AppendPools(dst []PoolStatus) []PoolStatus {
	base := len(dst)
	for i := range t.pools {
		if p := &t.pools[i]; p.used {
			dst = append(dst, PoolStatus{ID: p.id, AccessKnown: p.accessKnown, Access: p.access, Attached: p.attachedWorkers(), Pooled: p.pooled.len})
		}
	}
	slices.SortFunc(dst[base:], func(a, b PoolStatus) int { return cmp.Compare(a.ID, b.ID) })
	return dst
}

// BlockStatus is the state of a block in a pool.
type BlockStatus struct {
	Pool  kv.PoolID
	State kv.PoolState
	Mover kv.Worker // the worker which last changed the state
	// Since is the start of its state; for a pooled block, the last report.
	Since kv.Mono
	Label kv.MoELabel // the zero label if it has none
	// Access lists the workers which can attach the block, ascending; nil if all can which attached the pool.
	Access []kv.Worker
	// Doubt says that the block's mover may have lost events, Parked that the prefix index has no place for
	// it. Both apply to pooled blocks, and keep them out of the index.
	Doubt, Parked bool
}

// AppendBlock appends the entries of a block to dst. The first one is for the pool which an event without a
// pool would concern.
func (t *Table) AppendBlock(dst []BlockStatus, seq kv.SeqHash) []BlockStatus {
	at, ok := t.bySeq[seq]
	if !ok {
		return dst
	}
	for ; at != noEntry; at = t.entries[at].other {
		e := &t.entries[at]
		status := BlockStatus{
			Pool: t.pools[e.pool].id, State: e.state, Mover: t.movers[e.mover].worker,
			Since: e.since, Label: e.label, Doubt: e.suspect, Parked: e.parked,
		}
		if e.list != noList {
			status.Access = append([]kv.Worker{}, t.lists[e.list].workers...)
		}
		dst = append(dst, status)
	}
	return dst
}
