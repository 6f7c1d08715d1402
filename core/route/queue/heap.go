package queue

import (
	"fmt"

	"penstock/core/kv"
)

// lane holds the entries which wait for the same workers: a line for each client, and all by deadline.
type lane struct {
	id      uint64
	lines   []*line // a heap by lessByShare of the heads, with the starts which the lines had when they were moved last
	byShare map[*share]*line
	late    entryHeap
	missed  int // entries which cannot meet their target
}

// line holds the entries of one client in one lane.
type line struct {
	lane    *lane
	share   *share
	start   float64 // of share, when the line was moved last; it only grows
	entries entryHeap
	at      int // in the lines of its lane
}

// entryHeap is a binary heap which records the positions of its entries, so that any of them can be removed
// in O(log n).
type entryHeap struct {
	entries []*Entry
	index   int // index of this heap in the positions of its entries
	less    func(a, b *Entry) bool
}

func newLane(id uint64) *lane {
	return &lane{id: id, byShare: map[*share]*line{}, late: entryHeap{index: 1, less: lessByDeadline}}
}

// lessByPriority is the order of a client's entries before their deadlines.
func lessByPriority(a, b *Entry) bool { return lessByShare(a, b, 0, 0) }

// lessByShare is the order of entries before their deadlines, whose clients' shares start where given.
func lessByShare(a, b *Entry, startA, startB float64) bool {
	switch {
	case a.Priority.Strict != b.Priority.Strict:
		return a.Priority.Strict > b.Priority.Strict
	case a.Missed != b.Missed:
		return b.Missed
	case startA != startB:
		return startA < startB
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

// addEntry adds an entry of a client's share.
func (l *lane) addEntry(e *Entry, s *share) {
	of := l.byShare[s]
	if of == nil {
		of = &line{lane: l, share: s, start: s.start, at: len(l.lines), entries: entryHeap{less: lessByPriority}}
		l.byShare[s] = of
		l.lines = append(l.lines, of)
	}
	e.line = of
	e.line.entries.pushEntry(e)
	l.late.pushEntry(e)
	if e.Missed {
		l.missed++
	}
	l.moveLine(e.line)
}

// removeEntry removes an entry, and its line if it was the last one.
func (l *lane) removeEntry(e *Entry) {
	of := e.line
	e.line = nil
	of.entries.removeAt(e.positions[0])
	l.late.removeAt(e.positions[1])
	if e.Missed {
		l.missed--
	}
	if len(of.entries.entries) > 0 {
		l.moveLine(of)
		return
	}
	delete(l.byShare, of.share)
	last := len(l.lines) - 1
	moved := l.lines[last]
	l.lines[last] = nil
	l.lines = l.lines[:last]
	if moved != of {
		l.lines[of.at], moved.at = moved, of.at
		l.moveLine(moved)
	}
}

// firstEntry returns the entry which goes first. Starts and missed targets change the order without a call: they
// only move entries back, so that looking at the first one is enough.
func (l *lane) firstEntry(q *Queue, now kv.Mono) *Entry {
	if e := l.late.entries[0]; e.IsOverdue(now) {
		return e
	}
	for {
		of := l.lines[0]
		e := of.entries.entries[0]
		switch {
		case e.LatestStart != 0 && !e.Missed && e.LatestStart < now:
			e.Missed = true
			l.missed++
			e.sortKey = q.sortKey(e.Arrival, &e.QueuedRequest)
			of.entries.siftDown(0)
		case of.start != of.share.start:
			of.start = of.share.start
		default:
			return e
		}
		l.moveLine(of)
	}
}

// moveLine moves a line to its place in the heap.
func (l *lane) moveLine(of *line) {
	for of.at > 0 && l.isBefore(of.at, (of.at-1)/2) {
		l.swapLines(of.at, (of.at-1)/2)
	}
	for {
		child := 2*of.at + 1
		if child >= len(l.lines) {
			return
		}
		if right := child + 1; right < len(l.lines) && l.isBefore(right, child) {
			child = right
		}
		if !l.isBefore(child, of.at) {
			return
		}
		l.swapLines(of.at, child)
	}
}

func (l *lane) isBefore(a, b int) bool {
	x, y := l.lines[a], l.lines[b]
	return lessByShare(x.entries.entries[0], y.entries.entries[0], x.start, y.start)
}

func (l *lane) swapLines(a, b int) {
	l.lines[a], l.lines[b] = l.lines[b], l.lines[a]
	l.lines[a].at, l.lines[b].at = a, b
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
	waiting := map[*share]share{}
	for i, l := range q.lanes {
		if i > 0 && q.lanes[i-1].id >= l.id {
			return fmt.Errorf("queue: lane %d comes after lane %d", l.id, q.lanes[i-1].id)
		}
		if err := l.checkLane(); err != nil {
			return err
		}
		for _, e := range l.late.entries {
			n, tokens = n+1, tokens+e.Tokens
			s := waiting[e.line.share]
			s.waiting, s.tokens = s.waiting+1, s.tokens+e.Tokens
			waiting[e.line.share] = s
		}
	}
	if n != q.count || tokens != q.tokens {
		return fmt.Errorf("queue: %d entries of %d tokens are counted, there are %d of %d", q.count, q.tokens, n, tokens)
	}
	return q.shares.check(waiting)
}

// checkLane checks a lane, which has entries.
func (l *lane) checkLane() error {
	n, missed := 0, 0
	if len(l.byShare) != len(l.lines) {
		return fmt.Errorf("queue: lane %d has %d lines of %d clients", l.id, len(l.lines), len(l.byShare))
	}
	for i, of := range l.lines {
		switch {
		case of.at != i || of.lane != l || l.byShare[of.share] != of || len(of.entries.entries) == 0 || of.start > of.share.start:
			return fmt.Errorf("queue: line %d of lane %d has %d entries and says %d", i, l.id, len(of.entries.entries), of.at)
		case i > 0 && l.isBefore(i, (i-1)/2):
			return fmt.Errorf("queue: line %d of lane %d goes before the one above it", i, l.id)
		}
		if err := of.entries.checkOrder(of, 0); err != nil {
			return err
		}
		for _, e := range of.entries.entries {
			n++
			if e.Missed {
				missed++
			}
			if err := l.late.checkPosition(e, 1); err != nil {
				return err
			}
		}
	}
	if n == 0 || n != len(l.late.entries) || missed != l.missed {
		return fmt.Errorf("queue: lane %d has %d entries by order and %d by deadline, %d missed and %d counted", l.id, n, len(l.late.entries), missed, l.missed)
	}
	return l.late.checkOrder(nil, 1)
}

func (h *entryHeap) checkPosition(e *Entry, number int) error {
	if at := e.positions[number]; at >= len(h.entries) || h.entries[at] != e {
		return fmt.Errorf("queue: entry %d is not where it says in heap %d", e.arrivalNumber, number)
	}
	return nil
}

// checkOrder checks a heap, whose entries are of one line unless that is nil.
func (h *entryHeap) checkOrder(of *line, number int) error {
	for i, e := range h.entries {
		if of != nil && e.line != of {
			return fmt.Errorf("queue: entry %d is in the line of another client", e.arrivalNumber)
		}
		if err := h.checkPosition(e, number); err != nil {
			return err
		}
		if i > 0 && h.less(e, h.entries[(i-1)/2]) {
			return fmt.Errorf("queue: entry %d goes before the one above it in heap %d", e.arrivalNumber, number)
		}
	}
	return nil
}
