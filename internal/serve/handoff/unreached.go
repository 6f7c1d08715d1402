package handoff

import (
	"maps"
	"sync"
	"time"

	"penstock/core/kv"
)

// unreachedOwners knows the owners of memory which writers did not reach lately. Attempts to reach one are repeated from the
// first failure on for a time, by all jobs together: after that each job makes one attempt alone, so that an owner which is
// never reached does not hold the slots of its prefill worker.
type unreachedOwners struct {
	mu sync.Mutex
	of map[string]unreachedSince // by the addresses of the owner
}

// unreachedSince says when the attempts to reach an owner began to fail, and when the last one did.
type unreachedSince struct{ first, last kv.Mono }

const (
	// unreachedMemory is how long an owner is remembered after an attempt which failed.
	unreachedMemory = 30 * time.Second
	// maxUnreached bounds the owners which are remembered. Attempts to reach another one are repeated by each job.
	maxUnreached = 1024
)

// planAttempts returns until when attempts to reach an owner are repeated, if they are for within.
func (u *unreachedOwners) planAttempts(owner string, now kv.Mono, within time.Duration) kv.Mono {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s, ok := u.of[owner]; ok && s.isRemembered(now) {
		return s.first.Add(within)
	}
	return now.Add(within)
}

func (s unreachedSince) isRemembered(now kv.Mono) bool { return now.Sub(s.last) <= unreachedMemory }

// add adds an attempt which failed.
func (u *unreachedOwners) add(owner string, now kv.Mono) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.of, func(_ string, s unreachedSince) bool { return !s.isRemembered(now) })
	s, ok := u.of[owner]
	switch {
	case !ok && len(u.of) == maxUnreached:
		return
	case !ok:
		s.first = now
	}
	if u.of == nil {
		u.of = make(map[string]unreachedSince)
	}
	s.last = now
	u.of[owner] = s
}

// forget removes an owner which was reached.
func (u *unreachedOwners) forget(owner string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, owner)
}
