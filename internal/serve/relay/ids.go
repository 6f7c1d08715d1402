package relay

import (
	"strconv"
	"sync"
)

// ids are the requests in progress. Their ids are their clients', and two
// frontends may each have a request of one name: the router must tell them apart.
type ids struct {
	mu struct {
		sync.Mutex
		taken map[string]struct{}
		twice uint64
	}
}

// claim returns the id under which a request is routed: its own, unless another
// one has that. The caller releases it.
func (s *ids) claim(id string) string {
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

func (s *ids) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.taken, id)
}
