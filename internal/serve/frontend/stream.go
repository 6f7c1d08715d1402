package frontend

import (
	"sync"
	"time"
)

// maxPending is how many bytes of events may wait for a client before the worker
// is made to wait.
const maxPending = 64 << 10

// keepAlive is what a stream says when there is nothing to say: a comment, which
// clients skip and which keeps proxies from taking the connection for dead.
const keepAlive = ": keep-alive\n\n"

// stream writes the events of one answer from a goroutine of its own. What comes
// while a write is in progress goes out in the next one, so that a busy server
// makes few writes and an idle one no token wait.
type stream struct {
	write  func([]byte) error // whole events, at once
	final  func([]byte) error // the last events, which go out when the request is over; nil is write
	broken func(error)        // told when write fails, after which nothing is written
	silent time.Duration      // after which a keep-alive goes out
	wake   chan struct{}      // there is something to do; has room for one
	room   chan struct{}      // pending was taken; has room for one
	done   chan struct{}      // closed when run returns

	mu struct {
		sync.Mutex
		pending []byte // whole events
		closed  bool
		err     error
	}
}

func newStream(silent time.Duration, write func([]byte) error, broken func(error)) *stream {
	s := &stream{
		write: write, broken: broken, silent: silent,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.mu.pending = *scraps.Get().(*[]byte)
	signal(s.wake) // there is the header
	return s
}

// run writes until the stream is closed or a write fails. Its first write may have no events:
// it is what sends the header.
func (s *stream) run() {
	defer close(s.done)
	silence := time.NewTimer(s.silent)
	defer silence.Stop()
	comment := []byte(keepAlive)
	spare := *scraps.Get().(*[]byte)
	defer func() { recycle(spare) }()
	for opened := false; ; opened = true {
		events, last := comment, false
		select {
		case <-s.wake:
			events, last = s.swap(spare)
			spare = events
		case <-silence.C:
		}
		if len(events) > 0 || !opened {
			write := s.write
			if last && s.final != nil {
				write = s.final
			}
			if err := write(events); err != nil {
				s.fail(err)
				return
			}
		}
		if last {
			return
		}
		silence.Reset(s.silent)
	}
}

// swap takes what is pending and leaves spare's memory for more. last says that
// there will be none.
func (s *stream) swap(spare []byte) (events []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, s.mu.pending = s.mu.pending, spare[:0]
	signal(s.room)
	return events, s.mu.closed
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	s.mu.err = err
	s.mu.Unlock()
	s.broken(err)
}

// put adds whole events, of which it keeps nothing. It waits while the client is
// too far behind, and returns the error of a write that failed. One goroutine puts.
func (s *stream) put(events []byte) error {
	s.mu.Lock()
	for s.mu.err == nil && len(s.mu.pending) >= maxPending {
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-s.done:
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.mu.err == nil {
		s.mu.pending = append(s.mu.pending, events...)
		signal(s.wake)
	}
	return s.mu.err
}

// close writes what is pending, waits until run has returned, and returns the
// error of a write that failed. It may be called again.
func (s *stream) close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	signal(s.wake)
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	recycle(s.mu.pending)
	s.mu.pending = nil
	return s.mu.err
}

// scraps is memory for events, kept from one answer to the next.
var scraps = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// maxScrap bounds what is kept of one answer, in bytes.
const maxScrap = 16 << 10

// recycle keeps memory that nobody uses any more.
func recycle(b []byte) {
	if cap(b) > 0 && cap(b) <= maxScrap {
		b = b[:0]
		scraps.Put(&b)
	}
}

// signal says something that need not be said twice.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
