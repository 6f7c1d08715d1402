package paged

import "penstock/core/kv"

// ImportTokens says that the tokens of a sequence up to end are in its blocks as if they were computed, and reports
// whether it has a reservation for them: it was added with a TransferEnd, of at least end, which the step has Reserved
// and neither Preempted since, and end is at the end of a block which is not computed. From then on the blocks are
// computed ones: they are registered, and the table has the registered blocks where other sequences have computed the
// same meanwhile. It may be called at any time, also between Step and Commit, but not before the Commit of a step which
// has fetched tokens of the sequence.
//
// Before TransferEnd the sequence goes on waiting for the rest.
func (s *Scheduler) ImportTokens(id SeqID, end int) bool {
	q := s.byID[id]
	if q == nil || q.queue != inPaused || !q.awaitsTransfer() || end%s.cfg.BlockSize != 0 || end <= q.computed || end > q.partial.transferEnd {
		return false
	}
	s.countPartial(q, -1)
	s.stats.PrefillTokens -= q.prefillLeft()
	s.stats.ImportedTokens += uint64(end - q.computed)
	q.computed = end
	if q.reuse == On {
		s.registerBlocks(q)
	}
	s.stats.PrefillTokens += q.prefillLeft()
	s.updateLimit(q)
	s.gate.closed = false
	return true
}

// FinishTransfer says that no more tokens of a sequence are imported: what is not there is computed. It keeps its
// reservation, or its place in the queue. FinishTransfer reports whether it waited for a transfer. It may be called at any
// time, also between Step and Commit.
func (s *Scheduler) FinishTransfer(id SeqID) bool {
	q := s.byID[id]
	if q == nil || !q.awaitsTransfer() {
		return false
	}
	s.countPartial(q, -1)
	s.stats.PrefillTokens -= q.prefillLeft()
	q.partial.transferEnd = 0
	s.stats.PrefillTokens += q.prefillLeft()
	s.updateLimit(q)
	s.gate.closed = false
	return true
}

// AwaitTransfer makes a waiting sequence one which was added with a TransferEnd of end and LateTransfer, such as one which
// was preempted: its tokens can be imported when it is admitted again. It reports whether the sequence waits, takes part in
// reuse, and awaits no transfer already, and whether end is possible. It must not be called between Step and Commit.
func (s *Scheduler) AwaitTransfer(id SeqID, end int) bool {
	q := s.byID[id]
	if q == nil || q.queue != inWaiting || q.reuse == Off || q.hold || q.awaitsTransfer() || end <= 0 || end >= len(q.tokens) || end%s.cfg.BlockSize != 0 {
		return false
	}
	s.countPartial(q, -1)
	s.stats.PrefillTokens -= q.prefillLeft()
	if q.partial == nil {
		q.partial = &partialState{}
	}
	q.partial.transferEnd, q.partial.lateTransfer = end, true
	s.stats.PrefillTokens += q.prefillLeft()
	s.updateLimit(q)
	return true
}

// SequenceTokens returns the tokens of a sequence: its prompt, and its output so far. The
// slice belongs to the scheduler, and is valid until its next method.
func (s *Scheduler) SequenceTokens(id SeqID) []kv.Token {
	if q := s.byID[id]; q != nil {
		return q.tokens
	}
	return nil
}

// awaitsTransfer reports whether tokens of q are to be imported.
func (q *seqState) awaitsTransfer() bool {
	return q.partial != nil && q.partial.transferEnd > q.readyTokens()
}

// SequenceBlocks returns how many of a sequence's first tokens are computed, cached or imported, and its block table:
// position p is in blocks[p/BlockSize]. It has no table if it waits, or is unknown. The slice belongs to the scheduler,
// and is valid until its next method.
//
// The blocks of tokens to be imported stay the same, and nothing else is in them, until they are imported or the sequence
// is preempted or removed. So do blocks which are full of computed tokens.
func (s *Scheduler) SequenceBlocks(id SeqID) (ready int, blocks []int32) {
	q := s.byID[id]
	if q == nil {
		return 0, nil
	}
	return q.computed, q.blocks
}
