package paged

// RemoveSequence removes a sequence, finished or aborted, in any state, and reports whether there was one.
// Its full blocks stay cached, and the last one is evicted first. Between Step and Commit its part of the
// step is lost.
func (s *Scheduler) Remove(id SeqID) bool {
	q, ok := s.byID[id]
	if !ok {
		return false
	}
	s.forget(q)
	return true
}

func (s *Scheduler) forget(q *sequence) {
	s.stats.PrefillTokens -= q.left()
	delete(s.byID, q.id)
	s.leave(q)
	s.release(q)
}

// leaveQueue removes q from its queue.
func (s *Scheduler) leave(q *sequence) {
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
func (s *Scheduler) release(q *sequence) {
	for i := len(q.blocks) - 1; i >= 0; i-- {
		s.pool.drop(q.blocks[i])
	}
	q.blocks = q.blocks[:0]
	q.registered, q.tip, q.sealed, q.fetched = 0, 0, false, 0
	s.gate.closed = false
}
