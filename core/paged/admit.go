package paged

import "penstock/core/kv"

// gate remembers that the head of the queue did not fit, so that it is not hashed
// and looked up in every step until then. Only two things can make it fit: blocks
// given up, and the first block that it missed being registered. Both open it.
type gate struct {
	closed bool
	miss   kv.SeqHash
}

// admit moves sequences from the queue into the batch, in order, while they fit.
func (s *Scheduler) admit() {
	for !s.gate.closed && s.budget > 0 && s.waiting.head != nil && s.running.len < s.cfg.MaxSeqs {
		q := s.waiting.head
		hits, tip := s.match(q)
		fetch := s.elsewhere(q, hits, tip)
		pending := len(q.tokens) - (len(hits)+fetch)*s.cfg.BlockSize
		if s.cfg.Chunking == Off && pending > s.budget {
			return
		}
		if !s.fits(q, hits) {
			s.gate.closed = true
			return
		}
		s.start(q, hits, tip, fetch)
		s.give(q, min(pending, s.budget))
	}
}

// match finds the longest prefix of q in whole blocks that is cached, short of its
// last token: that one is computed, since its logits are wanted. The hits are valid
// until the next call and not held yet; tip is the name of the last.
func (s *Scheduler) match(q *sequence) (hits []int32, tip kv.SeqHash) {
	s.hits = s.hits[:0]
	if q.reuse == Off {
		return nil, 0
	}
	parent := int32(none)
	for i := range (len(q.tokens) - 1) / s.cfg.BlockSize {
		c := q.content(i, parent, tip)
		b, ok := s.pool.find(&c)
		if !ok {
			s.gate.miss = c.seq
			break
		}
		parent, tip = b, c.seq
		s.hits = append(s.hits, b)
	}
	return s.hits, tip
}

// fits reports whether all that is known of q can be held at once beside what is
// held now, with the reserve left over if others run.
func (s *Scheduler) fits(q *sequence, hits []int32) bool {
	need := s.cfg.blocksFor(len(q.tokens)) - len(hits)
	for _, b := range hits {
		if s.pool.blocks[b].refs == 0 {
			need++ // holding it takes it from what is available
		}
	}
	if s.running.len > 0 {
		need += s.cfg.reserve()
	}
	return need <= s.pool.available()
}

// start puts the head of the queue into the batch with its hits, and fetches blocks.
func (s *Scheduler) start(q *sequence, hits []int32, tip kv.SeqHash, fetch int) {
	s.leave(q)
	s.running.pushBack(q)
	q.active = true

	for _, b := range hits {
		s.pool.hold(b)
	}
	q.blocks = append(q.blocks[:0], hits...)
	q.registered, q.tip = len(hits), tip
	s.stats.PrefillTokens -= q.left()
	q.computed = len(hits) * s.cfg.BlockSize
	s.fetch(q, fetch)
	s.stats.PrefillTokens += q.left()

	if !q.admitted {
		q.admitted = true
		q.cached = min(q.there(), q.prompt)
		s.stats.PromptTokens += uint64(q.prompt)
		s.stats.CachedTokens += uint64(q.cached)
	}
}
