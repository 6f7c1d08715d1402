package queue

import "fmt"

// Check returns an error if the queue's structures contradict each other.
func (q *Queue) Check() error {
	n, tokens := 0, 0
	for i, l := range q.lanes {
		if i > 0 && q.lanes[i-1].id >= l.id {
			return fmt.Errorf("queue: lane %d comes after lane %d", l.id, q.lanes[i-1].id)
		}
		if len(l.heaps[0].entries) == 0 || len(l.heaps[0].entries) != len(l.heaps[1].entries) {
			return fmt.Errorf("queue: lane %d has %d entries by order and %d by deadline", l.id, len(l.heaps[0].entries), len(l.heaps[1].entries))
		}
		for k := range l.heaps {
			if err := l.heaps[k].checkOrder(l, k); err != nil {
				return err
			}
		}
		for _, e := range l.heaps[0].entries {
			n, tokens = n+1, tokens+e.Tokens
		}
	}
	if n != q.count || tokens != q.tokens {
		return fmt.Errorf("queue: %d entries of %d tokens are counted, there are %d of %d", q.count, q.tokens, n, tokens)
	}
	return nil
}

func (h *entryHeap) checkOrder(l *lane, number int) error {
	for i, e := range h.entries {
		if e.lane != l || e.positions[number] != i {
			return fmt.Errorf("queue: entry %d is at %d of heap %d and says %d", e.arrivalNumber, i, number, e.positions[number])
		}
		if i > 0 && h.less(e, h.entries[(i-1)/2]) {
			return fmt.Errorf("queue: entry %d goes before the one above it in heap %d", e.arrivalNumber, number)
		}
	}
	return nil
}
