// Package engineevents decodes and repairs the KV-cache event feeds of other engines.
//
// vLLM, SGLang, TensorRT-LLM and their simulators publish numbered batches of events: blocks were stored,
// blocks were removed, all blocks were cleared. Each engine has its own encoding, and each has changed it.
// Three types turn such a feed into Penstock's events. None of them has a goroutine or a clock:
//
//   - [Decoder] reads a batch of any dialect into a [Batch] ([PullDecoder] reads the JSON which
//     TensorRT-LLM serves on request);
//   - [Table] maps the engine's blocks to Penstock's blocks, and turns a batch into events of package kv;
//   - [Machine] keeps the feed consistent: it checks the number of each batch, and decides which batch is
//     applied, when the engine must repeat batches, and when everything known of its cache must be
//     forgotten.
//
// An engine's hash is opaque here ([kv.EngineHash]): it identifies parents and removals of the engine which
// sent it. Penstock's hashes are computed from the tokens and keys of the event by the rules which hash
// requests. What those rules cannot express (prompts of embeddings, adapters without a name, pairs of
// tokens) is counted and left out. An unknown block costs one cache hit. A block with a wrong hash spoils
// every later decision.
//
// docs/format/engine-events.md describes the bytes of all shapes.
package engineevents

import "penstock/core/kv"

// ChangeKind says what happened to an engine's cache.
type ChangeKind uint8

// The kinds of event. The zero value is none of them.
const (
	Stored ChangeKind = iota + 1
	Removed
	Cleared
	Moved // blocks changed their state in a memory pool
)

// String returns the kind's name.
func (k ChangeKind) String() string {
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

// Batch is one message of an engine's event feed. The slices of its events point into memory of the Batch,
// which the next Decode into it reuses: copy what must outlive it.
type Batch struct {
	Time   float64 // seconds since 1970 by the engine's clock
	Rank   int     // data-parallel rank, -1 if the batch does not give one
	Events []Event
	// Unknown counts events of unknown types. Skipped counts store events which could not be parsed.
	// Neither is in Events, and each costs cache hits at most.
	Unknown, Skipped int
	// Lost counts removals and clears which could not be parsed: what was known of the engine's cache
	// before this batch may be wrong.
	Lost int
	// LostMoves counts transitions which could not be parsed: what was known of the engine's blocks in pools
	// before this batch may be wrong.
	LostMoves int

	mem batchMemory
}

// Event is one change of an engine's cache, as the engine reports it.
type Event struct {
	Kind ChangeKind
	// Hashes are the engine hashes of the blocks. For Stored they are in sequence order.
	Hashes []kv.EngineHash
	// Parent is the block before Hashes[0], if HasParent.
	Parent    kv.EngineHash
	HasParent bool
	// Tokens are the tokens of all Hashes, block after block. A Stored event without tokens says that known
	// blocks were copied to another medium.
	Tokens    []kv.Token
	BlockSize int // tokens in a block; 0 where there are no tokens
	// Bigrams says that tokens came as pairs (speculative decoding by bigrams). InvalidTokens says that
	// some are not token ids. In both cases Tokens is empty, and the blocks cannot be hashed.
	Bigrams, InvalidTokens bool
	// LoRA is the adapter's name, "" for none. LoRAID is the engine's number for it, if HasLoRAID.
	LoRA      string
	LoRAID    int64
	HasLoRAID bool
	// Salt is the cache salt, if the event has a field for it (SGLang).
	Salt string
	// Tier is where the blocks are. Medium is the engine's word for it; "" is the engine's own memory.
	Tier   kv.Tier
	Medium string
	// AllTiers says that removed blocks are on no tier any more, whatever Tier is.
	AllTiers bool
	// Group is the engine's group of layers, -1 if the event does not give one. Spec is the attention kind
	// of that group, "" if unknown. They tell groups apart in models which mix attention kinds.
	Group int
	Spec  string
	// Reused says that the blocks were there before: the engine repeats itself, and there is no additional
	// copy.
	Reused bool
	// Extra holds, for each of Hashes, what the block depends on in addition to its tokens. It is nil if
	// the event does not say.
	Extra []Extra
	// Labels and Moves have the label and the state in a pool of each of Hashes, or are nil; the zero value of
	// either is none. Stored only. They are the event's own memory, as is Move.Access.
	Labels []kv.MoELabel
	Moves  []kv.PoolMove
	// Move is what happened to Hashes; without Hashes, to all blocks of the pool. Moved only.
	Move kv.PoolMove
}

// Extra holds the keys which one block depends on in addition to its tokens, in the engine's order.
type Extra struct{ Keys []ExtraKey }

// KeyKind is the form of an ExtraKey.
type KeyKind uint8

// The kinds of key.
const (
	KeyText   KeyKind = iota + 1 // text: an adapter's name, a media object's identifier, or a cache salt
	KeyMedia                     // a media object's identifier and its start offset
	KeyLoRA                      // an adapter's name
	KeySalt                      // a cache salt
	KeyOpaque                    // anything else, such as the digest of a prompt of embeddings
)

// ExtraKey is one thing which a block depends on.
type ExtraKey struct {
	Kind KeyKind
	Text []byte // for all kinds except KeyOpaque
	// Offset is where the media object starts, in tokens from the start of the block. It is negative if the
	// object starts in an earlier block. KeyMedia only.
	Offset int64
}

// batchMemory backs the slices of a batch's events.
type batchMemory struct {
	hashes []kv.EngineHash
	tokens []kv.Token
	extra  []Extra
	keys   []ExtraKey
	text   []byte
}
