// Package kv is the vocabulary of Penstock: tokens, blocks, the three kinds of hash, workers, and the events
// which report which worker holds which block.
//
// The three hash types never mix. A [BlockHash] identifies the content of one block, a [SeqHash] identifies a
// whole prefix up to and including a block, and an [EngineHash] is an opaque value which an engine reported:
// it only resolves parents and removals of the worker which sent it. The byte layout of our own two hashes is
// in docs/format/hash.md.
package kv

import (
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
)

// Token is one id of a model's vocabulary.
type Token uint32

// Mono is a reading of a monotonic clock in nanoseconds. Its zero is arbitrary: only differences are
// meaningful. Core packages take it as an argument instead of reading a clock.
type Mono int64

// Add returns m moved by d.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Sub returns the duration from o to m.
func (m Mono) Sub(o Mono) time.Duration { return time.Duration(m - o) }

// BlockHash identifies the content of one block: its tokens, the media which overlap it, and (through the
// seed) the adapter and namespace under which it was computed.
type BlockHash uint64

// SeqHash identifies a prefix: the chain of BlockHashes from the first block to this one. Two equal SeqHashes
// mean, up to a collision, the same whole prefix.
type SeqHash uint64

// EngineHash is the opaque identifier which an engine gave a block.
type EngineHash uint64

// WorkerID identifies a worker process. It is below 2^53, so that JSON numbers can represent it.
type WorkerID uint64

// MaxWorkerID is the largest id a worker may have.
const MaxWorkerID WorkerID = 1<<53 - 1

// Worker is one data-parallel rank of a worker process: the unit which owns a KV cache and to which a request
// is routed.
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

// Tier is where a cached block is, from fastest to slowest.
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
	// Cleared: the worker's cache is empty. A full description of a cache also starts with it, so it resolves
	// any doubt about earlier events.
	Cleared
	// Moved: the prefixes in Seqs changed their state in a memory pool which several workers share. It does
	// not affect the worker's own cache, and Cleared does not affect pools.
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

// Event is one change of one worker's cache, in our own hashes. It never contains token ids.
type Event struct {
	Kind EventKind
	Tier Tier
	// Start is the index within its sequence of Blocks[0]; at 0 the blocks start a sequence and Parent is not
	// set. Stored only.
	Start uint32
	// Parent identifies the prefix which Blocks[0] extends. Stored only.
	Parent SeqHash
	// Blocks are the content hashes of the stored blocks, in sequence order. The SeqHash of each follows from
	// Parent by [ExtendSeq]. Stored only.
	Blocks []BlockHash
	// Labels are nil, or one for each of Blocks (Stored) or Seqs (Moved, to InTransit or Pooled); with another
	// length they are ignored. Each replaces the label which the block had in the cache or in the pool.
	Labels []MoELabel
	// Seqs identify the removed or moved blocks, each by the prefix which it ends. Removed and Moved only.
	Seqs []SeqHash
	// Move says to which state, and in which pool. Moved only.
	Move PoolMove
}

// MoELabel is what an engine of a mixture-of-experts model reports of a block in addition to its content: the
// expert under which it reports the block. A block has K and V of all layers and does not depend on experts,
// so this is the engine's hint about its own placement, and no part of a block's identity. The zero MoELabel
// is none.
type MoELabel struct {
	Has                  MoEFields
	Layer, Expert, Group uint32 // 0 where Has does not name them
}

// MoEFields says which fields a MoELabel has.
type MoEFields uint8

// The fields. A group is never without layer and expert.
const (
	HasExpert MoEFields = 1 << iota // Layer and Expert
	HasGroup                        // Group
)

// IsValid reports whether an event may carry l.
func (l MoELabel) IsValid() bool {
	switch l.Has {
	case 0:
		return l == MoELabel{}
	case HasExpert:
		return l.Group == 0
	}
	return l.Has == HasExpert|HasGroup
}

// Tiers is the number of tiers.
const Tiers = 4

// Overlap is how much of a prompt one worker holds: the longest run of leading blocks in its cache, by tier.
type Overlap struct {
	Worker Worker
	// Blocks counts that run by tier; each tier continues where the faster ones end: Blocks[TierDevice]
	// leading blocks are on the device, Blocks[TierHost] more are reached when host memory counts too, and so
	// on. The sum is the length of the run.
	Blocks [Tiers]int
	// Attachable counts, within the run over all tiers, the blocks in a pool which the worker can attach;
	// they are part of Blocks[TierPool] where no faster tier of the worker itself has them.
	Attachable int
	// Labelled counts, within that run, the blocks whose label matches the request's MoEQuery; 0 without one.
	Labelled int
}

// Depth returns the length of the run over all tiers, in blocks.
func (o Overlap) Depth() int {
	depth := 0
	for _, n := range o.Blocks {
		depth += n
	}
	return depth
}

// PrefixHolder says how many of a prompt's first tokens a worker holds.
type PrefixHolder struct {
	Worker WorkerID
	Tokens int
}

// MoEQuery asks which blocks are labelled with experts which a request is expected to use.
type MoEQuery struct {
	Layer   uint32
	Experts []uint32 // any of them; empty is any
	Group   uint32   // valid if HasGroup
	// HasGroup restricts the answer to labels of Group.
	HasGroup bool
	// Fallback says that workers without a labelled block are eligible too. MatchesLabel ignores it.
	Fallback bool
}

// MatchesLabel reports whether a label matches the query.
func (q *MoEQuery) MatchesLabel(l MoELabel) bool {
	return l.Has&HasExpert != 0 && l.Layer == q.Layer &&
		(len(q.Experts) == 0 || slices.Contains(q.Experts, l.Expert)) &&
		(!q.HasGroup || l.Has&HasGroup != 0 && l.Group == q.Group)
}

// PoolID identifies a memory pool which several workers can attach, such as CXL memory.
type PoolID uint32

// PoolShare identifies a part of a pool to which one set of workers has access. The low 32 bits are the pool, the
// high 32 bits the part; part 0 has all blocks without an access list of their own.
type PoolShare uint64

// Share returns part n of p.
func (p PoolID) Share(n uint32) PoolShare { return PoolShare(n)<<32 | PoolShare(p) }

// Pool returns the pool to which the share belongs.
func (s PoolShare) Pool() PoolID { return PoolID(s) }

// IsPart reports whether s is a part with an access list of its own.
func (s PoolShare) IsPart() bool { return s>>32 != 0 }

// MaxAccess is the largest number of workers in an access list. A pool is attached to the hosts around one switch, and
// each has a few ranks.
const MaxAccess = 1024

// PoolState is the state of a block with respect to a pool.
type PoolState uint8

// The states. The zero value is none of them.
const (
	// LocalGPU: the block is in a worker's own memory only. With a pool and no blocks: the pool has nothing
	// which the worker put there.
	LocalGPU PoolState = iota + 1
	// InTransit: a worker is copying the block into the pool. No worker can attach it yet.
	InTransit
	// Pooled: the block is in the pool, for all workers with access to it.
	Pooled
	// Evicted: the block was evicted from the pool; that it was there is remembered for a while. With a pool
	// and no blocks: the pool is empty.
	Evicted
)

var poolStateNames = [...]string{"state?", "local_gpu", "in_transit", "cxl_pooled", "evicted"}

// String returns the state's name as events print it.
func (s PoolState) String() string {
	if int(s) < len(poolStateNames) {
		return poolStateNames[s]
	}
	return poolStateNames[0]
}

// ParsePoolState returns the state with a name as events print it.
func ParsePoolState(name string) (s PoolState, ok bool) {
	for s = LocalGPU; s <= Evicted; s++ {
		if poolStateNames[s] == name {
			return s, true
		}
	}
	return 0, false
}

// PoolMove is the part of an event which says how blocks changed their state in a pool.
type PoolMove struct {
	To PoolState
	// Pool is valid if HasPool; otherwise the pool is the one to which the block was last reported to be on
	// its way.
	Pool    PoolID
	HasPool bool
	// Access are the workers which can attach the pool, nil if the event does not list them. The last event
	// with a list counts. With OfBlocks they apply to the moved blocks only: nil leaves the list which a block
	// has in the pool, and a block without a list is for all workers which can attach the pool.
	Access []Worker
	// OfBlocks says that Access applies to the moved blocks instead of the pool, and that the worker which sent
	// the event has attached the pool.
	OfBlocks bool
}

// MediaHash maps the identifier which a client or an engine gave a media object to the 64-bit hash which
// enters block hashes: for 64 hex digits (a full digest) the first 16 of them, for any other text XXH3-64
// with seed 0. An empty identifier has no hash.
func MediaHash(id string) (hash uint64, ok bool) {
	if id == "" {
		return 0, false
	}
	if len(id) == 64 && isHex(id) {
		// Cannot fail: 16 hex digits.
		hash, _ = strconv.ParseUint(id[:16], 16, 64)
		return hash, true
	}
	return xxh3.HashString(id), true
}

// ContentHash returns the 64-bit hash of a media object's bytes or URL: XXH3-64 with a seed over the
// concatenated parts.
func ContentHash(seed uint64, parts ...[]byte) uint64 {
	if len(parts) == 1 {
		return xxh3.HashSeed(parts[0], seed)
	}
	h := xxh3.NewSeed(seed)
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	return h.Sum64()
}

// PadToken returns the placeholder token for a media object where an engine expects its identity in the token
// ids (SGLang's rule): 1,000,000 plus the low 30 bits of its hash.
func PadToken(hash uint64) Token {
	return Token(1_000_000 + hash&(1<<30-1))
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}
