package enginefeed

import "penstock/core/kv"

// Kind says what happened to an engine's cache.
type Kind uint8

// The kinds of event. The zero value is none of them.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "kind?"
}

// Batch is what an engine published at once. The slices of its events point into memory of
// the Batch, which is used again by the next Decode into it: whoever keeps one copies it.
type Batch struct {
	Time   float64 // seconds since 1970 by the engine's clock
	Rank   int     // data-parallel rank, -1 if the batch does not say
	Events []Event
	// Unknown counts events of types that are not known, Skipped those that were stores and could
	// not be understood. Both are left out of Events and cost hits at most.
	Unknown, Skipped int
	// Lost counts removals and clears that could not be understood: what was known of the
	// engine's cache before this batch may be wrong.
	Lost int

	mem memory
}

// Event is one change of an engine's cache, in the engine's own words.
type Event struct {
	Kind Kind
	// Hashes name the blocks, in order of the sequence where they are stored.
	Hashes []kv.EngineHash
	// Parent is the block before Hashes[0], if HasParent.
	Parent    kv.EngineHash
	HasParent bool
	// Tokens are those of all of Hashes, one block after another. An event without tokens
	// says that known blocks are on a further medium.
	Tokens    []kv.Token
	BlockSize int // tokens in a block; 0 where there are no tokens
	// Pairs says that tokens came as pairs (speculative decoding by bigrams), Odd that some are
	// no ids of a vocabulary: Tokens are empty then, and the blocks have no name of ours.
	Pairs, Odd bool
	// LoRA names the adapter, "" is none; LoRAID is the engine's own number for it, if HasLoRAID.
	LoRA      string
	LoRAID    int64
	HasLoRAID bool
	// Salt is the cache salt where the event has a field for it (SGLang).
	Salt string
	// Tier is where the blocks are; Medium is the engine's word for it, "" is its own memory.
	Tier   kv.Tier
	Medium string
	// Everywhere says of removed blocks that they are on no tier any more, whatever Tier is.
	Everywhere bool
	// Group is the engine's group of layers, -1 if the event does not say, and Spec the kind of attention of that
	// group, "" if unknown. Groups of models that mix kinds of attention are told apart by them.
	Group int
	Spec  string
	// Reused says that the blocks were there before: the engine repeats itself, there is no further copy.
	Reused bool
	// Extra has, for each of Hashes, what beside its tokens the block depends on; nil if the event does not say.
	Extra []Extra
}

// Extra is what one block depends on beside its tokens: keys in the engine's order.
type Extra struct{ Keys []Key }

// KeyKind says what a Key looks like.
type KeyKind uint8

// The kinds of key.
const (
	KeyText   KeyKind = iota + 1 // text: the name of an adapter, a media object's identifier, a cache salt
	KeyMedia                     // a media object's identifier, and where it begins
	KeyLoRA                      // an adapter's name
	KeySalt                      // a cache salt
	KeyOpaque                    // anything else, such as the digest of a prompt of embeddings
)

// Key is one thing that a block depends on.
type Key struct {
	Kind KeyKind
	Text []byte // of all but KeyOpaque
	// Offset is where the media object begins, in tokens from the beginning of the
	// block: negative if it began in an earlier one. KeyMedia only.
	Offset int64
}

// memory is what the slices of a batch's events point into.
type memory struct {
	hashes []kv.EngineHash
	tokens []kv.Token
	extra  []Extra
	keys   []Key
	text   []byte
}
