package paged

// Commit records that the planned batch was computed: its tokens are in the cache and its full blocks are
// registered. sampled holds the next tokens of sequences whose Work asked for one, in any order; entries
// for other sequences are ignored. After a failed batch there is no Commit until the next Step.
//
// A sequence without its token is not scheduled but keeps its blocks. A later Commit may bring the token,
// unless the sequence was preempted meanwhile: then it is computed and asked for again.
func (s *Scheduler) Commit(sampled []Sampled) {
	for q := s.running.head; q != nil; q = q.next {
		if q.planned > 0 {
			s.advance(q)
		}
	}
	for _, t := range sampled {
		if q := s.byID[t.ID]; q != nil && q.due {
			q.tokens = append(q.tokens, t.Token)
			q.due = false
		}
	}
}

// advanceComputed counts the planned tokens of q as computed.
func (s *Scheduler) advance(q *sequence) {
	s.stats.PrefillTokens -= q.left()
	q.computed += q.fetched + q.planned
	q.fetched = 0
	s.stats.PrefillTokens += q.left()
	q.planned = 0
	q.due = q.pending() == 0
	if q.reuse == On {
		s.register(q)
	}
}

// registerBlocks adds the newly full blocks of q to the index. If another sequence registered the same
// block meanwhile, that block replaces q's own. After a block which cannot be registered, none can: their
// identity would depend on another block.
func (s *Scheduler) register(q *sequence) {
	for !q.sealed && (q.registered+1)*s.cfg.BlockSize <= q.computed {
		i, parent := q.registered, int32(none)
		if i > 0 {
			parent = q.blocks[i-1]
		}
		c := q.content(i, parent, q.tip)
		b, ok := s.pool.register(q.blocks[i], &c)
		if !ok {
			q.sealed = true
			return
		}
		if b != q.blocks[i] {
			s.pool.hold(b)
			s.pool.drop(q.blocks[i])
			q.blocks[i] = b
			s.gate.closed = false
		}
		if c.seq == s.gate.miss {
			s.gate.closed = false
		}
		q.registered++
		q.tip = c.seq
	}
}
