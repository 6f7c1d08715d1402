package paged

import "penstock/core/kv"

// Clear drops every registered block: no sequence will hit what was computed before. Blocks without holders
// become free. Running and paused sequences keep their blocks, which become private, and so do the blocks they add
// until they are preempted. The change is one Cleared event, whatever was cached. Clear returns the number
// of dropped blocks.
func (s *Scheduler) Clear() int {
	n := s.pool.clearIndex()
	for _, l := range [...]*sequenceQueue{&s.running, &s.paused, &s.held} {
		for q := l.head; q != nil; q = q.next {
			q.registered, q.tip = 0, 0
			q.sealed = true
		}
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

// logCleared records that nothing is cached, and drops the earlier changes.
func (l *eventLog) logCleared() {
	l.reset()
	l.changes = append(l.changes, loggedChange{kind: kv.Cleared})
}
