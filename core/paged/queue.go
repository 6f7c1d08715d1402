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
