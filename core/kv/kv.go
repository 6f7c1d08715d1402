// Package kv is the vocabulary of Penstock: tokens, blocks, the three kinds of
// hash, workers, and the events that say which worker holds which block.
//
// The three hash types never mix. A [BlockHash] names the contents of one
// block, a [SeqHash] names a whole prefix up to and including a block, and an
// [EngineHash] is whatever an engine reported: it resolves parents and removals
// of the worker that sent it and nothing else. The byte layout of both of our
// own hashes is in docs/format/hash.md.
package kv

import "time"

// Token is one id of a model's vocabulary.
type Token uint32

// Mono is a reading of a monotonic clock in nanoseconds. Its zero is arbitrary:
// only differences mean anything. Core packages take it as an argument instead
// of asking for the time.
type Mono int64

// Add returns m moved by d.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Sub returns the duration from o to m.
func (m Mono) Sub(o Mono) time.Duration { return time.Duration(m - o) }

// BlockHash names the contents of one block: its tokens, the media that overlap
// it, and (through the seed) the adapter and namespace it was computed under.
type BlockHash uint64

// SeqHash names a prefix: the chain of BlockHashes from the first block to this
// one. Two equal SeqHashes mean, up to a collision, the same whole prefix.
type SeqHash uint64

// EngineHash is the opaque name that an engine gave a block.
type EngineHash uint64

// WorkerID identifies a worker process. It is below 2^53, so that it survives
// JSON numbers.
type WorkerID uint64

// MaxWorkerID is the largest id a worker may have.
const MaxWorkerID WorkerID = 1<<53 - 1

// Worker is one data-parallel rank of a worker process: the unit that owns a
// KV cache and that a request is routed to.
type Worker struct {
	ID   WorkerID
	Rank uint32
}

// Compare orders workers by id, then rank: -1, 0 or +1.
func (w Worker) Compare(o Worker) int {
	switch {
	case w.ID < o.ID:
		return -1
	case w.ID > o.ID:
		return 1
	case w.Rank < o.Rank:
		return -1
	case w.Rank > o.Rank:
		return 1
	}
	return 0
}

// Tier is where a cached block lives, from fastest to slowest.
type Tier uint8

// The tiers. The zero value is the engine's own memory.
const (
	TierDevice Tier = iota
	TierHost
	TierDisk
	TierPool
)

// String returns the tier's name as events and tables print it.
func (t Tier) String() string {
	switch t {
	case TierDevice:
		return "device"
	case TierHost:
		return "host"
	case TierDisk:
		return "disk"
	case TierPool:
		return "pool"
	}
	return "tier?"
}

// EventKind says what happened to a worker's cache.
type EventKind uint8

// The kinds of event. The zero value is none of them.
const (
	// Stored: Blocks follow Parent in the worker's cache.
	Stored EventKind = iota + 1
	// Removed: the prefixes in Seqs no longer end in the worker's cache.
	Removed
	// Cleared: the worker's cache is empty. It is also how a full description
	// of a cache begins, so it heals any doubt about what came before.
	Cleared
	// Moved: the prefixes in Seqs changed their state in a pool of memory that several
	// workers share. It says nothing of the worker's own cache, and Cleared nothing of pools.
	Moved
)

// String returns the kind's name as events and tables print it.
func (k EventKind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	case Moved:
		return "moved"
	}
	return "kind?"
}

// Event is one change of one worker's cache, in our own hashes. Token ids never
// appear in it.
type Event struct {
	Kind EventKind
	Tier Tier
	// Start is the index within its sequence of Blocks[0]; 0 means the blocks
	// begin a sequence and Parent is not set. Stored only.
	Start uint32
	// Parent names the prefix that Blocks[0] extends. Stored only.
	Parent SeqHash
	// Blocks are the contents of the stored blocks, in sequence order. The
	// SeqHash of each follows from Parent by [Extend]. Stored only.
	Blocks []BlockHash
	// Labels are nil, or one for each of Blocks; of another length they are ignored.
	// Stored only.
	Labels []MoELabel
	// Seqs name the removed or moved blocks, each by the prefix that it ends. Removed and
	// Moved only.
	Seqs []SeqHash
	// Move says to which state, and in which pool. Moved only.
	Move Move
}

// MoELabel is what an engine of a mixture-of-experts model says of a block beside
// its content: the expert that it reports the block under. A block has K and V of
// all layers and does not depend on experts, so this is a hint of the engine about its
// own placement: it is no part of a block's name. The zero MoELabel is none.
type MoELabel struct {
	Has                  MoEFields
	Layer, Expert, Group uint32 // 0 where Has does not name them
}

// MoEFields says what a MoELabel has.
type MoEFields uint8

// The fields. A group is never without layer and expert.
const (
	HasExpert MoEFields = 1 << iota // Layer and Expert
	HasGroup                        // Group
)

// Valid reports whether l is one that an event may carry.
func (l MoELabel) Valid() bool {
	switch l.Has {
	case 0:
		return l == MoELabel{}
	case HasExpert:
		return l.Group == 0
	}
	return l.Has == HasExpert|HasGroup
}
