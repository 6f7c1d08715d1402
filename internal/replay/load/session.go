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
type sessionTable struct {
	mu struct {
		sync.Mutex
		byName map[string]*sessionState
		parked int
		limit  int           // size of byName at which idle sessions are dropped
		delay  time.Duration // the longest seen
	}
	room chan struct{} // signals that a parked request was released
}

type sessionState struct {
	busy  bool   // one of its requests is in flight
	queue []*job // the requests after it
	done  time.Duration
}

func newSessionTable() *sessionTable {
	s := &sessionTable{room: make(chan struct{}, 1)}
	s.mu.byName = map[string]*sessionState{}
	s.mu.limit = maxRemembered
	return s
}

// offerResult is the result of offering a request of a session.
type offerResult int

const (
	offerDue offerResult = iota // due is set
	offerParked
	offerFull     // offer it again when there is room
	offerTimeless // it has no send time
)

// offerJob offers the next request of a session.
func (s *sessionTable) offerJob(j *job, now time.Duration) offerResult {
	if j.session == "" {
		if j.at < 0 {
			return offerTimeless
		}
		j.due = j.at
		return offerDue
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.byName[j.session]
	if c == nil {
		if j.at < 0 {
			return offerTimeless
		}
		s.forgetIdleLocked(now)
		c = &sessionState{done: -j.delay}
		s.mu.byName[j.session] = c
	}
	s.mu.delay = max(s.mu.delay, j.delay)
	if !c.busy {
		c.busy = true
		j.due = max(j.at, c.done+j.delay, 0)
		return offerDue
	}
	if s.mu.parked == maxParked {
		return offerFull
	}
	s.mu.parked++
	c.queue = append(c.queue, j)
	return offerParked
}

// finishJob records that a request of a session has finished and returns the next one with its due time set,
// or nil.
func (s *sessionTable) finishJob(name string, at time.Duration) *job {
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
func (s *sessionTable) forgetIdleLocked(now time.Duration) {
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
