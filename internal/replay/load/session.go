package load

import (
	"sync"
	"time"
)

const (
	// maxParked bounds the requests that wait for the answer before them.
	maxParked = 1 << 16
	// maxRemembered is how many sessions without a request are kept before those are
	// forgotten whose time to think is over.
	maxRemembered = 1 << 16
)

// sessions keep the requests of each conversation in order.
type sessions struct {
	mu struct {
		sync.Mutex
		byName map[string]*session
		parked int
		limit  int           // of byName, at which the old ones are looked for
		delay  time.Duration // the longest seen
	}
	room chan struct{} // a signal that something is parked no more
}

type session struct {
	busy  bool   // one of its requests is on its way
	queue []*job // those after it
	done  time.Duration
}

func newSessions() *sessions {
	s := &sessions{room: make(chan struct{}, 1)}
	s.mu.byName = map[string]*session{}
	s.mu.limit = maxRemembered
	return s
}

// verdict is what becomes of a request of a session.
type verdict int

const (
	goes verdict = iota // its due is set
	parks
	full     // offer it again when there is room
	timeless // nothing says when it is to be sent
)

// offer takes the next request of a session.
func (s *sessions) offer(j *job, now time.Duration) verdict {
	if j.session == "" {
		if j.at < 0 {
			return timeless
		}
		j.due = j.at
		return goes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.byName[j.session]
	if c == nil {
		if j.at < 0 {
			return timeless
		}
		s.forget(now)
		c = &session{done: -j.delay}
		s.mu.byName[j.session] = c
	}
	s.mu.delay = max(s.mu.delay, j.delay)
	if !c.busy {
		c.busy = true
		j.due = max(j.at, c.done+j.delay, 0)
		return goes
	}
	if s.mu.parked == maxParked {
		return full
	}
	s.mu.parked++
	c.queue = append(c.queue, j)
	return parks
}

// finish tells that a request of a session is over and returns the one after it,
// with its due set, or nil.
func (s *sessions) finish(name string, at time.Duration) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.byName[name]
	c.done = at
	if len(c.queue) == 0 {
		c.busy = false
		return nil
	}
	j := c.queue[0]
	c.queue[0] = nil
	c.queue = c.queue[1:]
	s.mu.parked--
	select {
	case s.room <- struct{}{}:
	default:
	}
	j.due = max(j.at, at+j.delay)
	return j
}

// forget drops sessions that have no request and whose next one no longer has to
// wait, once there are many.
func (s *sessions) forget(now time.Duration) {
	if len(s.mu.byName) < s.mu.limit {
		return
	}
	for name, c := range s.mu.byName {
		if !c.busy && c.done+s.mu.delay < now {
			delete(s.mu.byName, name)
		}
	}
	s.mu.limit = max(maxRemembered, 2*len(s.mu.byName))
}
