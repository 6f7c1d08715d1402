package queue

// entryHeap is a binary heap which records the positions of its entries, so that any of them can be removed
// in O(log n).
type heap struct {
	entries []*Entry
	number  int // index of this heap in the positions of its entries
	less    func(a, b *Entry) bool
}

func newLane(id uint64) *lane {
	return &lane{id: id, heaps: [2]heap{{number: 0, less: ahead}, {number: 1, less: sooner}}}
}

// lessByPriority is the order of entries before their deadlines.
func ahead(a, b *Entry) bool {
	switch {
	case a.Priority.Strict != b.Priority.Strict:
		return a.Priority.Strict > b.Priority.Strict
	case a.key != b.key:
		return a.key > b.key
	}
	return a.serial < b.serial
}

// lessByDeadline is the order of deadlines.
func sooner(a, b *Entry) bool {
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	return a.serial < b.serial
}

func (h *heap) push(e *Entry) {
	h.entries = append(h.entries, e)
	h.set(len(h.entries)-1, e)
	h.up(len(h.entries) - 1)
}

func (h *heap) remove(at int) {
	last := len(h.entries) - 1
	e := h.entries[last]
	h.entries[last] = nil
	h.entries = h.entries[:last]
	if at == last {
		return
	}
	h.set(at, e)
	h.up(at)
	h.down(at)
}

func (h *heap) up(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if !h.less(h.entries[at], h.entries[parent]) {
			return
		}
		h.swap(at, parent)
		at = parent
	}
}

func (h *heap) down(at int) {
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
		h.swap(at, child)
		at = child
	}
}

func (h *heap) swap(a, b int) {
	x, y := h.entries[a], h.entries[b]
	h.set(a, y)
	h.set(b, x)
}

func (h *heap) set(at int, e *Entry) { h.entries[at], e.places[h.number] = e, at }
