package paged

// Remove forgets a sequence, finished or aborted, whatever it was doing, and
// reports whether there was one. Its full blocks stay cached, the last one being
// the first to be evicted. Between Step and Commit its share of the step is lost.
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

// leave takes q out of the queue it is in.
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

// release lets go of q's blocks, last to first, so that of those that nobody
// holds now the ones that extend others are evicted first.
func (s *Scheduler) release(q *sequence) {
	for i := len(q.blocks) - 1; i >= 0; i-- {
		s.pool.drop(q.blocks[i])
	}
	q.blocks = q.blocks[:0]
	q.registered, q.tip, q.sealed, q.fetched = 0, 0, false, 0
	s.gate.closed = false
}
