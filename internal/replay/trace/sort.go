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
	rows  decoder
	limit int

	held  held
	bytes int
	ended bool
	seq   int // of the next row; buffered rows have it as Index
	clock clock
	// lastOf is the time of each session's last row, for rows without a time. Its size is bounded by limit.
	lastOf map[string]time.Duration
	names  int // its size in bytes
}

func (s *sorter) next(r *replay.Request) error {
	for !s.ended && s.bytes < s.limit {
		if err := s.read(r); err == io.EOF {
			s.ended = true
		} else if err != nil {
			return fail(r.Line, err)
		}
	}
	if len(s.held) == 0 {
		return io.EOF
	}
	first := heap.Pop(&s.held).(*replay.Request)
	s.bytes -= sizeOf(first)
	*r = *first
	return nil
}

// readRow takes the next row of the file.
func (s *sorter) read(r *replay.Request) error {
	if err := s.rows.next(r); err != nil {
		return err
	}
	if err := s.place(r); err != nil {
		return err
	}
	row := new(replay.Request)
	row.Set(r) // the decoder owns the memory of r
	row.Index = s.seq
	s.seq++
	heap.Push(&s.held, row)
	s.bytes += sizeOf(row)
	return nil
}

// assignTime gives a row without a time that of the previous row of its session.
func (s *sorter) place(r *replay.Request) error {
	const entry = 64 // approximate bytes of a map entry
	last, known := s.lastOf[r.Session]
	if known {
		s.clock.last = last
	}
	if err := s.clock.follow(r); err != nil {
		return err
	}
	if !s.clock.begun {
		s.clock.begun, s.clock.timed = true, r.At != unknown
	}
	s.clock.last = r.At
	if r.Session == "" || r.At == unknown {
		return nil
	}
	if s.lastOf == nil {
		s.lastOf = map[string]time.Duration{}
	}
	if !known {
		if s.names += len(r.Session) + entry; s.names > s.limit {
			return errors.New("there are too many sessions to sort; sort the file by time before it is read")
		}
	}
	s.lastOf[r.Session] = r.At
	return nil
}

// requestSize is the approximate memory of r.
func sizeOf(r *replay.Request) int {
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
type held []*replay.Request

func (h held) Len() int { return len(h) }

func (h held) Less(i, j int) bool {
	if h[i].At != h[j].At {
		return h[i].At < h[j].At
	}
	return h[i].Index < h[j].Index
}

func (h held) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *held) Push(x any) { *h = append(*h, x.(*replay.Request)) }

func (h *held) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}
