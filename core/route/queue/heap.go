package queue

import "fmt"

// entryHeap is a binary heap which records the positions of its entries, so that any of them can be removed
// in O(log n).
type entryHeap struct {
	entries []*Entry
	index   int // index of this heap in the positions of its entries
	less    func(a, b *Entry) bool
}

func newLane(id uint64) *lane {
	return &lane{id: id, heaps: [2]entryHeap{{index: 0, less: lessByPriority}, {index: 1, less: lessByDeadline}}}
}

// lessByPriority is the order of entries before their deadlines.
func lessByPriority(a, b *Entry) bool {
	switch {
	case a.Priority.Strict != b.Priority.Strict:
		return a.Priority.Strict > b.Priority.Strict
	case a.sortKey != b.sortKey:
		return a.sortKey > b.sortKey
	}
	return a.arrivalNumber < b.arrivalNumber
}

// lessByDeadline is the order of deadlines.
func lessByDeadline(a, b *Entry) bool {
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	return a.arrivalNumber < b.arrivalNumber
}

func (h *entryHeap) pushEntry(e *Entry) {
	h.entries = append(h.entries, e)
	h.setEntry(len(h.entries)-1, e)
	h.siftUp(len(h.entries) - 1)
}

func (h *entryHeap) removeAt(at int) {
	last := len(h.entries) - 1
	e := h.entries[last]
	h.entries[last] = nil
	h.entries = h.entries[:last]
	if at == last {
		return
	}
	h.setEntry(at, e)
	h.siftUp(at)
	h.siftDown(at)
}

func (h *entryHeap) siftUp(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if !h.less(h.entries[at], h.entries[parent]) {
			return
		}
		h.swapEntries(at, parent)
		at = parent
	}
}

func (h *entryHeap) siftDown(at int) {
	for {
		child := 2*at + 1
		if child >= len(h.entries) {
			return
		}
		if right := child + 1; right < len(h.entries) && h.less(h.entries[right], h.entries[child]) {
			child = right
		}
		if !h.less(h.entries[child], h.entries[at]) {
			return
		}
		h.swapEntries(at, child)
		at = child
	}
}

func (h *entryHeap) swapEntries(a, b int) {
	x, y := h.entries[a], h.entries[b]
	h.setEntry(a, y)
	h.setEntry(b, x)
}

func (h *entryHeap) setEntry(at int, e *Entry) { h.entries[at], e.positions[h.index] = e, at }

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
