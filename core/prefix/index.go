// Package prefix knows which worker holds which blocks, and answers how much of
// a prompt each worker already has.
//
// The index is keyed by [kv.SeqHash], which names a whole prefix. So a worker's
// holdings are a plain set: a block counts for a prompt when the worker holds it
// and every block before it, and nothing has to be linked or relinked. That makes
// the answer exact whatever the order of stores and removals: a block whose
// predecessor was evicted stays in the set, matches nothing, and matches again
// when the predecessor is stored anew. For the same reason a block stored under
// a parent that the worker does not hold (an orphan) is kept like any other: it
// is attached by the arrival of its parent, without being parked anywhere. The
// number of such stores is counted, since a healthy feed has few.
//
// An Index has one owner: no method may run beside another one.
package prefix

import (
	"errors"
	"math/bits"

	"penstock/core/kv"
)

// Config bounds an Index.
type Config struct {
	// MaxBlocks is how many blocks one worker may be known to hold. Stores
	// beyond it are refused and counted: the index then knows less than the
	// truth, and memory stays bounded however a worker misbehaves.
	MaxBlocks int
}

// EnsureDefaults fills in what is not set: 4 Mi blocks.
func (c *Config) EnsureDefaults() {
	if c.MaxBlocks == 0 {
		c.MaxBlocks = 4 << 20
	}
}

// Validate reports what is wrong with c.
func (c *Config) Validate() error {
	if c.MaxBlocks < 0 {
		return errors.New("prefix: max blocks must not be negative")
	}
	return nil
}

// Index maps prefixes to the workers that hold them.
type Index struct {
	cfg Config
	// blocks has an entry for each prefix that any worker holds; holders are
	// ascending and never empty.
	blocks map[kv.SeqHash][]holder
	// dense gives each worker a small number, its place in workers. A dropped
	// worker's place has a nil held and its number is in vacant.
	dense   map[kv.Worker]uint32
	workers []worker
	vacant  []uint32
	counts  Counts
	entries int
	active  []runner // scratch of Match
}

// worker is one worker's side of the index: the same facts as blocks, turned.
type worker struct {
	id   kv.Worker
	held map[kv.SeqHash]tiers
}

// tiers is a set of tiers: bit t is set when the block is on tier t.
type tiers uint8

func on(t kv.Tier) tiers { return 1 << t }

// holder is a worker that holds a block, and on which tiers: the worker's dense
// number above the tier bits, so that holders order by number.
type holder uint32

const tierBits = 8

func newHolder(number uint32, on tiers) holder { return holder(number<<tierBits | uint32(on)) }

func (h holder) number() uint32 { return uint32(h) >> tierBits }
func (h holder) tiers() tiers   { return tiers(h) }
func (h holder) fastest() uint8 { return uint8(bits.TrailingZeros8(uint8(h))) }

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Index{
		cfg:    cfg,
		blocks: map[kv.SeqHash][]holder{},
		dense:  map[kv.Worker]uint32{},
	}, nil
}

// number returns w's dense number, giving it one if it has none.
func (x *Index) number(w kv.Worker) uint32 {
	if n, ok := x.dense[w]; ok {
		return n
	}
	var n uint32
	if last := len(x.vacant) - 1; last >= 0 {
		n, x.vacant = x.vacant[last], x.vacant[:last]
	} else {
		n = uint32(len(x.workers))
		x.workers = append(x.workers, worker{})
	}
	x.workers[n] = worker{id: w, held: map[kv.SeqHash]tiers{}}
	x.dense[w] = n
	return n
}
