package paged

// Step plans the next batch into out, whose slices it reuses. Nothing counts as
// computed until Commit: if the batch failed, the shell removes whom it blames and
// calls Step again, which plans anew.
func (s *Scheduler) Step(out *Step) {
	out.Work, out.Preempted, out.Failed = out.Work[:0], out.Preempted[:0], out.Failed[:0]
	s.discard()
	s.budget = s.cfg.TokenBudget

	if prefills := s.planDecodes(out); prefills {
		s.planPrefills()
	}
	if len(out.Preempted) == 0 {
		s.admit()
	}
	s.emit(out)
}

// discard forgets a plan that was not committed.
func (s *Scheduler) discard() {
	for q := s.running.head; q != nil; q = q.next {
		q.planned = 0
	}
}

// planDecodes gives every sequence that lacks one token that token, oldest first,
// and reports whether there are some that lack more. While a block is lacking, it
// preempts the newest running sequence.
func (s *Scheduler) planDecodes(out *Step) (prefills bool) {
	for q := s.running.head; q != nil; {
		next := q.next
		switch pending := q.pending(); {
		case len(q.tokens) >= s.Limit():
			s.fail(q, out)
		case pending > 1:
			prefills = true
		case pending == 1:
			for s.room(q) == 0 {
				newest := s.running.tail
				s.preempt(newest, out)
				if newest == q {
					return prefills
				}
			}
			s.give(q, 1)
			next = q.next // some behind it may be gone
		}
		q = next
	}
	return prefills
}

// planPrefills spends the budget on sequences that lack more than one token,
// oldest first, as far as there are blocks. One that remains unfinished has spent the
// budget or the last block, so none is admitted behind it: all but the newest have
// the blocks for what is known of them, and a prefill has nobody to preempt. It keeps
// what it has until an older sequence needs it.
//
// Without chunking, a prefill that is here was planned whole in a step that failed,
// with the same sequences before it, so it has its blocks and fits again.
func (s *Scheduler) planPrefills() {
	for q := s.running.head; q != nil && s.budget > 0; q = q.next {
		pending := q.pending()
		if pending <= 1 {
			continue
		}
		s.give(q, min(pending, s.budget, s.room(q)))
	}
}

// room is the number of tokens for which q has blocks or can get them.
func (s *Scheduler) room(q *sequence) int {
	return (len(q.blocks)+s.pool.available())*s.cfg.BlockSize - q.there()
}

// give schedules the next n tokens of q, for which there is room.
func (s *Scheduler) give(q *sequence, n int) {
	for len(q.blocks) < s.cfg.blocksFor(q.there()+n) {
		q.blocks = append(q.blocks, s.pool.take())
	}
	q.planned = n
	s.budget -= n
}

// emit writes the plan out.
func (s *Scheduler) emit(out *Step) {
	for q := s.running.head; q != nil; q = q.next {
		if q.planned == 0 {
			continue
		}
		end := q.there() + q.planned
		table := s.cfg.blocksFor(end)
		out.Work = append(out.Work, Work{
			ID:      q.id,
			Start:   q.there(),
			Tokens:  q.tokens[q.there():end:end],
			Blocks:  q.blocks[:table:table],
			Prefill: min(q.planned, q.left()),
			Sample:  end == len(q.tokens),
			Cached:  q.cached,
			Fetched: q.fetched,
		})
	}
}
