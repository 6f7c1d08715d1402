package router

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/internal/plane/disco"
)

// At most rosterRecords log records in each rosterEvery name a worker that joined or left; the others
// are only counted, and the counts are logged at the end of the period.
const (
	rosterRecords = 32
	rosterEvery   = 10 * time.Second
)

// membershipLog logs which workers joined and left. A worker that restarts has left and joined. It is
// safe for concurrent use.
type membershipLog struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		since        time.Time // start of the period
		records      int       // logged in it
		joined, left int       // not logged in it
	}
}

// memberChange is what is logged of one worker.
type memberChange struct {
	in    disco.Instance
	model string
}

// missingFrom returns the workers of members, each in its present epoch, that are not in others. Both
// are ascending.
func missingFrom(members, others []*member) (out []memberChange) {
	for i, m := range members {
		if i > 0 && members[i-1].worker.ID == m.worker.ID {
			continue // a further rank
		}
		at, _ := slices.BinarySearchFunc(others, m, func(o, m *member) int { return cmp.Compare(o.worker.ID, m.worker.ID) })
		if at == len(others) || others[at].worker.ID != m.worker.ID || others[at].in.Epoch != m.in.Epoch {
			out = append(out, memberChange{m.in, m.card.Name})
		}
	}
	return out
}

// logChanges logs changes, removed workers first.
func (r *membershipLog) logChanges(joined, left []memberChange) {
	if len(joined)+len(left) == 0 {
		return
	}
	r.flushCounts(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range left {
		if !r.logChangeLocked("worker left", c) {
			r.mu.left++
		}
	}
	for _, c := range joined {
		if !r.logChangeLocked("worker joined", c) {
			r.mu.joined++
		}
	}
}

// logChangeLocked logs one change if the period's records allow it.
func (r *membershipLog) logChangeLocked(msg string, c memberChange) bool {
	if r.mu.records == rosterRecords {
		return false
	}
	r.mu.records++
	r.log.Info(msg, "worker", uint64(c.in.ID), "name", nameOf(&c.in), "host", c.in.Host, "addr", c.in.Addr, "model", c.model)
	return true
}

// flushCounts logs the changes that were only counted and starts a new period, if the last one is over
// or end is set.
func (r *membershipLog) flushCounts(end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !end && now.Sub(r.mu.since) < rosterEvery {
		return
	}
	if r.mu.left+r.mu.joined > 0 {
		r.log.Info("more workers joined or left", "joined", r.mu.joined, "left", r.mu.left)
	}
	r.mu.since, r.mu.records, r.mu.joined, r.mu.left = now, 0, 0, 0
}
