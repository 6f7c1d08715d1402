package routerproxy

import (
	"strconv"
	"sync"
)

// requestIDs are the ids of running requests. Clients choose ids, and two frontends may each have a
// request of the same id: the router must distinguish them.
type requestIDs struct {
	mu struct {
		sync.Mutex
		taken map[string]struct{}
		twice uint64
	}
}

// claimID returns the id under which a request is routed: its own, unless another request has it. The
// caller releases it.
func (s *requestIDs) claimID(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.taken == nil {
		s.mu.taken = map[string]struct{}{}
	}
	own := id
	for {
		if _, taken := s.mu.taken[own]; !taken {
			s.mu.taken[own] = struct{}{}
			return own
		}
		s.mu.twice++
		own = id + "~" + strconv.FormatUint(s.mu.twice, 10)
	}
}

func (s *requestIDs) releaseID(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.taken, id)
}
