// Package poolindex tracks which blocks are in memory pools which several workers can attach, such as CXL
// memory.
//
// A pool owns its blocks: they belong to no worker, and stay when the worker which put them there clears
// its cache, restarts or dies. Workers report in their event feeds what happens to the blocks, and
// [Table.ApplyMove] handles each block of a pool. The mover of a block is the worker which last changed its
// state.
//
// An event without a pool concerns the pool which was last reported for the block, unless the block was
// evicted from there; then it concerns the pool from which it was evicted last. Without any such pool it
// concerns an unknown block. An evicted event with a pool and no blocks says that the pool is empty. A
// local_gpu event with a pool and no blocks says that its sender has nothing there or in transit; what is
// still there follows. A description of a cache thus states which of the sender's blocks are in pools and
// retracts the others: it may have replaced the events which would have said so.
//
// A block may have a label in a pool, of its own: events to in_transit and cxl_pooled may set it, also for a
// block which is in the state already. An event without labels leaves it, and so does eviction; it ends when the
// block is forgotten.
//
// A block may have an access list in a pool too ([kv.PoolMove].OfBlocks): of the workers which can attach the pool
// only the workers on the list can attach the block. Events to in_transit and cxl_pooled may set it; an event
// without a list leaves it; it ends when the block is evicted or forgotten. The prefix index keeps the blocks of each
// list in a share of the pool. If no worker has listed who can attach a pool, every worker can which moved blocks
// into it with such events, until it ends or restarts ([Table.DetachWorker]), and a list counts as it is.
//
// Time changes three things. A block which is in transit for Config.TransitTimeout counts as evicted: the
// copying worker is gone or stuck. Evicted blocks are remembered for Config.EvictedRetention. And when
// events of a worker may have been lost ([Table.SuspectWorker]), the pooled blocks which it moved last are
// not in the prefix index until its feed is repaired ([Table.TrustWorker]) or another event reports them.
// They are forgotten after Config.SuspectTimeout, and at once when the missing events will not arrive
// ([Table.ForgetLost]). So the index may know less than the truth, and never more than was reported.
//
// A Table has one owner: its methods must not run concurrently. Its Config bounds everything it keeps.
package poolindex

import (
	"errors"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// MaxAccess is the largest number of workers kept of an access list.
const MaxAccess = kv.MaxAccess

// Config bounds a Table.
type Config struct {
	TransitTimeout   time.Duration // a block in transit counts as evicted after it
	SuspectTimeout   time.Duration // a suspect block is forgotten after it
	EvictedRetention time.Duration // how long evicted blocks are remembered

	MaxPools   int
	MaxBlocks  int // in transit and pooled, of all pools; further blocks are refused
	MaxEvicted int // remembered evicted blocks; the oldest make room
	// Capacity is the number of blocks in a pool. If more are reported, the removal of the least recently
	// reported ones was missed, and they count as evicted. 0 means no bound except MaxBlocks.
	Capacity int
}

// EnsureDefaults sets unset fields: 30 s, 1 min, 10 min; 256 pools, 4 Mi blocks, 64 Ki evicted ones.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *time.Duration
		v     time.Duration
	}{{&c.TransitTimeout, 30 * time.Second}, {&c.SuspectTimeout, time.Minute}, {&c.EvictedRetention, 10 * time.Minute}} {
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
	if min(c.TransitTimeout, c.SuspectTimeout, c.EvictedRetention) < 0 {
		errs = append(errs, fault.New(fault.Invalid, "poolindex: times must be positive"))
	}
	if min(c.MaxPools, c.MaxBlocks, c.MaxEvicted, c.Capacity) < 0 || max(c.MaxBlocks, c.MaxEvicted) > 1<<30 {
		errs = append(errs, fault.New(fault.Invalid, "poolindex: bounds must be between 0 and 2^30"))
	}
	return errors.Join(errs...)
}

// EffectKind is the action of an Effect.
type EffectKind uint8

// The actions: the methods of prefix.Index with these names.
const (
	Place EffectKind = iota + 1 // Seqs are in Pool
	Displace
	SetAccess // Access can attach Pool
	DropPool
)

// Effect is a change of the prefix index. The caller applies effects in order, and owns their slices.
type Effect struct {
	Kind   EffectKind
	Pool   kv.PoolShare
	Seqs   []kv.SeqHash
	Labels []kv.MoELabel // of a Place: one for each of Seqs, or nil if none has a label
	Access []kv.Worker
}

// entryID is the index of an entry in the table, or noEntry.
type entryID int32

const noEntry entryID = -1

// poolEntry is the state of one block in one pool.
type poolEntry struct {
	seq   kv.SeqHash
	since kv.Mono // start of its state; for a pooled block, the last report
	pool  int32
	mover int32
	// The neighbours in the list of the same state (of pooled blocks, in the same pool), and in the list of
	// the same mover.
	stateLink, moverLink listLink
	other                entryID // the same block in another pool; see precedes
	label                kv.MoELabel
	list                 listID // who can attach it; noList: as the pool says
	state                kv.PoolState
	suspect              bool // pooled, and not in the prefix index
	parked               bool // pooled, and the prefix index has no place for it yet
}

// poolState is one pool. Its slot is vacant if used is false.
type poolState struct {
	id          kv.PoolID
	used        bool
	accessKnown bool // access is known
	access      []kv.Worker
	attached    []kv.Worker // which moved blocks into it and sent no list of the pool; the last to do so is last
	indexed     bool        // the prefix index knows it by attached
	pooled      entryList
	inTransit   int // blocks in transit
	blocks      int // blocks in any state
}

// mover is a worker which moved blocks. Its slot is vacant if it has no entries.
type mover struct {
	worker  kv.Worker
	entries entryList
	suspect bool
	since   kv.Mono // start of suspicion
}

// Table tracks the blocks of all pools. A Moved event changes a block by this table:
//
//	state       local_gpu            in_transit            cxl_pooled     evicted
//	none        ignored              in transit            pooled         unknown
//	in transit  of mover: forgotten  of mover: no change   pooled         evicted
//	            of other: ignored    of other: its own
//	pooled      of mover: forgotten  of mover: in transit  pooled, again  evicted
//	            of other: ignored    of other: ignored
//	evicted     forgotten            in transit            pooled         no change
//
// So a block may be pooled without having been in transit. A second copy in transit does not affect the
// first one. What a worker reports of its own memory concerns its own copy. The effects are Place for a block
// which becomes pooled or has another label, and Displace for one which is not pooled any more. Other events:
//
//	state                   event                                next       effects
//	in transit              Tick after TransitTimeout            evicted
//	evicted                 Tick after EvictedRetention          none
//	pooled                  SuspectWorker of its mover           suspect    Displace
//	suspect                 TrustWorker of its mover             pooled     Place
//	suspect                 ForgetLost, Tick after SuspectTimeout  none
//	pooled, but not placed  RetryParked with its Stored event    pooled     Place
//	any                     DropPool                             none       DropPool
//
// DetachWorker changes no block.
type Table struct {
	cfg Config

	bySeq     map[kv.SeqHash]entryID // the first entry of each block; see precedes
	entries   []poolEntry
	freeEntry entryID // linked by other

	pools      []poolState
	byID       map[kv.PoolID]int32
	movers     []mover
	byWorker   map[kv.Worker]int32
	freeMovers []int32 // vacant slots of movers
	suspects   []int32 // suspect movers, in the order of since

	lists       []accessList
	byList      map[string]listID
	freeLists   []listID // vacant slots of lists
	unusedLists []listID // lists which may have no blocks
	// releasedPools are not used any more, and the prefix index may know them.
	releasedPools []kv.PoolID

	transit, evicted         entryList // in the order of since
	counts                   Counts
	pooledCount, parkedCount int
	suspectCount             int
}

// New returns an empty table.
func New(cfg Config) (*Table, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newTable(cfg), nil
}

func newTable(cfg Config) *Table {
	return &Table{
		cfg: cfg, bySeq: map[kv.SeqHash]entryID{}, freeEntry: noEntry,
		byID: map[kv.PoolID]int32{}, byWorker: map[kv.Worker]int32{}, byList: map[string]listID{},
		transit: newEntryList(), evicted: newEntryList(),
	}
}

// PrefixIndex is the index which effects change; *prefix.Index implements it.
type PrefixIndex interface {
	// AddToPool returns how many of the blocks have a place in the index. labels are as in Effect.
	AddToPool(p kv.PoolShare, seqs []kv.SeqHash, labels []kv.MoELabel) int
	RemoveFromPool(p kv.PoolShare, seqs []kv.SeqHash)
	SetAccess(p kv.PoolShare, workers []kv.Worker)
	DropPool(p kv.PoolShare)
}

// ApplyEffects applies effects of t to x, and parks the blocks for which x has no place.
func (t *Table) ApplyEffects(x PrefixIndex, effects []Effect) {
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case Place:
			t.placeBlocks(x, e)
		case Displace:
			x.RemoveFromPool(e.Pool, e.Seqs)
		case SetAccess:
			x.SetAccess(e.Pool, e.Access)
		case DropPool:
			x.DropPool(e.Pool)
		}
	}
}

func (t *Table) placeBlocks(x PrefixIndex, e *Effect) {
	if x.AddToPool(e.Pool, e.Seqs, e.Labels) == len(e.Seqs) {
		return
	}
	for i := range e.Seqs {
		labels := e.Labels
		if labels != nil {
			labels = labels[i : i+1]
		}
		if x.AddToPool(e.Pool, e.Seqs[i:i+1], labels) == 0 {
			t.parkBlock(e.Pool.Pool(), e.Seqs[i])
		}
	}
}

// parkBlock records that a block waits for its place in the prefix index.
func (t *Table) parkBlock(id kv.PoolID, seq kv.SeqHash) {
	pool, ok := t.byID[id]
	if !ok {
		return
	}
	if at := t.findEntry(pool, seq); at != noEntry && t.entries[at].state == kv.Pooled && !t.entries[at].suspect {
		t.setParked(&t.entries[at], true)
	}
}
