package paged

// RemoveSequence removes a sequence, finished or aborted, in any state, and reports whether there was one.
// Its full blocks stay cached, and the last one is evicted first. Between Step and Commit its part of the
// step is lost.
func (s *Scheduler) RemoveSequence(id SeqID) bool {
	q, ok := s.byID[id]
	if !ok {
		return false
	}
	s.forgetSequence(q)
	return true
}

func (s *Scheduler) forgetSequence(q *seqState) {
	s.stats.PrefillTokens -= q.prefillLeft()
	delete(s.byID, q.id)
	s.leaveQueue(q)
	s.releaseBlocks(q)
}

// leaveQueue removes q from its queue.
func (s *Scheduler) leaveQueue(q *seqState) {
	if q.active {
		s.running.remove(q)
		q.active = false
	} else {
		s.waiting.remove(q)
		if q.admitted {
			s.preempted--
		}
	}
}

// releaseBlocks releases q's blocks, last to first, so that blocks which extend others are evicted before
// them.
func (s *Scheduler) releaseBlocks(q *seqState) {
	for i := len(q.blocks) - 1; i >= 0; i-- {
		s.pool.dropHolder(q.blocks[i])
	}
	q.blocks = q.blocks[:0]
	q.registered, q.tip, q.sealed, q.fetched = 0, 0, false, 0
	s.gate.closed = false
}
