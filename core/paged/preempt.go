package paged

// preemptSequence removes the newest running sequence, which is not in the step yet, from the batch. It
// releases its blocks, and the sequence waits before all others to be computed again. Its full blocks may
// still be cached by then.
func (s *Scheduler) preempt(q *sequence, out *Step) {
	if len(q.tokens) >= s.Limit() {
		s.fail(q, out)
		return
	}
	s.stats.PrefillTokens -= q.left()
	s.leave(q)
	s.release(q)
	q.computed, q.due = 0, false
	q.goal = len(q.tokens)
	s.stats.PrefillTokens += q.left()

	s.waiting.pushFront(q)
	s.preempted++
	s.stats.Preemptions++
	out.Preempted = append(out.Preempted, q.id)
}

// failSequence drops a sequence which can get no further token.
func (s *Scheduler) fail(q *sequence, out *Step) {
	out.Failed = append(out.Failed, q.id)
	s.forget(q)
}
