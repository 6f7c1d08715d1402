package frontend

import (
	"sync"
	"time"

	"penstock/internal/bounded"
)

// maxPending is how many bytes of events may wait for a client before the worker has to wait.
const maxPending = 64 << 10

// keepAlive is sent on an idle stream: a comment, which clients skip and which keeps proxies from
// closing the connection.
const keepAlive = ": keep-alive\n\n"

// sseStream writes the events of one answer from its own goroutine. Events which arrive during a write
// go out in the next one, so that a busy server makes few writes and an idle one delays no token.
type sseStream struct {
	write     func([]byte) error // whole events, flushed
	writeLast func([]byte) error // the last events, which go out when the request ends; nil means write
	onBroken  func(error)        // called when a write fails; nothing is written after that
	keepAlive time.Duration      // idle time before a keep-alive
	wake      chan struct{}      // there is work; has room for one
	room      chan struct{}      // pending was taken; has room for one
	done      chan struct{}      // closed when run returns

	mu struct {
		sync.Mutex
		pending []byte // whole events
		closed  bool
		err     error
	}
}

func newSSEStream(silent time.Duration, write func([]byte) error, broken func(error)) *sseStream {
	s := &sseStream{
		write: write, onBroken: broken, keepAlive: silent,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.mu.pending = bounded.TakeBuffer()
	wakeUp(s.wake) // for the header
	return s
}

// run writes until the stream is closed or a write fails. Its first write may have no events: it sends
// the header.
func (s *sseStream) run() {
	defer close(s.done)
	silence := time.NewTimer(s.keepAlive)
	defer silence.Stop()
	comment := []byte(keepAlive)
	spare := bounded.TakeBuffer()
	defer func() { bounded.RecycleBuffer(spare) }()
	for opened := false; ; opened = true {
		events, last := comment, false
		select {
		case <-s.wake:
			events, last = s.takePending(spare)
			spare = events
		case <-silence.C:
		}
		if len(events) > 0 || !opened {
			write := s.write
			if last && s.writeLast != nil {
				write = s.writeLast
			}
			if err := write(events); err != nil {
				s.failWrite(err)
				return
			}
		}
		if last {
			return
		}
		silence.Reset(s.keepAlive)
	}
}

// takePending takes the pending events and leaves spare's memory for more. last says that there will be
// none.
func (s *sseStream) takePending(spare []byte) (events []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, s.mu.pending = s.mu.pending, spare[:0]
	wakeUp(s.room)
	return events, s.mu.closed
}

func (s *sseStream) failWrite(err error) {
	s.mu.Lock()
	s.mu.err = err
	s.mu.Unlock()
	s.onBroken(err)
}

// put adds whole events and keeps nothing of the slice. It waits while the client is too slow, and
// returns the error of a write that failed. Only one goroutine calls it.
func (s *sseStream) put(events []byte) error {
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
		wakeUp(s.wake)
	}
	return s.mu.err
}

// close writes what is pending, waits until run has returned, and returns the error of a write that
// failed. It may be called again.
func (s *sseStream) close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	wakeUp(s.wake)
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	bounded.RecycleBuffer(s.mu.pending)
	s.mu.pending = nil
	return s.mu.err
}

// wakeUp wakes the receiver of c; a signal already pending is enough.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
