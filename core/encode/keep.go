package encode

// Retention says how long a request needs its rows.
type Retention uint8

// The retentions, from the shortest.
const (
	// DiscardRows gives the rows up when they are staged: the KV cache has what they say. A sequence which is
	// preempted after that is submitted again.
	DiscardRows Retention = iota
	// KeepUntilEnd keeps them until EndRequest, so that the prompt can be prefilled again. They count all that time,
	// and are not evicted.
	KeepUntilEnd
	// KeepForNextTurn keeps them until EndRequest, and after it under their key until their memory is needed.
	// With an embedding cache it is KeepUntilEnd: the cache has them for the next turn.
	KeepForNextTurn
)

// String returns the retention in words.
func (r Retention) String() string {
	return [...]string{"discard", "keep until the end", "keep for the next turn"}[r]
}

// Usage is what decides how long a request needs its rows.
type Usage struct {
	// Branches is the number of beams or choices.
	Branches int
	// MultiTurn says that the next turn of the conversation will probably show the same media.
	MultiTurn bool
	// PrefixCaching says that the KV cache keeps the blocks of prompts.
	PrefixCaching bool
	// Speculative says that drafts are verified: a rejected one may require that the prompt is prefilled again.
	Speculative bool
}

// Retention returns how long the rows are needed. If several lines apply, the longest retention does, with one
// exception: prefix caching makes another turn need no rows, as its prompt begins with blocks which the KV cache has.
//
//	single pass                  DiscardRows      the KV cache is sufficient
//	beam search, n > 1           KeepUntilEnd     a new branch may be prefilled again
//	multi-turn, the same media   KeepForNextTurn  the next turn shows them again
//	prefix caching               DiscardRows      the KV cache finds the prompt by its prefix
//	speculative decoding         KeepUntilEnd     a rejected draft may require another prefill
func (u Usage) Retention() Retention {
	switch {
	case u.MultiTurn && !u.PrefixCaching:
		return KeepForNextTurn
	case u.Branches > 1 || u.Speculative:
		return KeepUntilEnd
	}
	return DiscardRows
}
