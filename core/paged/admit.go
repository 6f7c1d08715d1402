package paged

import "penstock/core/kv"

// admissionGate remembers that the head of the queue did not fit, and those which were passed over before it, so that
// they are not hashed and looked up again in every step. Only these events can make one fit: blocks were freed, the first
// block which it missed was registered, or a transfer ended, after which an older sequence may be preempted. All open
// the gate.
type admissionGate struct {
	closed bool
	miss   kv.SeqHash
	passed map[kv.SeqHash]struct{} // the first blocks which those missed that were passed over
}

// passOver remembers the block which q missed, which is passed over.
func (g *admissionGate) passOver(q *seqState) {
	if g.passed == nil {
		g.passed = map[kv.SeqHash]struct{}{}
	}
	g.passed[q.partial.missed] = struct{}{}
}

// registerBlock opens the gate if a sequence missed the block.
func (g *admissionGate) registerBlock(seq kv.SeqHash) {
	if _, passed := g.passed[seq]; passed || seq == g.miss {
		g.closed = false
	}
}

// admitWaiting moves sequences from the queue into the batch, in order, while they fit. It passes over encoding
// ones which do not. After a preemption of one which is not encoding it admits none.
func (s *Scheduler) admitWaiting(out *Step) {
	if !s.gate.closed {
		clear(s.gate.passed)
	}
	for q := s.waiting.head; q != nil && !s.gate.closed && !s.short && s.budget > 0; {
		next := q.next
		if !s.admitSequence(q, out) {
			return
		}
		q = next
	}
}

// admitSequence admits q if it fits, and reports whether those behind it may be admitted.
func (s *Scheduler) admitSequence(q *seqState, out *Step) bool {
	if !s.hasPlace() && !q.isEncoding() {
		return false
	}
	if q.partial != nil && (out.isPreempted(q) || s.isKnownShort(q)) {
		s.gate.passOver(q)
		return true
	}
	hits, tip, miss := s.matchPrefix(q)
	fetch := s.countFetchable(q, hits, tip)
	ready := (len(hits) + fetch) * s.cfg.BlockSize
	limit := s.limitOf(q, ready)
	pending := max(0, min(len(q.tokens), limit)-ready)
	switch passable := s.isPassable(q, ready); {
	case !s.hasPlace() && fetch > 0:
		return passable
	case s.cfg.Chunking == Off && pending > s.budget:
		return false
	case s.missingBlocks(q, hits) <= 0:
	case passable:
		q.partial.lacked, q.partial.missed = s.cfg.blocksFor(len(q.tokens))-len(hits), miss
		s.gate.passOver(q)
		if q.partial.reopens() && !q.awaitsTransfer() {
			out.PassedOver = append(out.PassedOver, PassedSequence{ID: q.id, Ready: ready})
		}
		return true
	case !s.reclaimFor(q, hits, out):
		// Those preempted in this step are looked at in the next one, and q is passable again if a hit is evicted.
		s.gate.closed, s.gate.miss = !s.gaveUp && !s.isPassable(q, 0), miss
		return false
	}
	runs := s.hasPlace() // some may have been preempted for it
	s.startSequence(q, hits, tip, fetch)
	if q.partial != nil {
		s.reserveBlocks(q)
		out.Reserved = append(out.Reserved, Reservation{ID: q.id, Ready: ready})
	}
	if !runs || pending == 0 && fetch == 0 {
		s.moveSequence(q, inPaused)
		return true
	}
	q.fetchOnly = pending == 0
	s.scheduleTokens(q, min(pending, s.budget))
	return true
}

// hasPlace reports whether fewer sequences run than may.
func (s *Scheduler) hasPlace() bool { return s.running.len < s.cfg.MaxSeqs }

// matchPrefix finds the longest cached prefix of q in whole blocks, excluding its last token: that one is
// computed because its logits are needed. The hits are valid until the next call and not held yet. tip is
// the prefix hash of the last hit, miss that of the block after it, 0 if that one is not looked up.
func (s *Scheduler) matchPrefix(q *seqState) (hits []int32, tip, miss kv.SeqHash) {
	s.hits = s.hits[:0]
	if q.reuse == Off {
		return nil, 0, 0
	}
	parent := int32(noBlock)
	for i := range (len(q.tokens) - 1) / s.cfg.BlockSize {
		c := q.describeBlock(i, parent, tip)
		b, ok := s.pool.findBlock(&c)
		if !ok {
			return s.hits, tip, c.seq
		}
		parent, tip = b, c.seq
		s.hits = append(s.hits, b)
	}
	return s.hits, tip, 0
}

// CachedPrefix returns how many of a sequence's first tokens are cached now: whole blocks, and never its last
// token. It changes nothing, and the blocks may be evicted before the sequence is admitted.
func (s *Scheduler) CachedPrefix(seq Sequence) int {
	hasher, err := kv.NewHasher(s.cfg.BlockSize, seq.Salt)
	if err != nil || s.cfg.Reuse == Off {
		return 0
	}
	hits, _, _ := s.matchPrefix(&seqState{salt: seq.Salt, hasher: hasher, media: canonicalMedia(seq.Media), tokens: seq.Tokens, reuse: seq.Reuse})
	return len(hits) * s.cfg.BlockSize
}

// CachedTokens is CachedPrefix of a sequence which was added, with what it has generated. It is 0 if there is none.
func (s *Scheduler) CachedTokens(id SeqID) int {
	q := s.byID[id]
	if q == nil {
		return 0
	}
	hits, _, _ := s.matchPrefix(q)
	return len(hits) * s.cfg.BlockSize
}

// missingBlocks returns how many blocks are missing for all known tokens of q, in addition to what is held now,
// with the reserve left over; at most 0 if it fits.
func (s *Scheduler) missingBlocks(q *seqState, hits []int32) int {
	need := s.cfg.blocksFor(len(q.tokens)) - len(hits)
	for _, b := range hits {
		if s.pool.blocks[b].refs == 0 {
			need++ // holding it makes it unavailable
		}
	}
	return need + s.reserve() - s.pool.availableBlocks()
}

// reserve is the number of blocks which an admission leaves free now: none if no sequence can grow.
func (s *Scheduler) reserve() int {
	if s.running.len+s.paused.len == s.partial.encoding[inRunning]+s.partial.encoding[inPaused] {
		return 0
	}
	return s.cfg.reservedBlocks()
}

// startSequence puts a waiting sequence into the batch with its hits, and fetches blocks.
func (s *Scheduler) startSequence(q *seqState, hits []int32, tip kv.SeqHash, fetch int) {
	s.leaveQueue(q)
	for _, b := range hits {
		s.pool.holdBlock(b)
	}
	q.blocks = append(q.blocks[:0], hits...)
	q.registered, q.tip = len(hits), tip
	s.stats.PrefillTokens -= q.prefillLeft()
	q.computed = len(hits) * s.cfg.BlockSize
	s.fetchBlocks(q, fetch)
	s.stats.PrefillTokens += q.prefillLeft()
	q.limit = s.limitOf(q, q.readyTokens())
	s.enterQueue(q, inRunning)

	if !q.admitted {
		q.admitted = true
		q.cached = min(q.readyTokens(), q.prompt)
		s.stats.PromptTokens += uint64(q.prompt)
		s.stats.CachedTokens += uint64(q.cached)
	}
}
