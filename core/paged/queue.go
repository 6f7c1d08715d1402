package paged

// sequenceQueue is an ordered list of sequences, linked through them: insertion at either end and removal
// anywhere cost O(1) and no memory.
type sequenceQueue struct {
	head, tail *seqState
	len        int
}

func (l *sequenceQueue) pushBack(q *seqState) {
	q.prev, q.next = l.tail, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
	l.len++
}

func (l *sequenceQueue) pushFront(q *seqState) {
	q.prev, q.next = nil, l.head
	if l.head == nil {
		l.tail = q
	} else {
		l.head.prev = q
	}
	l.head = q
	l.len++
}

func (l *sequenceQueue) remove(q *seqState) {
	if q.prev == nil {
		l.head = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.tail = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.len--
}

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
