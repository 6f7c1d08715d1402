// Package residency knows which blocks are in pools of memory that several workers can
// attach, such as CXL memory.
//
// A pool owns its blocks: they are no worker's, and stay when the worker that put them
// there clears its cache, restarts or dies. Workers say in their event feeds what
// happens to them, and [Table.Move] does with each block of a pool what this table
// says. The mover of a block is the worker that last changed what is known of it.
//
//	known as    local_gpu            in_transit            cxl_pooled     evicted
//	nothing     ignored              in transit            pooled         unknown
//	in transit  of mover: forgotten  of mover: no change   pooled         evicted
//	            of other: ignored    of other: its own
//	pooled      of mover: forgotten  of mover: in transit  pooled, again  evicted
//	            of other: ignored    of other: ignored
//	evicted     forgotten            in transit            pooled         no change
//
// So a block may be pooled without having been in transit, a second copy that is on
// its way takes nothing from the first, and what a worker says of its own memory is
// about its own copy. An event that names no pool is about the pool that the block was
// last said to be in or on its way to, if it is not evicted from there, else about that
// from which it was evicted last; without any it is about something unknown. An evicted event
// that names a pool and no block says that the pool is empty; a local_gpu event that does, that
// nothing of its sender is there, or on its way: what is still there follows. So a
// description of a cache says what of the sender's is in pools, and takes back what is not: the
// events that would have said so may have given way to it, and nobody misses them.
//
// Time changes three things. A block that is in transit for Config.Transit counts as
// evicted: who copied it is gone or stuck. Evicted blocks are remembered for
// Config.Retain. And when events of a worker may have been lost ([Table.Doubt]), the
// pooled blocks that it moved last are not in the index until its feed is repaired
// ([Table.Trust]) or somebody speaks of them again; they are forgotten after
// Config.Doubt, and at once when the missing events will not come ([Table.Lost]). So the index may
// know less than the truth, and not more than was said.
//
// A Table has one owner: no method may run beside another one. Everything it keeps is
// bounded by its Config.
package residency

import (
	"errors"
	"time"

	"penstock/core/kv"
)

// MaxAccess is the most workers of an access list that are kept.
const MaxAccess = 1024

// Config bounds a Table.
type Config struct {
	Transit time.Duration // after it a block in transit counts as evicted
	Doubt   time.Duration // after it a block in doubt is forgotten
	Retain  time.Duration // for how long evicted blocks are remembered

	MaxPools   int
	MaxBlocks  int // in transit and pooled, of all pools; those beyond it are refused
	MaxEvicted int // remembered; the oldest make room
	// Capacity is how many blocks a pool has room for. When more are said to be in one,
	// the end of those that were spoken of longest ago was missed, and they count as
	// evicted. 0 is no bound but MaxBlocks.
	Capacity int
}

// EnsureDefaults fills in what is not set: 30 s, 1 min, 10 min; 256 pools, 4 Mi blocks,
// 64 Ki evicted ones.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *time.Duration
		v     time.Duration
	}{{&c.Transit, 30 * time.Second}, {&c.Doubt, time.Minute}, {&c.Retain, 10 * time.Minute}} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
	for _, f := range [...]struct {
		field *int
		v     int
	}{{&c.MaxPools, 256}, {&c.MaxBlocks, 4 << 20}, {&c.MaxEvicted, 64 << 10}} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if min(c.Transit, c.Doubt, c.Retain) < 0 {
		errs = append(errs, errors.New("residency: times must be positive"))
	}
	if min(c.MaxPools, c.MaxBlocks, c.MaxEvicted, c.Capacity) < 0 || max(c.MaxBlocks, c.MaxEvicted) > 1<<30 {
		errs = append(errs, errors.New("residency: bounds must be between 0 and 2^30"))
	}
	return errors.Join(errs...)
}

// Do is what an Effect asks for.
type Do uint8

// What an Effect can ask for: the calls of prefix.Index that have these names.
const (
	Place Do = iota + 1 // Seqs are in Pool
	Displace
	SetAccess // Access can attach Pool
	DropPool
)

// Effect is a change of the index, which the caller is to make in the order of effects.
// Its slices are the caller's.
type Effect struct {
	Do     Do
	Pool   kv.PoolID
	Seqs   []kv.SeqHash
	Access []kv.Worker
}

// place is a block's place in the table; none is no place.
type place int32

const none place = -1

// entry is what is known of one block in one pool.
type entry struct {
	seq   kv.SeqHash
	since kv.Mono // of its state; of a pooled one, when it was spoken of last
	pool  int32
	mover int32
	// Neighbours among those of the same state (of a pooled one, in the same pool), and
	// among those of the same mover.
	ring, own link
	other     place // of the same block in another pool; see later
	state     kv.PoolState
	doubt     bool // pooled, and not in the index
	parked    bool // pooled, and the index has no place for it yet
}

// pool is one pool; its slot is vacant if it is not used.
type pool struct {
	id     kv.PoolID
	used   bool
	said   bool // who has access
	access []kv.Worker
	pooled list
	moving int // blocks in transit
	blocks int // of any state
}

// mover is a worker that moved blocks; its slot is vacant if it has no entries.
type mover struct {
	worker kv.Worker
	own    list
	doubt  bool
	since  kv.Mono // of doubt
}

// Table is the residency of all pools.
type Table struct {
	cfg Config

	where   map[kv.SeqHash]place // the first of those of a block; see later
	entries []entry
	vacant  place // linked by other

	pools  []pool
	byID   map[kv.PoolID]int32
	movers []mover
	byName map[kv.Worker]int32
	idle   []int32 // vacant slots of movers
	doubts []int32 // movers in doubt, in the order of since

	transit, evicted list // in the order of since
	counts           Counts
	pooled, parked   int
	doubtful         int
}

// New returns a table that knows nothing.
func New(cfg Config) (*Table, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return empty(cfg), nil
}

func empty(cfg Config) *Table {
	return &Table{
		cfg: cfg, where: map[kv.SeqHash]place{}, vacant: none,
		byID: map[kv.PoolID]int32{}, byName: map[kv.Worker]int32{},
		transit: newList(), evicted: newList(),
	}
}
