package engineevents

import (
	"cmp"
	"errors"
	"fmt"

	"penstock/core/fault"
	"penstock/core/kv"
)

// ClearScope says what an engine means by "all blocks are cleared".
type ClearScope uint8

// The clear scopes.
const (
	// ClearsDevice: the engine's own memory is empty, offloaded blocks survive. vLLM and TensorRT-LLM.
	ClearsDevice ClearScope = iota
	// ClearsAll: nothing survives. SGLang.
	ClearsAll
)

// Config configures and bounds a Table.
type Config struct {
	// BlockSize is the number of tokens in a Penstock block. It must be set.
	BlockSize int
	// EngineBlockSize is the number of tokens in the engine's blocks, as it reports; 0 means BlockSize. If
	// BlockSize is a multiple of it, that many engine blocks make one Penstock block, which exists while
	// all of them do.
	EngineBlockSize int
	// Adapters names the adapters which events identify by the engine's number only; "" is no adapter. It
	// may be nil.
	Adapters map[int64]string
	// HidesAdapters says that events do not report adapters: blocks with the same tokens have one hash,
	// whichever adapter computed them.
	HidesAdapters bool
	// ReloadForgets says that the engine finds nothing which it stored under an adapter before the
	// adapter's last load, although its events name the adapter as before. The caller must then call
	// [Table.ForgetAdapter]. SGLang.
	ReloadForgets bool
	// Clears is what the engine means by a clear.
	Clears ClearScope
	// MaxBlocks bounds the remembered engine blocks. 0 means as many as make 4 Mi Penstock blocks, up to 64
	// Mi. Further blocks are left out and counted.
	MaxBlocks int
	// Pads says which tokens events have in the place of media. MediaTokens holds the vocabulary tokens
	// which requests have there, as far as known. Vocabulary is the vocabulary's size; 0 is unknown.
	Pads        PadStyle
	MediaTokens []kv.Token
	Vocabulary  int
	// Capacity is the number of Penstock blocks for which the engine has room; 0 if the caller does not
	// report requests. Otherwise orphans wait for their parents, and unknown parts of the engine's cache
	// are inferred.
	Capacity int
	// Seed decides the placement of blocks in memory, and nothing visible from outside. It should be random
	// if others than the engine choose hashes.
	Seed uint64
}

// EnsureDefaults sets unset fields.
func (c *Config) EnsureDefaults() {
	c.EngineBlockSize = cmp.Or(c.EngineBlockSize, c.BlockSize)
	if c.MaxBlocks == 0 && c.EngineBlockSize > 0 {
		c.MaxBlocks = min(64<<20, 4<<20*max(1, c.BlockSize/c.EngineBlockSize))
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.BlockSize < 2 || c.BlockSize > 65536 {
		errs = append(errs, kv.ErrBlockSize)
	}
	if c.EngineBlockSize < 1 || c.BlockSize%max(1, c.EngineBlockSize) != 0 {
		errs = append(errs, fault.New(fault.Invalid, "the engine's blocks have %d tokens: set a block size of %d or a multiple, not %d", c.EngineBlockSize, max(2, c.EngineBlockSize), c.BlockSize))
	}
	if c.MaxBlocks < 0 || c.MaxBlocks > 1<<30 {
		errs = append(errs, fault.New(fault.Invalid, "engineevents: the most blocks must be between 0 and 2^30"))
	}
	return errors.Join(errs...)
}

// Table knows which Penstock blocks an engine has. It counts copies of a block by tier: the first copy
// stores the block there, the removal of the last one removes it.
//
// A block takes about 56 bytes. Where a Penstock block is joined from several engine pages, each page takes
// about 75 bytes plus its tokens: a page may start several blocks, so its tokens are needed as long as it
// exists.
//
// A Table must have one user at a time.
type Table struct {
	cfg           Config
	pagesPerBlock int // engine blocks in one Penstock block
	salts         saltTable
	// blocks holds the Penstock blocks, keyed by the engine hash of the block, or of its last page.
	blocks blockMap
	// pages holds the engine's pages, where several make one Penstock block.
	pages pageTree
	// group is the layer group which is followed, -1 until one is seen.
	group int
	// sendsOffsets says that the engine sends media objects with their offsets, so that a plain text in the first
	// block is a salt.
	sendsOffsets bool
	// ambiguous holds the hashes which several blocks have. unusable says that there are too many.
	ambiguous      map[kv.EngineHash]struct{}
	unusable       bool
	saltedPrompts  unreportedPrompts // of salts
	adapterPrompts unreportedPrompts
	roots          adapterRoots
	// labels has the labels of stored blocks. pooled has the blocks in memory pools.
	labels map[kv.SeqHash]kv.MoELabel
	pooled pooledSet

	seenSizes blockSizes
	stats     Stats
	// partial says that the engine may have unknown blocks. orphaned says that an orphan proved it.
	partial, orphaned bool
	adopting          bool
	orphans           orphanSet
	requests          requestLog
	inferred          inferredSet

	out    []kv.Event // where events go during a call
	buffer eventBuffer
	media  []kv.Media // scratch

	mediaPrompts mediaPrompts
	inside       []kv.Media // scratch
}

// NewTable returns the table of an engine whose cache is empty.
func NewTable(cfg Config) (*Table, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, pagesPerBlock: cfg.BlockSize / cfg.EngineBlockSize, group: -1}
	factor := 0x9e3779b97f4a7c15 ^ cfg.Seed<<1
	t.blocks.factor, t.pages.factor = factor|1, factor|1
	t.salts.blockSize = cfg.BlockSize
	t.pages.pageTokens = cfg.EngineBlockSize
	t.adapterPrompts.reported = !cfg.HidesAdapters
	return t, nil
}

// Apply appends the changes of b to out. The caller owns the slices of the events, except that they may share access
// lists, which must not be changed.
func (t *Table) Apply(b *Batch, out []kv.Event) []kv.Event {
	t.beginCall(out)
	t.stats.UnknownEvents += uint64(b.Unknown)
	t.stats.SkippedEvents += uint64(b.Skipped)
	if b.Lost > 0 {
		// Everything known may be wrong now, so it is forgotten. The blocks which this batch stores may be
		// gone by its end.
		t.stats.DamagedBatches++
		t.withdrawPooled()
		t.forgetAll()
		if t.cfg.Capacity > 0 {
			t.startPartialHistory()
		}
		return t.finishCall()
	}
	if b.LostMoves > 0 {
		t.stats.LostMoves += uint64(b.LostMoves)
		t.withdrawPooled()
		t.buffer.describesPools, t.buffer.losesMoves = true, true
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == Stored {
			t.buffer.expectedBlocks += len(e.Hashes)
		}
	}
	trusted := !t.unusable
	for i := range b.Events {
		e := &b.Events[i]
		if !isKnownMedium(e.Medium) {
			t.stats.UnknownMedium++
		}
		switch e.Kind {
		case Stored:
			t.storeEvent(e)
		case Removed:
			t.applyRemoved(e)
		case Cleared:
			t.applyCleared(e)
		case Moved:
			t.applyMoved(e)
		}
	}
	if trusted && t.unusable {
		t.withdrawPooled()
		t.forgetAll()
	}
	return t.finishCall()
}

// beginCall starts a call which appends its events to out.
func (t *Table) beginCall(out []kv.Event) { t.out, t.buffer = out, eventBuffer{base: len(out)} }

// finishCall returns the events of a call.
func (t *Table) finishCall() []kv.Event {
	if t.buffer.describesPools {
		t.describePooled()
	}
	t.closeEvent()
	out := t.out
	t.out, t.buffer = nil, eventBuffer{}
	return out
}

// Clear forgets all blocks and all ambiguous hashes, because events of the engine are missing, and appends a Cleared
// event to out. Blocks which the engine put into memory pools are withdrawn.
func (t *Table) Clear(out []kv.Event) []kv.Event {
	t.withdrawPooled()
	return t.clearCache(out)
}

// ClearRestarted is Clear for an engine which restarted: what it had put into memory pools is still there.
func (t *Table) ClearRestarted(out []kv.Event) []kv.Event {
	t.pooled.restartEngine()
	return t.clearCache(out)
}

func (t *Table) clearCache(out []kv.Event) []kv.Event {
	t.beginCall(out)
	t.ambiguous, t.unusable = nil, false
	t.forgetAll()
	return t.finishCall()
}

// forgetAll empties the table and announces it. Ambiguous hashes are kept.
func (t *Table) forgetAll() {
	t.blocks.clearBlocks()
	t.pages.clearPages()
	t.salts.clearSalts()
	t.roots = adapterRoots{}
	t.labels = nil
	t.group = -1
	t.forgetInferred()
	t.emitCleared()
}

// applyCleared applies a clear of one medium if e names one, otherwise of the engine's own memory, or of
// everything.
func (t *Table) applyCleared(e *Event) {
	t.stats.Cleared++
	tier := eventTier(e)
	t.buffer.tierClears++
	if t.cfg.Clears == ClearsAll && e.Medium == "" || t.isOnlyTier(tier) || t.buffer.tierClears > maxTierClears {
		t.forgetAll()
		t.partial = t.partial && tier != kv.TierDevice
		return
	}
	if tier == kv.TierDevice { // it is known to be empty now
		t.forgetInferred()
		t.partial = false
	}
	// A Cleared event of ours covers all tiers: the survivors are described again after it.
	t.blocks.clearTier(t, tier)
	t.pages.clearTier(t, tier)
	t.describeBlocks()
}

// maxTierClears is the number of single-tier clears in a batch which keep the other tiers. Each costs a
// walk over all blocks.
const maxTierClears = 8

// isOnlyTier reports whether the other tiers are empty.
func (t *Table) isOnlyTier(tier kv.Tier) bool {
	for other := range tierCount {
		if other != int(tier) && (t.blocks.onTier[other] > 0 || t.pages.onTier[other] > 0) {
			return false
		}
	}
	return true
}

// applyRemoved removes one copy of each block of e from its tier.
func (t *Table) applyRemoved(e *Event) {
	if t.rejectsGroup(e) {
		return
	}
	for _, name := range e.Hashes {
		if t.removeEventBlock(name, e) {
			t.stats.Removed++
		} else {
			t.stats.UnknownRemoved++
		}
	}
}

// removeEventBlock removes one copy of a block from e's tier, or all copies from all tiers. It reports
// whether there was one.
func (t *Table) removeEventBlock(name kv.EngineHash, e *Event) (known bool) {
	if !e.AllTiers {
		return t.removeCopy(name, eventTier(e))
	}
	for tier := range kv.Tier(tierCount) {
		for t.removeCopy(name, tier) {
			known = true
		}
	}
	return known
}

func (t *Table) removeCopy(name kv.EngineHash, tier kv.Tier) (known bool) {
	if t.pagesPerBlock > 1 {
		known = t.pages.removeCopy(t, name, tier)
	} else {
		known = t.blocks.removeCopy(t, name, tier)
	}
	if tier == kv.TierDevice {
		if len(t.inferred.resolved) > 0 && !t.isOnDevice(name) {
			t.inferred.releasePrefix(t, name)
		}
		known = t.orphans.removeBlock(t, name) || known
	}
	return known
}

// isOnDevice reports whether a remembered engine block is on the device.
func (t *Table) isOnDevice(name kv.EngineHash) bool {
	id := t.findBlock(name)
	if id == 0 {
		return false
	}
	if t.pagesPerBlock > 1 {
		return t.pages.entries.at(id).refs[kv.TierDevice] > 0
	}
	return t.blocks.entries.at(id).refs[kv.TierDevice] > 0
}

// rejectsGroup reports whether e is of a layer group which is not followed, and counts its blocks. A hash
// is the same in every group of a model, so only one group can be followed.
func (t *Table) rejectsGroup(e *Event) bool {
	if e.Group < 0 || t.group < 0 || e.Group == t.group {
		return false
	}
	t.stats.OtherGroup += uint64(len(e.Hashes))
	return true
}

// tierCount is the number of tiers on which an engine's blocks can be.
const tierCount = 3

// eventTier returns the tier of e, limited to the tiers of the table.
func eventTier(e *Event) kv.Tier { return min(e.Tier, tierCount-1) }

// Stats returns the table's contents and counters.
func (t *Table) Stats() Stats {
	s := t.stats
	copy(s.Blocks[:], t.blocks.onTier[:])
	s.Held = t.blocks.count
	if t.pagesPerBlock > 1 {
		s.Held = t.pages.count
	}
	s.EngineBlock = t.seenSizes.largest
	s.InPools = len(t.pooled.bySeq)
	s.Waiting, s.Inferred, s.Known = len(t.orphans.byHash), len(t.inferred.bySeq), !t.partial
	s.Bytes = t.blocks.sizeBytes() + t.pages.sizeBytes() + t.salts.sizeBytes()
	return s
}

// Err says what to set if the engine's blocks cannot be mapped to Penstock's. It returns nil as long as no
// event shows that. The code is fault.Invalid.
func (t *Table) Err() error {
	if t.unusable {
		return fault.New(fault.Invalid, "the engine's events give the same hash to blocks with different prefixes: what it caches cannot be known; use a version of it whose hashes are chained")
	}
	size, wrong := t.seenSizes.findMismatch(t.cfg.EngineBlockSize)
	if !wrong {
		return nil
	}
	return fault.New(fault.Invalid, "the engine's events are of blocks of %d tokens, %s: set its block size to %d (ours may be a multiple)", size, t.describeExpected(), size)
}

func (t *Table) describeExpected() string {
	if t.pagesPerBlock == 1 {
		return fmt.Sprintf("the worker's of %d", t.cfg.BlockSize)
	}
	return fmt.Sprintf("the worker's of %d, each of %d blocks of the engine", t.cfg.BlockSize, t.pagesPerBlock)
}

// blockSizes records the block sizes which were seen.
type blockSizes struct {
	largest int // of a store
	several int // the largest size of a store of several blocks; only the last block can be shorter
	shorter int // consecutive stores of one short block
}

// maxShortBlocks is the number of consecutive short blocks which cannot all be ends of prompts.
const maxShortBlocks = 64

func (s *blockSizes) recordSize(size, blocks, expected int) {
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

// findMismatch reports whether the engine's block size differs from the expected one, and returns it.
func (s *blockSizes) findMismatch(expected int) (int, bool) {
	switch {
	case s.largest > expected:
		return s.largest, true
	case s.several > 0 && s.several < expected:
		return s.several, true
	case s.largest > 0 && s.largest < expected && s.shorter >= maxShortBlocks:
		return s.largest, true
	}
	return 0, false
}

// Stats holds the contents and the counters of a Table.
type Stats struct {
	Blocks      [kv.Tiers]int // known Penstock blocks, by tier
	Held        int           // remembered engine blocks
	EngineBlock int           // tokens in the engine's blocks; 0 until an event gives it
	Bytes       int           // approximate memory

	Stored, Removed, Cleared uint64 // engine blocks, and clears, which were applied
	Moves                    uint64 // blocks whose state in a pool was reported
	UnknownMoves             uint64 // the same of unknown blocks
	RefusedMoves             uint64 // the same, beyond 256 pools or 1,024 access lists, or beside a LostMoves
	LostMoves                uint64 // transitions which could not be parsed: blocks in pools were withdrawn
	InPools                  int    // blocks which are in or on their way into pools
	Duplicates               uint64 // stored again: additional copies of known blocks
	UnknownRemoved           uint64 // removals of unknown blocks
	Adopted                  uint64 // orphans which were stored

	// Waiting counts the orphans which wait for their parents. Inferred counts the Penstock blocks which
	// are assumed cached because of requests. Known says that the engine has no block without an event.
	Waiting, Inferred int
	Known             bool
	// Resolved counts parent hashes which requests resolved, Doubtful requests which matched several
	// hashes, Refuted resolved hashes which a later request contradicted.
	Resolved, Doubtful, Refuted uint64

	Trimmed uint64 // known, and not in a snapshot

	// Engine blocks which were not stored, by cause.
	Orphans        uint64 // the block before was unknown; Adopted counts the ones stored later
	OtherGroup     uint64 // of a layer group which is not followed (sliding windows, Mamba, a second group); removals too
	Misaligned     uint64 // the tokens do not match the blocks
	Partial        uint64 // shorter than a block
	OtherBlockSize uint64 // of a block size which does not fit Penstock's
	Pairs          uint64 // tokens come as pairs, or are not token ids
	Nameless       uint64 // of an adapter without a name, or with keys which the hash rules cannot express
	Faceless       uint64 // show media, and do not identify it
	Tokenless      uint64 // without tokens, and unknown
	Ambiguous      uint64 // of a hash which another block has too, or after one
	Refused        uint64 // more than MaxBlocks, or more than 65,534 pairs of adapter and salt

	// Unresolved counts stored blocks with media which no recent request here showed: no request finds
	// them.
	Unresolved uint64

	UnknownMedium  uint64 // events of an unknown medium: counted as slow
	UnknownEvents  uint64 // events of unknown types
	SkippedEvents  uint64 // stores which could not be parsed
	DamagedBatches uint64 // with removals which could not be parsed: everything was forgotten
}
