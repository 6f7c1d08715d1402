package trace

import (
	"container/heap"
	"errors"
	"io"
	"time"
	"unsafe"

	"penstock/internal/replay"
)

// sorter sorts rows by time, equal times in file order. It buffers limit bytes of rows and then returns the
// earliest: a row displaced by more than that comes out of order, which the clock refuses.
type sorter struct {
	rows  rowDecoder
	limit int

	held  rowHeap
	bytes int
	ended bool
	seq   int // of the next row; buffered rows have it as Index
	clock rowClock
	// lastOf is the time of each session's last row, for rows without a time. Its size is bounded by limit.
	lastOf       map[string]time.Duration
	sessionBytes int // its size in bytes
}

func (s *sorter) nextRow(r *replay.Request) error {
	for !s.ended && s.bytes < s.limit {
		if err := s.readRow(r); err == io.EOF {
			s.ended = true
		} else if err != nil {
			return errorAtLine(r.Line, err)
		}
	}
	if len(s.held) == 0 {
		return io.EOF
	}
	first := heap.Pop(&s.held).(*replay.Request)
	s.bytes -= requestSize(first)
	*r = *first
	return nil
}

// readRow takes the next row of the file.
func (s *sorter) readRow(r *replay.Request) error {
	if err := s.rows.nextRow(r); err != nil {
		return err
	}
	if err := s.assignTime(r); err != nil {
		return err
	}
	row := new(replay.Request)
	row.CopyFrom(r) // the decoder owns the memory of r
	row.Index = s.seq
	s.seq++
	heap.Push(&s.held, row)
	s.bytes += requestSize(row)
	return nil
}

// assignTime gives a row without a time that of the previous row of its session.
func (s *sorter) assignTime(r *replay.Request) error {
	const entry = 64 // approximate bytes of a map entry
	last, known := s.lastOf[r.Session]
	if known {
		s.clock.last = last
	}
	if err := s.clock.inheritTime(r); err != nil {
		return err
	}
	if !s.clock.started {
		s.clock.started, s.clock.timed = true, r.At != unknownTime
	}
	s.clock.last = r.At
	if r.Session == "" || r.At == unknownTime {
		return nil
	}
	if s.lastOf == nil {
		s.lastOf = map[string]time.Duration{}
	}
	if !known {
		if s.sessionBytes += len(r.Session) + entry; s.sessionBytes > s.limit {
			return errors.New("there are too many sessions to sort; sort the file by time before it is read")
		}
	}
	s.lastOf[r.Session] = r.At
	return nil
}

// requestSize is the approximate memory of r.
func requestSize(r *replay.Request) int {
	n := int(unsafe.Sizeof(*r)) + 8*len(r.Blocks) + 4*len(r.Tokens) +
		len(r.Text) + len(r.Messages) + len(r.Tools) + len(r.Payload) + len(r.Extra) +
		len(r.Session) + len(r.Model) + len(r.Salt)
	for i := range r.Media {
		m := &r.Media[i]
		n += int(unsafe.Sizeof(*m)) + len(m.ID) + len(m.URL)
	}
	return n
}

// rowHeap is a heap of rows by time, then by position in the file.
type rowHeap []*replay.Request

func (h rowHeap) Len() int { return len(h) }

func (h rowHeap) Less(i, j int) bool {
	if h[i].At != h[j].At {
		return h[i].At < h[j].At
	}
	return h[i].Index < h[j].Index
}

func (h rowHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *rowHeap) Push(x any) { *h = append(*h, x.(*replay.Request)) }

func (h *rowHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}
