package paged

// preemptSequence removes the newest running sequence, which is not in the step yet, from the batch. It
// releases its blocks, and the sequence waits before all others to be computed again. Its full blocks may
// still be cached by then.
func (s *Scheduler) preemptSequence(q *seqState, out *Step) {
	if len(q.tokens) >= s.MaxTokens() {
		s.failSequence(q, out)
		return
	}
	s.stats.PrefillTokens -= q.prefillLeft()
	s.leaveQueue(q)
	s.releaseBlocks(q)
	q.computed, q.awaitsToken = 0, false
	q.prefillGoal = len(q.tokens)
	s.stats.PrefillTokens += q.prefillLeft()

	s.waiting.pushFront(q)
	s.preempted++
	s.stats.Preemptions++
	out.Preempted = append(out.Preempted, q.id)
}

// failSequence drops a sequence which can get no further token.
func (s *Scheduler) failSequence(q *seqState, out *Step) {
	out.Failed = append(out.Failed, q.id)
	s.forgetSequence(q)
}
