package load

import (
	"sync"
	"time"
)

const (
	// maxParked bounds the requests which wait for the previous response.
	maxParked = 1 << 16
	// maxRemembered is how many sessions without a request are kept before the ones whose think time is over
	// are dropped.
	maxRemembered = 1 << 16
)

// sessionTable keeps the requests of each conversation in order.
type sessions struct {
	mu struct {
		sync.Mutex
		byName map[string]*session
		parked int
		limit  int           // size of byName at which idle sessions are dropped
		delay  time.Duration // the longest seen
	}
	room chan struct{} // signals that a parked request was released
}

type session struct {
	busy  bool   // one of its requests is in flight
	queue []*job // the requests after it
	done  time.Duration
}

func newSessions() *sessions {
	s := &sessions{room: make(chan struct{}, 1)}
	s.mu.byName = map[string]*session{}
	s.mu.limit = maxRemembered
	return s
}

// offerResult is the result of offering a request of a session.
type verdict int

const (
	goes verdict = iota // due is set
	parks
	full     // offer it again when there is room
	timeless // it has no send time
)

// offerJob offers the next request of a session.
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

// finishJob records that a request of a session has finished and returns the next one with its due time set,
// or nil.
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

// forgetIdleLocked drops sessions which have no request and whose next one no longer has to wait, once there
// are many.
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
