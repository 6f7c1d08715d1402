package router

import (
	"log/slog"
	"sync"
	"time"

	"penstock/internal/catalog"
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

// missingFrom returns the usable workers of s, each in its present epoch, that are not in other.
func missingFrom(s, other *catalog.Snapshot) (out []*catalog.Worker) {
	for _, w := range s.Workers {
		if was := other.Worker(w.ID); w.Problem == "" && (was == nil || was.Problem != "" || was.Epoch != w.Epoch) {
			out = append(out, w)
		}
	}
	return out
}

// logChanges logs changes, removed workers first.
func (r *membershipLog) logChanges(joined, left []*catalog.Worker) {
	if len(joined)+len(left) == 0 {
		return
	}
	r.flushCounts(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range left {
		if !r.logChangeLocked("worker left", w) {
			r.mu.left++
		}
	}
	for _, w := range joined {
		if !r.logChangeLocked("worker joined", w) {
			r.mu.joined++
		}
	}
}

// logChangeLocked logs one change if the period's records allow it.
func (r *membershipLog) logChangeLocked(msg string, w *catalog.Worker) bool {
	if r.mu.records == rosterRecords {
		return false
	}
	r.mu.records++
	r.log.Info(msg, "worker", uint64(w.ID), "name", nameOf(&w.Instance), "host", w.Host, "addr", w.Addr, "model", w.Card.Name)
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
