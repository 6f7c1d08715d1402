package paged

// preempt takes the newest running sequence, which has no part in the step yet,
// out of the batch. Its blocks go, and it waits in front of all others to be
// computed again; its full blocks may still be cached by then.
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

// fail drops a sequence that can get no further token.
func (s *Scheduler) fail(q *sequence, out *Step) {
	out.Failed = append(out.Failed, q.id)
	s.forget(q)
}
