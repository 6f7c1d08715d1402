package enginefeed

import (
	"errors"

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
	// BlockSize is how many tokens our blocks have: the engine's block size, or a multiple of it,
	// by which so many of its blocks are one of ours. It must be set.
	BlockSize int
	// Adapters names the adapters that events name by the engine's number only. It may be nil.
	Adapters map[int64]string
	// Clears is what the engine means by a clear.
	Clears Scope
	// MaxBlocks is how many of the engine's blocks are remembered; 0 is 16 Mi. More are left out and counted.
	MaxBlocks int
	// Seed decides where blocks are in memory, and nothing that can be seen from outside.
	Seed uint64
}

// Table knows which blocks an engine has, and by which names of ours. It has one user at a time.
type Table struct{}

// NewTable returns the table of an engine whose cache is empty.
func NewTable(cfg Config) (*Table, error) { return nil, errors.New("enginefeed: not built yet") }

// Apply appends to out what b changes. The slices of the events are the caller's.
func (t *Table) Apply(b *Batch, out []kv.Event) []kv.Event { return out }

// Describe appends to out a Cleared event and Stored events that say all that is known,
// parents before children. The slices of the events are the caller's.
func (t *Table) Describe(out []kv.Event) []kv.Event { return out }

// Clear forgets all blocks, and appends a Cleared event to out.
func (t *Table) Clear(out []kv.Event) []kv.Event { return out }

// Stats returns what the table has and has counted.
func (t *Table) Stats() Stats { return Stats{} }

// Err says what to set if the engine's blocks cannot be turned into ours; nil if they can. The code is fault.Invalid.
func (t *Table) Err() error { return nil }

// Trim removes from the engine's own memory what s does not have, which must have been taken at the very
// point of the feed that was applied last ([Machine.Next] is s.Header.Resume), and appends the changes to out.
func (t *Table) Trim(s *Snapshot, out []kv.Event) []kv.Event { return out }

// Stats is what a Table has, and has counted since it was made.
type Stats struct {
	Blocks      [kv.Tiers]int // of ours that are known, by tier
	Held        int           // the engine's blocks that are remembered
	EngineBlock int           // tokens in the engine's blocks; 0 until an event says it
	Bytes       int           // memory taken, about

	Stored, Removed, Cleared uint64 // blocks of the engine, and clears, that were taken in
	Duplicates               uint64 // stored once more: further copies of blocks that were there
	UnknownRemoved           uint64 // removed, and not known

	// Blocks of the engine that were not taken in, and why.
	Orphans        uint64 // the block before is not known
	OtherGroup     uint64 // of a group of layers that cannot be followed (sliding windows, Mamba), or of a further one
	Misaligned     uint64 // the tokens are not those of the blocks
	Partial        uint64 // shorter than a block
	OtherBlockSize uint64 // of a block size that does not fit ours
	Pairs          uint64 // tokens come as pairs, or are no ids of a vocabulary
	Nameless       uint64 // of an adapter without a name, or with keys that have no place in our hashes
	Tokenless      uint64 // without tokens, and not known
	Refused        uint64 // more than MaxBlocks

	UnknownMedium  uint64 // events of a medium that is not known: taken for a slow one
	UnknownEvents  uint64 // events of types that are not known
	SkippedEvents  uint64 // stores that could not be understood
	DamagedBatches uint64 // with removals that could not be understood: all was forgotten
}
