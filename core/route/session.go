package route

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Session says to which session a request belongs.
type Session struct {
	// ID is the client's own name for the session; "" is none.
	ID string
	// Last says that no other request of the session follows.
	Last bool
}

// MaxSessionID is the maximum length of a session's name, in bytes.
const MaxSessionID = 256

// Stickiness says how strongly a session is bound to its worker.
type Stickiness string

// The kinds of stickiness.
const (
	// Soft prefers the worker of the session's last request by AffinityWeights.Session. If another worker
	// costs less by more than that, it is chosen and the session moves to it.
	Soft Stickiness = "soft"
	// Hard keeps a session at its worker as long as the worker can be chosen, and refuses the session's
	// requests while the worker is busy. Rendezvous hashing determines the first worker, so that routers with
	// the same workers find the same one without communicating.
	Hard Stickiness = "hard"
	// Unbound ignores sessions.
	Unbound Stickiness = "off"
)

// SessionConfig configures session affinity, and how many sessions are remembered.
type SessionConfig struct {
	Stickiness Stickiness // "" is Soft
	// TTL is how long a session is remembered after its last request; 0 is 10 minutes.
	TTL time.Duration
	// MaxSessions is how many sessions are remembered; 0 is 65,536. One more evicts the session which was
	// silent longest.
	MaxSessions int
}

func (s *SessionConfig) ensureDefaults() {
	if s.Stickiness == "" {
		s.Stickiness = Soft
	}
	if s.TTL == 0 {
		s.TTL = 10 * time.Minute
	}
	if s.MaxSessions == 0 {
		s.MaxSessions = 1 << 16
	}
}

func (s *SessionConfig) validate() error {
	var errs []error
	switch s.Stickiness {
	case "", Soft, Hard, Unbound:
	default:
		errs = append(errs, fmt.Errorf("route: session affinity %.40q is not one of soft, hard, off", string(s.Stickiness)))
	}
	if s.TTL < 0 || s.MaxSessions < 0 {
		errs = append(errs, errors.New("route: the ttl and the number of sessions must be positive"))
	}
	return errors.Join(errs...)
}

// sessionTable remembers which worker had the last request of each session. Entries are in a ring by age,
// whose head is a sentinel.
type sessionTable struct {
	cfg  SessionConfig
	byID map[string]*sessionEntry
	head sessionEntry // head.older is the newest, head.newer the oldest
}

type sessionEntry struct {
	id           string
	worker       kv.Worker
	lastRequest  kv.Mono // of its last request
	older, newer *sessionEntry
}

func newSessionTable(cfg SessionConfig) *sessionTable {
	s := &sessionTable{cfg: cfg, byID: map[string]*sessionEntry{}}
	s.head.older, s.head.newer = &s.head, &s.head
	return s
}

// workerOf returns the worker to which a session is bound; its ID is 0 if there is none.
func (s *sessionTable) workerOf(now kv.Mono, id string) kv.Worker {
	e := s.byID[id]
	if e == nil || now.Sub(e.lastRequest) >= s.cfg.TTL {
		return kv.Worker{}
	}
	return e.worker
}

// bindSession records that w has the newest request of a session.
func (s *sessionTable) bindSession(now kv.Mono, id string, w kv.Worker) {
	s.expireIdle(now)
	e := s.byID[id]
	if e == nil {
		if len(s.byID) >= s.cfg.MaxSessions {
			s.removeEntry(s.head.newer)
		}
		e = &sessionEntry{id: id}
		s.byID[id] = e
	} else {
		e.unlink()
	}
	e.worker, e.lastRequest = w, now
	e.newer, e.older = &s.head, s.head.older
	e.older.newer, s.head.older = e, e
}

// releaseSession removes a session.
func (s *sessionTable) releaseSession(id string) {
	if e := s.byID[id]; e != nil {
		s.removeEntry(e)
	}
}

// expireIdle removes the sessions which were silent for the TTL.
func (s *sessionTable) expireIdle(now kv.Mono) {
	for e := s.head.newer; e != &s.head && now.Sub(e.lastRequest) >= s.cfg.TTL; e = s.head.newer {
		s.removeEntry(e)
	}
}

func (s *sessionTable) removeEntry(e *sessionEntry) {
	e.unlink()
	delete(s.byID, e.id)
}

func (e *sessionEntry) unlink() { e.older.newer, e.newer.older = e.newer, e.older }

// resolveSession sets in p to which worker the session of q is bound, and whether that worker must be chosen.
func (r *Router) resolveSession(now kv.Mono, p *requestPolicy, q *Query) {
	if q.Session.ID == "" || r.cfg.Sessions.Stickiness == Unbound || q.Pin.ID != 0 {
		return
	}
	w := r.sessions.workerOf(now, q.Session.ID)
	if r.cfg.Sessions.Stickiness == Soft {
		p.bound = w
		return
	}
	if at, found := findTarget(r.targets, w); w.ID == 0 || !found || !r.canHoldSession(p, at, q) {
		w = r.rendezvousWorker(p, q)
	}
	p.bound, p.mustUseBound = w, w.ID != 0
}

// canHoldSession reports whether a session may stay at the target at an index: it can be chosen, now or once it is
// less busy.
func (r *Router) canHoldSession(p *requestPolicy, at int, q *Query) bool {
	switch r.checkEligible(p, at, q) {
	case eligible:
		return true
	case busy:
		return !q.Moving // a migrated request goes elsewhere rather than wait
	}
	return false
}

// rendezvousWorker returns the worker which has the highest hash together with the session, among the workers
// which may hold it: removing another worker does not change it, and a new one takes over only the sessions
// for which its hash is the highest. Its ID is 0 if there is none.
func (r *Router) rendezvousWorker(p *requestPolicy, q *Query) (best kv.Worker) {
	name, most := fnv1a(q.Session.ID), uint64(0)
	for i := range r.targets {
		t := &r.targets[i]
		if !r.canHoldSession(p, i, q) {
			continue
		}
		h := splitmix.Mix(splitmix.Mix(name^uint64(t.Worker.ID)) + uint64(t.Worker.Rank)*splitmix.Step)
		if best.ID == 0 || h > most {
			best, most = t.Worker, h
		}
	}
	return best
}

// fnv1a is the 64-bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
