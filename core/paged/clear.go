package paged

// Clear drops every registered block: no sequence will hit what was computed before. Blocks without holders
// become free. Running sequences keep their blocks, which become private, and so do the blocks they add
// until they are preempted. The change is one Cleared event, whatever was cached. Clear returns the number
// of dropped blocks.
func (s *Scheduler) Clear() int {
	n := s.pool.clear()
	for q := s.running.head; q != nil; q = q.next {
		q.registered, q.tip = 0, 0
		q.sealed = true
	}
	s.gate.closed = false
	return n
}

// clearIndex empties the index.
func (p *pool) clear() int {
	n := len(p.index)
	for i := range p.blocks {
		b := int32(i)
		if p.blocks[b].state != registered {
			continue
		}
		idle := p.blocks[b].refs == 0
		if idle {
			p.unlink(b)
		}
		p.unregister(b)
		if idle {
			p.release(b)
		}
	}
	p.log.cleared()
	return n
}
