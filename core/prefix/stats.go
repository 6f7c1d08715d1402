package prefix

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// Counts are totals since the index was made, in blocks unless they say otherwise.
type Counts struct {
	Stored     uint64 // new to the worker's tier
	Duplicates uint64 // stored again though held
	Removed    uint64
	Unknown    uint64 // removed though not held
	Refused    uint64 // beyond Config.MaxBlocks
	Orphans    uint64 // Stored events whose parent the worker did not hold then
	Clears     uint64 // Cleared events
}

// Stats describes an index at one moment.
type Stats struct {
	Workers int // known, even if they hold nothing
	Blocks  int // distinct prefixes held by any worker
	Entries int // pairs of worker and prefix
	Bytes   int // estimated memory
	Counts  Counts
}

// What an entry costs, with Go's maps on average two thirds full: in blocks a
// hash, a slice header and the smallest allocation; in held a hash and a padded
// byte; and a holder.
const (
	bytesPerBlock = (8+24)*3/2 + 8
	bytesPerEntry = (8+8)*3/2 + 4
)

// Stats returns the sizes and totals of the index.
func (x *Index) Stats() Stats {
	return Stats{
		Workers: len(x.dense),
		Blocks:  len(x.blocks),
		Entries: x.entries,
		Bytes:   len(x.blocks)*bytesPerBlock + x.entries*bytesPerEntry,
		Counts:  x.counts,
	}
}

// Held returns how many blocks w holds, on any tier.
func (x *Index) Held(w kv.Worker) int {
	n, ok := x.dense[w]
	if !ok {
		return 0
	}
	return len(x.workers[n].held)
}

// AppendWorkers appends the known workers to dst in order.
func (x *Index) AppendWorkers(dst []kv.Worker) []kv.Worker {
	base := len(dst)
	for i := range x.workers {
		if x.workers[i].held != nil {
			dst = append(dst, x.workers[i].id)
		}
	}
	slices.SortFunc(dst[base:], kv.Worker.Compare)
	return dst
}

// Block is one fact of the index: a prefix that a worker holds on a tier.
type Block struct {
	Seq  kv.SeqHash
	Tier kv.Tier
}

// AppendBlocks appends what w holds to dst, by hash and then tier: a dump of the
// index goes worker by worker, so that its owner is never busy for long.
func (x *Index) AppendBlocks(dst []Block, w kv.Worker) []Block {
	n, ok := x.dense[w]
	if !ok {
		return dst
	}
	base := len(dst)
	for seq, held := range x.workers[n].held {
		for t := range kv.Tier(kv.Tiers) {
			if held&on(t) != 0 {
				dst = append(dst, Block{Seq: seq, Tier: t})
			}
		}
	}
	slices.SortFunc(dst[base:], func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tier, b.Tier))
	})
	return dst
}
