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
	prompt  int        // how many of tokens are prompt
	cached  int        // prompt tokens hit or fetched at the first admission
	tokens  []kv.Token // prompt, then output

	blocks     []int32 // table; the first `registered` ones are in the index
	registered int
	tip        kv.SeqHash // prefix hash of the last registered block

	computed    int // tokens whose K and V are in blocks
	fetched     int // tokens after the computed ones which are fetched by the next Commit
	planned     int // tokens in the current Step
	limit       int // tokens before the first unfinished range which is needed; noLimit if none is
	prefillGoal int // tokens known when added or last preempted

	prev, next *seqState // in its queue
	queue      queueName

	reuse       Switch // off if the scheduler's or the sequence's is
	sealed      bool   // later blocks cannot be registered, because an earlier one is not
	awaitsToken bool   // all tokens are computed and the next one is not known yet
	hold        bool   // it is held when all tokens are computed
	admitted    bool   // at least once
	fetchOnly   bool   // the next Commit fetches, and nothing after the fetched tokens can be computed

	partial *partialState // nil if it was added without unfinished ranges and a transfer
}

// partialState is the state of a sequence which was added with unfinished ranges or a transfer.
type partialState struct {
	transferEnd  int          // 0 when the transfer is over
	lateTransfer bool         // it starts when the blocks are reserved
	unfinished   []TokenRange // finished ones are zero
	all          []TokenRange // of a sequence which Reopens
	// When it was last passed over: the blocks which it needed beside its hits, and the first block which it missed.
	lacked int
	missed kv.SeqHash
}

func newSeqState(seq Sequence, arrival uint64, hasher kv.Hasher, blockSize int) *seqState {
	q := &seqState{
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
		hold:        seq.Hold,
	}
	if len(seq.Unfinished) > 0 || seq.TransferEnd > 0 {
		q.partial = &partialState{unfinished: slices.Clone(seq.Unfinished), transferEnd: seq.TransferEnd, lateTransfer: seq.LateTransfer}
		if seq.Reopens {
			q.partial.all = slices.Clone(seq.Unfinished)
		}
	}
	return q
}

// prefillLeft is the sequence's part of Stats.PrefillTokens.
func (q *seqState) prefillLeft() int {
	ready := q.readyTokens()
	if q.partial != nil {
		ready = max(ready, q.partial.transferEnd)
	}
	return max(0, q.prefillGoal-ready)
}

// readyTokens is the number of tokens which need no computation any more.
func (q *seqState) readyTokens() int { return q.computed + q.fetched }

// pendingTokens is the number of known tokens which are still to be computed, and can be.
func (q *seqState) pendingTokens() int { return max(0, min(len(q.tokens), q.limit)-q.readyTokens()) }

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

// queueName names a queue of the scheduler.
type queueName uint8

const (
	inWaiting queueName = iota
	inRunning
	inPaused
	inHeld
	queueCount
)

// sequenceQueue is a list of sequences in order of arrival, linked through them: insertion at either end and
// removal anywhere cost O(1) and no memory.
type sequenceQueue struct {
	head, tail *seqState
	len        int
}

// insert puts q at its place.
func (l *sequenceQueue) insert(q *seqState) {
	var after *seqState // the sequence behind it
	if l.tail != nil && l.tail.arrival > q.arrival {
		for after = l.head; after.arrival < q.arrival; {
			after = after.next
		}
	}
	q.prev, q.next = l.tail, after
	if after != nil {
		q.prev, after.prev = after.prev, q
	} else {
		l.tail = q
	}
	if q.prev == nil {
		l.head = q
	} else {
		q.prev.next = q
	}
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
