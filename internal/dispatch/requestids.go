package dispatch

import (
	"strconv"
	"sync"
)

// RequestIDs are the ids of running requests. They name reservations, so no two running requests may share
// one: clients choose ids, and two frontends may each have a request of the same id. The zero value is
// ready.
type RequestIDs struct {
	mu struct {
		sync.Mutex
		running map[string]struct{}
		twice   uint64
	}
}

// Claim reserves an id for a running request until Release, and returns it. An id already in use gets a
// suffix.
func (s *RequestIDs) Claim(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.running == nil {
		s.mu.running = map[string]struct{}{}
	}
	own := id
	for {
		if _, taken := s.mu.running[own]; !taken {
			s.mu.running[own] = struct{}{}
			return own
		}
		s.mu.twice++
		own = id + "~" + strconv.FormatUint(s.mu.twice, 10)
	}
}

// Release frees a claimed id.
func (s *RequestIDs) Release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.running, id)
}

// Len returns the number of claimed ids.
func (s *RequestIDs) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.running)
}
