package paged

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// seqState is the state of one sequence.
type seqState struct {
	id      SeqID
	arrival uint64 // order of Add
	salt    kv.Salt
	hasher  kv.Hasher
	media   []kv.Media // sorted, without empty ranges and duplicates
	tokens  []kv.Token // prompt, then output
	prompt  int        // how many of tokens are prompt
	reuse   Switch     // off if the scheduler's or the sequence's is

	blocks     []int32 // table; the first `registered` ones are in the index
	registered int
	tip        kv.SeqHash // prefix hash of the last registered block
	sealed     bool       // later blocks cannot be registered, because an earlier one is not

	active      bool // in the batch, not in the queue
	computed    int  // tokens whose K and V are in blocks
	planned     int  // tokens in the current Step
	prefillGoal int  // tokens known when added or last preempted
	awaitsToken bool // all tokens are computed and the next one is not known yet

	admitted bool // at least once
	cached   int  // prompt tokens hit or fetched at the first admission
	fetched  int  // tokens after the computed ones which are fetched by the next Commit

	prev, next *seqState // in its queue
}

func newSeqState(seq Sequence, arrival uint64, hasher kv.Hasher, blockSize int) *seqState {
	return &seqState{
		id:      seq.ID,
		arrival: arrival,
		salt:    seq.Salt,
		hasher:  hasher,
		media:   canonicalMedia(seq.Media),
		// Reserve the first output block, so that a prompt is not copied twice.
		tokens:      append(make([]kv.Token, 0, len(seq.Tokens)+blockSize), seq.Tokens...),
		prompt:      seq.Prompt,
		reuse:       seq.Reuse,
		prefillGoal: len(seq.Tokens),
	}
}

// prefillLeft is the sequence's part of Stats.PrefillTokens.
func (q *seqState) prefillLeft() int { return max(0, q.prefillGoal-q.readyTokens()) }

// readyTokens is the number of tokens which need no computation any more.
func (q *seqState) readyTokens() int { return q.computed + q.fetched }

// pendingTokens is the number of known tokens which are still to be computed.
func (q *seqState) pendingTokens() int { return len(q.tokens) - q.readyTokens() }

// describeBlock returns the content of block i, which is full, as the successor of the registered block
// parent.
func (q *seqState) describeBlock(i int, parent int32, tip kv.SeqHash) blockContent {
	size := q.hasher.BlockSize()
	start := i * size
	tokens := q.tokens[start : start+size]
	hash := q.hasher.HashBlock(tokens, start, q.media)
	return blockContent{
		seq:       kv.ExtendSeq(tip, uint32(i), hash),
		hash:      hash,
		parent:    parent,
		index:     uint32(i),
		parentSeq: tip,
		tokens:    tokens,
		start:     start,
		media:     q.media,
		salt:      q.salt,
	}
}

// canonicalMedia copies media without empty ranges and duplicates, in a fixed order, so that equal sets
// compare equal.
func canonicalMedia(media []kv.Media) []kv.Media {
	if len(media) == 0 {
		return nil
	}
	own := slices.DeleteFunc(slices.Clone(media), func(m kv.Media) bool { return m.Start >= m.End })
	slices.SortFunc(own, func(a, b kv.Media) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Hash, b.Hash))
	})
	return slices.Compact(own)
}

// sequenceQueue is an ordered list of sequences, linked through them: insertion at either end and removal
// anywhere cost O(1) and no memory.
type sequenceQueue struct {
	head, tail *seqState
	len        int
}

func (l *sequenceQueue) pushBack(q *seqState) {
	q.prev, q.next = l.tail, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
	l.len++
}

func (l *sequenceQueue) pushFront(q *seqState) {
	q.prev, q.next = nil, l.head
	if l.head == nil {
		l.tail = q
	} else {
		l.head.prev = q
	}
	l.head = q
	l.len++
}

func (l *sequenceQueue) remove(q *seqState) {
	if q.prev == nil {
		l.head = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.tail = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.len--
}
