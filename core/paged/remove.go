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

// Clear drops every registered block: no sequence will hit what was computed before. Blocks without holders
// become free. Running sequences keep their blocks, which become private, and so do the blocks they add
// until they are preempted. The change is one Cleared event, whatever was cached. Clear returns the number
// of dropped blocks.
func (s *Scheduler) Clear() int {
	n := s.pool.clearIndex()
	for q := s.running.head; q != nil; q = q.next {
		q.registered, q.tip = 0, 0
		q.sealed = true
	}
	s.gate.closed = false
	return n
}

// clearIndex empties the index.
func (p *blockPool) clearIndex() int {
	n := len(p.index)
	for i := range p.blocks {
		b := int32(i)
		if p.blocks[b].state != stateRegistered {
			continue
		}
		idle := p.blocks[b].refs == 0
		if idle {
			p.removeCached(b)
		}
		p.unregisterBlock(b)
		if idle {
			p.freeBlock(b)
		}
	}
	p.log.logCleared()
	return n
}
