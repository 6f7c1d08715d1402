package paged

import "penstock/core/kv"

// Step plans the next batch into out, and reuses its slices. Nothing counts as computed until Commit: after
// a failed batch the shell removes the sequences which caused it and calls Step again, which makes a new
// plan.
func (s *Scheduler) Step(out *Step) {
	out.Work, out.Preempted, out.Reserved = out.Work[:0], out.Preempted[:0], out.Reserved[:0]
	out.PassedOver, out.Failed = out.PassedOver[:0], out.Failed[:0]
	s.discardPlan()
	s.budget, s.gaveUp, s.short = s.cfg.TokenBudget, false, false
	s.resumeSequences()
	prefills := s.planDecodes(out)
	if resumed := s.resumeSequences(); resumed || prefills { // places may be free now
		s.planPrefills(out)
	}
	s.admitWaiting(out)
	s.emitWork(out)
}

// discardPlan drops a plan which was not committed.
func (s *Scheduler) discardPlan() {
	for q := s.running.head; q != nil; q = q.next {
		q.planned = 0
	}
}

// planDecodes schedules one token for every sequence which needs exactly one, oldest first, and reports
// whether some need more. While a block is missing it preempts the newest encoding sequence or, if there is none,
// the newest sequence.
func (s *Scheduler) planDecodes(out *Step) (prefills bool) {
	for q := s.running.head; q != nil; {
		next := q.next
		switch pending := q.pendingTokens(); {
		case len(q.tokens) >= s.MaxTokens():
			s.failSequence(q, out)
		case pending > 1:
			prefills = true
		case pending == 1:
			for s.tokenRoom(q) == 0 {
				newest := s.newestHolder()
				s.preemptSequence(newest, out)
				if newest == q {
					return prefills
				}
			}
			s.scheduleTokens(q, 1)
			next = q.next // later sequences may be gone
		}
		q = next
	}
	return prefills
}

// planPrefills spends the budget on sequences which need tokens and have none yet, oldest first, as far as there
// are blocks. A sequence which remains unfinished has spent the budget or the last block, so no sequence is
// admitted after it: all but the newest have the blocks for their known tokens, as sequences which were added with
// unfinished ranges always have. A prefill preempts only encoding sequences. It keeps its blocks until an older
// sequence needs them.
//
// Without chunking, a prefill here has its blocks: it was planned whole in a step which failed, or has paused. If it
// does not fit into what is left of the budget, it waits for a later step, and the others behind it.
func (s *Scheduler) planPrefills(out *Step) {
	for q := s.running.head; q != nil && s.budget > 0; q = q.next {
		pending := q.pendingTokens()
		if pending == 0 || q.planned > 0 {
			continue
		}
		if s.cfg.Chunking == Off && pending > s.budget {
			s.budget = 0
			return
		}
		n := min(pending, s.budget)
		for s.tokenRoom(q) < n && s.holdsEncoding() {
			s.preemptSequence(s.newestHolder(), out)
		}
		s.scheduleTokens(q, min(n, s.tokenRoom(q)))
	}
}

// tokenRoom is the number of tokens for which q has blocks or can get them.
func (s *Scheduler) tokenRoom(q *seqState) int {
	return (len(q.blocks)+s.pool.availableBlocks())*s.cfg.BlockSize - q.readyTokens()
}

// scheduleTokens schedules the next n tokens of q, for which there is room.
func (s *Scheduler) scheduleTokens(q *seqState, n int) {
	s.extendTable(q, q.readyTokens()+n)
	q.planned = n
	s.budget -= n
}

// reserveBlocks allocates the blocks of all tokens of q, for which there is room.
func (s *Scheduler) reserveBlocks(q *seqState) {
	s.extendTable(q, len(q.tokens))
	q.partial.lacked = 0
}

// extendTable allocates what q's table lacks for n tokens.
func (s *Scheduler) extendTable(q *seqState, n int) {
	for len(q.blocks) < s.cfg.blocksFor(n) {
		q.blocks = append(q.blocks, s.pool.takeBlock())
	}
}

// emitWork writes the plan to out.
func (s *Scheduler) emitWork(out *Step) {
	for q := s.running.head; q != nil; q = q.next {
		if q.planned == 0 && !q.fetchOnly {
			continue
		}
		end := q.readyTokens() + q.planned
		table := s.cfg.blocksFor(end)
		out.Work = append(out.Work, Work{
			ID:      q.id,
			Start:   q.readyTokens(),
			Tokens:  q.tokens[q.readyTokens():end:end],
			Blocks:  q.blocks[:table:table],
			Prefill: min(q.planned, q.prefillLeft()),
			Sample:  end == len(q.tokens) && !q.hold,
			Cached:  q.cached,
			Fetched: q.fetched,
		})
	}
}

// preemptSequence removes a sequence from the batch, and from the step if it is in it. It releases its blocks, and
// the sequence waits, before all which arrived after it, to be computed again. Its full blocks may still be cached
// by then.
func (s *Scheduler) preemptSequence(q *seqState, out *Step) {
	if len(q.tokens) >= s.MaxTokens() {
		s.failSequence(q, out)
		return
	}
	s.gaveUp = true
	s.stats.PrefillTokens -= q.prefillLeft()
	s.leaveQueue(q)
	s.releaseBlocks(q)
	s.budget += q.planned
	cancelled := out.cancelReservation(q)
	if !cancelled && q.partial != nil {
		q.partial.reopenRanges()
		q.partial.transferEnd = 0
	}
	q.computed, q.planned, q.awaitsToken = 0, 0, false
	q.prefillGoal = len(q.tokens)
	q.limit = s.limitOf(q, 0)
	s.stats.PrefillTokens += q.prefillLeft()
	s.short = s.short || !q.isEncoding() // it is none any more if it awaited a transfer

	s.enterQueue(q, inWaiting)
	if !cancelled {
		s.stats.Preemptions++
		out.Preempted = append(out.Preempted, q.id)
	}
}

// failSequence drops a sequence which can get no further token.
func (s *Scheduler) failSequence(q *seqState, out *Step) {
	out.Failed = append(out.Failed, q.id)
	s.forgetSequence(q)
}

// BlockSource is memory outside the cache from which blocks can be copied into it, such as a pool which
// several engines share.
type BlockSource interface {
	// Has reports whether the block which ends in seq can be copied now. The scheduler trusts the answer:
	// the source must compare more than hashes.
	Has(seq kv.SeqHash) bool
}

// countFetchable returns how many blocks after the hits of q can be fetched. Like hits they exclude its
// last token.
func (s *Scheduler) countFetchable(q *seqState, hits []int32, tip kv.SeqHash) int {
	if s.cfg.Remote == nil || q.reuse == Off {
		return 0
	}
	n, most := 0, (len(q.tokens)-1)/s.cfg.BlockSize
	for i := len(hits); i < most; i++ {
		c := q.describeBlock(i, noBlock, tip)
		if _, taken := s.pool.index[c.seq]; taken || !s.cfg.Remote.Has(c.seq) {
			break
		}
		tip = c.seq
		n++
	}
	return n
}

// fetchBlocks allocates to q, which has its hits and nothing else, the n fetched blocks after them. They
// are private, and count as computed when the step which contains q is committed.
func (s *Scheduler) fetchBlocks(q *seqState, n int) {
	for range n {
		q.blocks = append(q.blocks, s.pool.takeBlock())
	}
	q.fetched = n * s.cfg.BlockSize
	s.stats.FetchedTokens += uint64(q.fetched)
}

// Commit records that the planned batch was computed: its tokens are in the cache and its full blocks are
// registered. sampled holds the next tokens of sequences whose Work asked for one, in any order; entries
// for other sequences are ignored. After a failed batch there is no Commit until the next Step.
//
// A sequence without its token is not scheduled but keeps its blocks. A later Commit may bring the token,
// unless the sequence was preempted meanwhile: then it is computed and asked for again.
func (s *Scheduler) Commit(sampled []SampledToken) {
	for q := s.running.head; q != nil; {
		next := q.next // q may pause
		if q.planned > 0 || q.fetchOnly {
			s.advanceComputed(q)
		}
		q = next
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
	s.stats.ComputedTokens += uint64(max(0, min(q.readyTokens()+q.planned, q.prompt)-q.readyTokens()))
	q.computed += q.fetched + q.planned
	q.fetched = 0
	s.stats.PrefillTokens += q.prefillLeft()
	q.planned, q.fetchOnly = 0, false
	q.awaitsToken = q.readyTokens() == len(q.tokens)
	if q.reuse == On {
		s.registerBlocks(q)
	}
	switch {
	case q.isEncoding() && q.pendingTokens() == 0:
		s.moveSequence(q, inPaused)
	case q.hold && q.awaitsToken:
		q.awaitsToken = false
		s.moveSequence(q, inHeld)
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
		s.gate.registerBlock(c.seq)
		q.registered++
		q.tip = c.seq
	}
}
