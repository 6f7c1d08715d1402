package paged

// Step plans the next batch into out, whose slices it reuses. Nothing counts as
// computed until Commit: if the batch failed, the shell removes whom it blames and
// calls Step again, which plans anew.
func (s *Scheduler) Step(out *Step) {
	out.Work, out.Preempted, out.Failed = out.Work[:0], out.Preempted[:0], out.Failed[:0]
	s.discard()
	s.budget = s.cfg.TokenBudget

	if prefills := s.planDecodes(out); prefills {
		s.planPrefills(out)
	}
	if len(out.Preempted) == 0 {
		s.admit()
	}
	s.emit(out)
}

// discard forgets a plan that was not committed.
func (s *Scheduler) discard() {
	if !s.planned {
		return
	}
	for q := s.running.head; q != nil; q = q.next {
		q.planned = 0
	}
	s.planned = false
}

// planDecodes gives every sequence that lacks one token that token, oldest first,
// and reports whether there are some that lack more.
func (s *Scheduler) planDecodes(out *Step) (prefills bool) {
	for q := s.running.head; q != nil; {
		next := q.next
		switch pending := q.pending(); {
		case len(q.tokens) >= s.Limit():
			s.fail(q, out)
		case pending > 1:
			prefills = true
		case pending == 1:
			if !s.plan(q, 1, out) {
				return prefills // it was the newest
			}
			next = q.next // some behind it may be gone
		}
		q = next
	}
	return prefills
}

// planPrefills spends the budget on sequences that lack more than one token,
// oldest first.
func (s *Scheduler) planPrefills(out *Step) {
	for q := s.running.head; q != nil && s.budget > 0; q = q.next {
		pending := q.pending()
		if pending <= 1 {
			continue
		}
		if s.cfg.Chunking == Off && pending > s.budget {
			return
		}
		if !s.plan(q, min(pending, s.budget), out) {
			return // it was the newest
		}
	}
}

// plan schedules the next n tokens of the running sequence q. While blocks are
// lacking, it preempts the newest running sequence; it reports false if that was
// q in the end.
func (s *Scheduler) plan(q *sequence, n int, out *Step) bool {
	need := s.cfg.blocksFor(q.computed+n) - len(q.blocks)
	for need > s.pool.available() {
		newest := s.running.tail
		s.preempt(newest, out)
		if newest == q {
			return false
		}
	}
	for range need {
		q.blocks = append(q.blocks, s.pool.take())
	}
	q.planned = n
	s.budget -= n
	return true
}

// emit writes the plan out.
func (s *Scheduler) emit(out *Step) {
	for q := s.running.head; q != nil; q = q.next {
		if q.planned == 0 {
			continue
		}
		end := q.computed + q.planned
		out.Work = append(out.Work, Work{
			ID:     q.id,
			Start:  q.computed,
			Tokens: q.tokens[q.computed:end:end],
			Blocks: q.blocks[:s.cfg.blocksFor(end)],
			Sample: end == len(q.tokens),
			Cached: q.cached,
		})
		s.planned = true
	}
}
