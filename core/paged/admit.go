package paged

import "penstock/core/kv"

// admissionGate remembers that the head of the queue did not fit, so that it is not hashed and looked up
// again in every step. Only two events can make it fit: blocks were freed, or the first block which it
// missed was registered. Both open the gate.
type admissionGate struct {
	closed bool
	miss   kv.SeqHash
}

// admitWaiting moves sequences from the queue into the batch, in order, while they fit.
func (s *Scheduler) admitWaiting() {
	for !s.gate.closed && s.budget > 0 && s.waiting.head != nil && s.running.len < s.cfg.MaxSeqs {
		q := s.waiting.head
		hits, tip := s.matchPrefix(q)
		fetch := s.countFetchable(q, hits, tip)
		pending := len(q.tokens) - (len(hits)+fetch)*s.cfg.BlockSize
		if s.cfg.Chunking == Off && pending > s.budget {
			return
		}
		if !s.canAdmit(q, hits) {
			s.gate.closed = true
			return
		}
		s.startSequence(q, hits, tip, fetch)
		s.scheduleTokens(q, min(pending, s.budget))
	}
}

// matchPrefix finds the longest cached prefix of q in whole blocks, excluding its last token: that one is
// computed because its logits are needed. The hits are valid until the next call and not held yet. tip is
// the prefix hash of the last hit.
func (s *Scheduler) matchPrefix(q *seqState) (hits []int32, tip kv.SeqHash) {
	s.hits = s.hits[:0]
	if q.reuse == Off {
		return nil, 0
	}
	parent := int32(noBlock)
	for i := range (len(q.tokens) - 1) / s.cfg.BlockSize {
		c := q.describeBlock(i, parent, tip)
		b, ok := s.pool.findBlock(&c)
		if !ok {
			s.gate.miss = c.seq
			break
		}
		parent, tip = b, c.seq
		s.hits = append(s.hits, b)
	}
	return s.hits, tip
}

// CachedPrefix returns how many of a sequence's first tokens are cached now: whole blocks, and never its last
// token. It changes nothing, and the blocks may be evicted before the sequence is admitted.
func (s *Scheduler) CachedPrefix(seq Sequence) int {
	hasher, err := kv.NewHasher(s.cfg.BlockSize, seq.Salt)
	if err != nil || len(seq.Tokens) == 0 || s.cfg.Reuse == Off {
		return 0
	}
	miss := s.gate.miss // of the head of the queue
	hits, _ := s.matchPrefix(newSeqState(seq, 0, hasher, s.cfg.BlockSize))
	s.gate.miss = miss
	return len(hits) * s.cfg.BlockSize
}

// canAdmit reports whether all known tokens of q fit in addition to what is held now, with the reserve left
// over if other sequences run.
func (s *Scheduler) canAdmit(q *seqState, hits []int32) bool {
	need := s.cfg.blocksFor(len(q.tokens)) - len(hits)
	for _, b := range hits {
		if s.pool.blocks[b].refs == 0 {
			need++ // holding it makes it unavailable
		}
	}
	if s.running.len > 0 {
		need += s.cfg.reservedBlocks()
	}
	return need <= s.pool.availableBlocks()
}

// startSequence puts the head of the queue into the batch with its hits, and fetches blocks.
func (s *Scheduler) startSequence(q *seqState, hits []int32, tip kv.SeqHash, fetch int) {
	s.leaveQueue(q)
	s.running.pushBack(q)
	q.active = true

	for _, b := range hits {
		s.pool.holdBlock(b)
	}
	q.blocks = append(q.blocks[:0], hits...)
	q.registered, q.tip = len(hits), tip
	s.stats.PrefillTokens -= q.prefillLeft()
	q.computed = len(hits) * s.cfg.BlockSize
	s.fetchBlocks(q, fetch)
	s.stats.PrefillTokens += q.prefillLeft()

	if !q.admitted {
		q.admitted = true
		q.cached = min(q.readyTokens(), q.prompt)
		s.stats.PromptTokens += uint64(q.prompt)
		s.stats.CachedTokens += uint64(q.cached)
	}
}
