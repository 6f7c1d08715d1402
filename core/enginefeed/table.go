package enginefeed

import (
	"errors"
	"fmt"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Scope says what an engine means by "all blocks are cleared".
type Scope uint8

// The scopes.
const (
	// ClearsDevice: the engine's own memory is empty, what was offloaded survives. vLLM and TensorRT-LLM.
	ClearsDevice Scope = iota
	// ClearsAll: nothing survives. SGLang.
	ClearsAll
)

// Config says how a Table names blocks, and bounds it.
type Config struct {
	// BlockSize is how many tokens our blocks have. It must be set.
	BlockSize int
	// EngineBlock is how many tokens the engine's blocks have, by its own account; 0 is BlockSize. If BlockSize is
	// a multiple of it, so many blocks of the engine make one of ours, which is there while all of them are.
	EngineBlock int
	// Adapters names the adapters that events name by the engine's number only; "" is no adapter. It may be nil.
	Adapters map[int64]string
	// HidesAdapters says that events do not tell of adapters: blocks with the same tokens have one name, whichever
	// adapter computed them.
	HidesAdapters bool
	// ReloadForgets says that the engine finds nothing that it stored under an adapter before it loaded that once more,
	// though its events name the adapter as before. [Table.ForgetAdapter] is to be called then. SGLang.
	ReloadForgets bool
	// Clears is what the engine means by a clear.
	Clears Scope
	// MaxBlocks is how many of the engine's blocks are remembered; 0 is what makes 4 Mi of ours, up to
	// 64 Mi. More are left out and counted.
	MaxBlocks int
	// Pads says which tokens events have where a prompt shows media, MediaTokens which ones of the vocabulary
	// requests have there, as far as that is known, and Vocabulary how many that has; 0 is not known.
	Pads        Pads
	MediaTokens []kv.Token
	Vocabulary  int
	// Capacity is how many blocks of ours the engine has room for; 0 if the table is not told of requests.
	// Else orphans wait for their parents, and what is not known of the engine's cache is inferred.
	Capacity int
	// Seed decides where blocks are in memory, and nothing that can be seen from outside. It should be drawn,
	// where others than the engine choose hashes.
	Seed uint64
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.EngineBlock == 0 {
		c.EngineBlock = c.BlockSize
	}
	if c.MaxBlocks == 0 && c.EngineBlock > 0 {
		c.MaxBlocks = min(64<<20, 4<<20*max(1, c.BlockSize/c.EngineBlock))
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.BlockSize < 2 || c.BlockSize > 65536 {
		errs = append(errs, kv.ErrBlockSize)
	}
	if c.EngineBlock < 1 || c.BlockSize%max(1, c.EngineBlock) != 0 {
		errs = append(errs, fault.New(fault.Invalid, "the engine's blocks have %d tokens: set a block size of %d or a multiple, not %d", c.EngineBlock, max(2, c.EngineBlock), c.BlockSize))
	}
	if c.MaxBlocks < 0 || c.MaxBlocks > 1<<30 {
		errs = append(errs, errors.New("enginefeed: the most blocks must be between 0 and 2^30"))
	}
	return errors.Join(errs...)
}

// Table knows which blocks an engine has, and by which names of ours. Copies of a block are counted by
// tier: it is stored there with the first, and removed with the last.
//
// A block takes about 56 bytes. Where blocks are joined from the engine's, each of those takes about 75 bytes and its tokens
// beside that: a page may be the beginning of several blocks, so that its tokens are needed as long as it is there.
//
// A Table has one user at a time.
type Table struct {
	cfg   Config
	per   int // the engine's blocks in one of ours
	salts salts
	// blocks are ours, by the engine's name for them, or for the last of the engine's blocks in them.
	blocks blocks
	// pieces are the engine's blocks, where several make one of ours.
	pieces pieces
	// group is the group of layers that is followed, -1 until one is seen.
	group int
	// pairs says that the engine gives media objects as pairs, so that a mere text in the first block is a salt.
	pairs bool
	// doubtful are names that several blocks have, useless says that they are too many.
	doubtful map[kv.EngineHash]struct{}
	useless  bool
	veil     veil // of salts
	adapters veil
	roots    roots
	seen     sizes
	stats    Stats
	// partial says that the engine may have blocks that are not known, orphaned that an orphan showed it.
	partial, orphaned bool
	adopting          bool
	orphans           orphans
	requests          requests
	inferred          inferred

	out   []kv.Event // where events go during a call
	room  rooms
	media []kv.Media // scratch

	shown  shown
	inside []kv.Media // scratch
}

// NewTable returns the table of an engine whose cache is empty.
func NewTable(cfg Config) (*Table, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, per: cfg.BlockSize / cfg.EngineBlock, group: -1}
	factor := 0x9e3779b97f4a7c15 ^ cfg.Seed<<1
	t.blocks.factor, t.pieces.factor = factor|1, factor|1
	t.salts.size = cfg.BlockSize
	t.pieces.tokens = cfg.EngineBlock
	t.adapters.told = !cfg.HidesAdapters
	return t, nil
}

// Apply appends to out what b changes. The slices of the events are the caller's.
func (t *Table) Apply(b *Batch, out []kv.Event) []kv.Event {
	t.begin(out)
	t.stats.UnknownEvents += uint64(b.Unknown)
	t.stats.SkippedEvents += uint64(b.Skipped)
	if b.Lost > 0 {
		// What is known may be wrong from here on, so that it is forgotten; what the batch itself stores
		// may be gone by its end.
		t.stats.DamagedBatches++
		t.forget()
		if t.cfg.Capacity > 0 {
			t.becomePartial()
		}
		return t.done()
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == Stored {
			t.room.expect += len(e.Hashes)
		}
	}
	trusted := !t.useless
	for i := range b.Events {
		e := &b.Events[i]
		if !knownMedium(e.Medium) {
			t.stats.UnknownMedium++
		}
		switch e.Kind {
		case Stored:
			t.store(e)
		case Removed:
			t.remove(e)
		case Cleared:
			t.cleared(e)
		}
	}
	if trusted && t.useless {
		t.forget()
	}
	return t.done()
}

// begin begins a call that appends its events to out.
func (t *Table) begin(out []kv.Event) { t.out, t.room = out, rooms{base: len(out)} }

// done returns what a call has to say.
func (t *Table) done() []kv.Event {
	t.close()
	out := t.out
	t.out, t.room = nil, rooms{}
	return out
}

// Clear forgets all blocks, and what was noticed of the engine's hashes, and appends a Cleared event to out.
func (t *Table) Clear(out []kv.Event) []kv.Event {
	t.begin(out)
	t.doubtful, t.useless = nil, false
	t.forget()
	return t.done()
}

// forget empties the table and says so. That names mean several blocks is remembered.
func (t *Table) forget() {
	t.blocks.clear()
	t.pieces.clear()
	t.salts.clear()
	t.roots = roots{}
	t.group = -1
	t.forgetInferred()
	t.tellCleared()
}

// cleared does what the engine means by a clear: of one medium if it names one, of its own memory, or of all.
func (t *Table) cleared(e *Event) {
	t.stats.Cleared++
	tier := tierOf(e)
	t.room.clears++
	if t.cfg.Clears == ClearsAll && e.Medium == "" || t.only(tier) || t.room.clears > maxClears {
		t.forget()
		t.partial = t.partial && tier != kv.TierDevice
		return
	}
	if tier == kv.TierDevice { // it is known to be empty now
		t.forgetInferred()
		t.partial = false
	}
	// A clear of ours is of all tiers: what survives is described again behind it.
	t.blocks.empty(t, tier)
	t.pieces.empty(t, tier)
	t.describe()
}

// maxClears is how many clears of a tier a batch may have that leave what is on others: each costs a walk over all blocks.
const maxClears = 8

// only reports whether nothing is on other tiers.
func (t *Table) only(tier kv.Tier) bool {
	for other := range tiers {
		if other != int(tier) && (t.blocks.on[other] > 0 || t.pieces.on[other] > 0) {
			return false
		}
	}
	return true
}

// remove takes a copy of each block of e from its tier.
func (t *Table) remove(e *Event) {
	if t.otherGroup(e) {
		return
	}
	for _, name := range e.Hashes {
		if t.removeOne(name, e) {
			t.stats.Removed++
		} else {
			t.stats.UnknownRemoved++
		}
	}
}

// removeOne takes one copy of a block from e's tier, or all of them from all. It reports whether there was one.
func (t *Table) removeOne(name kv.EngineHash, e *Event) (known bool) {
	if !e.Everywhere {
		return t.removeFrom(name, tierOf(e))
	}
	for tier := range kv.Tier(tiers) {
		for t.removeFrom(name, tier) {
			known = true
		}
	}
	return known
}

func (t *Table) removeFrom(name kv.EngineHash, tier kv.Tier) (known bool) {
	if t.per > 1 {
		known = t.pieces.remove(t, name, tier)
	} else {
		known = t.blocks.remove(t, name, tier)
	}
	if tier == kv.TierDevice {
		if len(t.inferred.stems) > 0 && !t.onDevice(name) {
			t.inferred.release(t, name)
		}
		known = t.orphans.remove(t, name) || known
	}
	return known
}

// onDevice reports whether an engine's block is remembered as being on the device.
func (t *Table) onDevice(name kv.EngineHash) bool {
	id := t.find(name)
	if id == 0 {
		return false
	}
	if t.per > 1 {
		return t.pieces.all.at(id).refs[kv.TierDevice] > 0
	}
	return t.blocks.all.at(id).refs[kv.TierDevice] > 0
}

// otherGroup reports whether e is of a group of layers that is not followed. A hash is the same in
// every group of a model, so that one group can be followed and no more.
func (t *Table) otherGroup(e *Event) bool {
	if e.Group < 0 || t.group < 0 || e.Group == t.group {
		return false
	}
	t.stats.OtherGroup += uint64(len(e.Hashes))
	return true
}

// tiers is the number of tiers that an engine's blocks can be on.
const tiers = 3

// tierOf returns the tier of e, of those that the table counts.
func tierOf(e *Event) kv.Tier { return min(e.Tier, tiers-1) }

// Stats returns what the table has and has counted.
func (t *Table) Stats() Stats {
	s := t.stats
	copy(s.Blocks[:], t.blocks.on[:])
	s.Held = t.blocks.n
	if t.per > 1 {
		s.Held = t.pieces.n
	}
	s.EngineBlock = t.seen.largest
	s.Waiting, s.Inferred, s.Known = len(t.orphans.at), len(t.inferred.nodes), !t.partial
	s.Bytes = t.blocks.bytes() + t.pieces.bytes() + t.salts.bytes()
	return s
}

// Err says what to set if the engine's blocks cannot be turned into ours; nil if they
// can, as far as was seen. The code is fault.Invalid.
func (t *Table) Err() error {
	if t.useless {
		return fault.New(fault.Invalid, "the engine's events give the same hash to blocks with different prefixes: what it caches cannot be known; use a version of it whose hashes are chained")
	}
	size, wrong := t.seen.wrong(t.cfg.EngineBlock)
	if !wrong {
		return nil
	}
	return fault.New(fault.Invalid, "the engine's events are of blocks of %d tokens, %s: set its block size to %d (ours may be a multiple)", size, t.expected(), size)
}

func (t *Table) expected() string {
	if t.per == 1 {
		return fmt.Sprintf("the worker's of %d", t.cfg.BlockSize)
	}
	return fmt.Sprintf("the worker's of %d, each of %d blocks of the engine", t.cfg.BlockSize, t.per)
}

// sizes are what block sizes were seen.
type sizes struct {
	largest int // of a store
	several int // of a store of several blocks, which only the last one can be shorter than; the largest
	shorter int // stores of one short block since the last one that was not short
}

// manyShort is how many short blocks in a row are no ends of prompts.
const manyShort = 64

func (s *sizes) note(size, blocks, expected int) {
	s.largest = max(s.largest, size)
	if blocks > 1 {
		s.several = max(s.several, size)
	}
	if size < expected {
		s.shorter++
	} else {
		s.shorter = 0
	}
}

// wrong reports whether the engine's blocks are of a size other than expected, and which.
func (s *sizes) wrong(expected int) (int, bool) {
	switch {
	case s.largest > expected:
		return s.largest, true
	case s.several > 0 && s.several < expected:
		return s.several, true
	case s.largest > 0 && s.largest < expected && s.shorter >= manyShort:
		return s.largest, true
	}
	return 0, false
}

// Stats is what a Table has, and has counted since it was made.
type Stats struct {
	Blocks      [kv.Tiers]int // of ours that are known, by tier
	Held        int           // the engine's blocks that are remembered
	EngineBlock int           // tokens in the engine's blocks; 0 until an event says it
	Bytes       int           // memory taken, about

	Stored, Removed, Cleared uint64 // blocks of the engine, and clears, that were taken in
	Duplicates               uint64 // stored once more: further copies of blocks that were there
	UnknownRemoved           uint64 // removed, and not known
	Adopted                  uint64 // orphans that were taken in

	// Waiting are the orphans that wait for their parents, Inferred the blocks of ours that are believed to be there
	// by what requests show. Known says that the engine has no block of which its events did not tell.
	Waiting, Inferred int
	Known             bool
	// Resolved counts names of parents that requests showed, Doubtful requests that showed several, Refuted
	// names that a later request denied.
	Resolved, Doubtful, Refuted uint64

	Trimmed uint64 // known, and not in a snapshot

	// Blocks of the engine that were not taken in, and why.
	Orphans        uint64 // the block before was not known: Adopted are those of them which were taken in when it was
	OtherGroup     uint64 // of a group of layers that cannot be followed (sliding windows, Mamba), or of a further one; removals too
	Misaligned     uint64 // the tokens are not those of the blocks
	Partial        uint64 // shorter than a block
	OtherBlockSize uint64 // of a block size that does not fit ours
	Pairs          uint64 // tokens come as pairs, or are no ids of a vocabulary
	Nameless       uint64 // of an adapter without a name, or with keys that have no place in our hashes
	Faceless       uint64 // show media, and do not say which
	Tokenless      uint64 // without tokens, and not known
	Ambiguous      uint64 // of a name that another block has too, or behind one
	Refused        uint64 // more than MaxBlocks, or than 65,534 pairs of adapter and salt

	// Unresolved are blocks that were taken in and show media that no request here showed lately: no request finds them.
	Unresolved uint64

	UnknownMedium  uint64 // events of a medium that is not known: taken for a slow one
	UnknownEvents  uint64 // events of types that are not known
	SkippedEvents  uint64 // stores that could not be understood
	DamagedBatches uint64 // with removals that could not be understood: all was forgotten
}
