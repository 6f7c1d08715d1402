package paged

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// sequence is one request's state.
type sequence struct {
	id      SeqID
	arrival uint64 // order of Add
	salt    kv.Salt
	hasher  kv.Hasher
	media   []kv.Media // without empty ranges and repetitions, sorted
	tokens  []kv.Token // prompt, then output
	prompt  int        // how many of tokens are prompt
	reuse   Switch     // off if the scheduler's or its own is

	blocks     []int32 // table; the first registered ones are in the index
	registered int
	tip        kv.SeqHash // name of the last registered block
	sealed     bool       // later blocks cannot be registered: one before is not

	active   bool // in the batch, not in the queue
	computed int  // tokens whose K and V are in blocks
	planned  int  // tokens of the Step being computed
	goal     int  // tokens known at Add or at the last preemption
	due      bool // all is computed and the next token is not known yet

	admitted bool // at least once
	cached   int  // prompt tokens hit or fetched at the first admission
	fetched  int  // tokens that follow the computed ones and are fetched until the next Commit

	prev, next *sequence // in the queue that it is in
}

func newSequence(seq Sequence, arrival uint64, hasher kv.Hasher, blockSize int) *sequence {
	return &sequence{
		id:      seq.ID,
		arrival: arrival,
		salt:    seq.Salt,
		hasher:  hasher,
		media:   canonical(seq.Media),
		// Room for the first output, so that a prompt is not copied twice.
		tokens: append(make([]kv.Token, 0, len(seq.Tokens)+blockSize), seq.Tokens...),
		prompt: seq.Prompt,
		reuse:  seq.Reuse,
		goal:   len(seq.Tokens),
	}
}

// left is the sequence's part of Stats.PrefillTokens.
func (q *sequence) left() int { return max(0, q.goal-q.there()) }

// there is the number of tokens that need not be computed any more.
func (q *sequence) there() int { return q.computed + q.fetched }

// pending is the number of known tokens that are still to be computed.
func (q *sequence) pending() int { return len(q.tokens) - q.there() }

// content describes block i of the sequence, which is full, as the successor of
// the registered block parent.
func (q *sequence) content(i int, parent int32, tip kv.SeqHash) content {
	size := q.hasher.BlockSize()
	start := i * size
	tokens := q.tokens[start : start+size]
	hash := q.hasher.Block(tokens, start, q.media)
	return content{
		seq:    kv.Extend(tip, uint32(i), hash),
		hash:   hash,
		parent: parent,
		index:  uint32(i),
		after:  tip,
		tokens: tokens,
		start:  start,
		media:  q.media,
		salt:   q.salt,
	}
}

// canonical copies media without empty ranges and repetitions, in a fixed order,
// so that equal sets compare equal.
func canonical(media []kv.Media) []kv.Media {
	if len(media) == 0 {
		return nil
	}
	own := slices.DeleteFunc(slices.Clone(media), func(m kv.Media) bool { return m.Start >= m.End })
	slices.SortFunc(own, func(a, b kv.Media) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Hash, b.Hash))
	})
	return slices.Compact(own)
}
