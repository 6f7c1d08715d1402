package paged

// Commit records that the planned batch was computed: its tokens are in the cache and its full blocks are
// registered. sampled holds the next tokens of sequences whose Work asked for one, in any order; entries
// for other sequences are ignored. After a failed batch there is no Commit until the next Step.
//
// A sequence without its token is not scheduled but keeps its blocks. A later Commit may bring the token,
// unless the sequence was preempted meanwhile: then it is computed and asked for again.
func (s *Scheduler) Commit(sampled []SampledToken) {
	for q := s.running.head; q != nil; q = q.next {
		if q.planned > 0 {
			s.advanceComputed(q)
		}
	}
	for _, t := range sampled {
		if q := s.byID[t.ID]; q != nil && q.awaitsToken {
			q.tokens = append(q.tokens, t.Token)
			q.awaitsToken = false
		}
	}
}

// advanceComputed counts the planned tokens of q as computed.
func (s *Scheduler) advanceComputed(q *seqState) {
	s.stats.PrefillTokens -= q.prefillLeft()
	q.computed += q.fetched + q.planned
	q.fetched = 0
	s.stats.PrefillTokens += q.prefillLeft()
	q.planned = 0
	q.awaitsToken = q.pendingTokens() == 0
	if q.reuse == On {
		s.registerBlocks(q)
	}
}

// registerBlocks adds the newly full blocks of q to the index. If another sequence registered the same
// block meanwhile, that block replaces q's own. After a block which cannot be registered, none can: their
// identity would depend on another block.
func (s *Scheduler) registerBlocks(q *seqState) {
	for !q.sealed && (q.registered+1)*s.cfg.BlockSize <= q.computed {
		i, parent := q.registered, int32(noBlock)
		if i > 0 {
			parent = q.blocks[i-1]
		}
		c := q.describeBlock(i, parent, q.tip)
		b, ok := s.pool.registerBlock(q.blocks[i], &c)
		if !ok {
			q.sealed = true
			return
		}
		if b != q.blocks[i] {
			s.pool.holdBlock(b)
			s.pool.dropHolder(q.blocks[i])
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
