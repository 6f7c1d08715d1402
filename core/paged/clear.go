package paged

// Clear forgets every registered block: no sequence will ever hit what was
// computed before. Blocks that nobody holds become free. Running sequences go on
// with theirs, which are private from now on, as are the blocks they add until
// they are preempted. The change is one Cleared event, whatever was cached. It
// returns the number of blocks forgotten.
func (s *Scheduler) Clear() int {
	n := s.pool.clear()
	for q := s.running.head; q != nil; q = q.next {
		q.registered, q.tip = 0, 0
		q.sealed = true
	}
	s.gate.closed = false
	return n
}

// clear empties the index.
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
