package router

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/internal/plane/disco"
)

// At most rosterRecords records in each rosterEvery name a worker that joined or left;
// the others are counted, and the counts logged when the time is over.
const (
	rosterRecords = 32
	rosterEvery   = 10 * time.Second
)

// roster logs which workers joined and left. A worker that comes back in a later
// life has left and joined. It is safe for concurrent use.
type roster struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		since        time.Time // beginning of the period
		records      int       // logged in it
		joined, left int       // not logged in it
	}
}

// change is what is logged of one worker.
type change struct {
	in    disco.Instance
	model string
}

// missing returns the workers of members, each in its present life, that are not among
// others. Both are ascending.
func missing(members, others []*member) (out []change) {
	for i, m := range members {
		if i > 0 && members[i-1].worker.ID == m.worker.ID {
			continue // a further rank
		}
		at, _ := slices.BinarySearchFunc(others, m, func(o, m *member) int { return cmp.Compare(o.worker.ID, m.worker.ID) })
		if at == len(others) || others[at].worker.ID != m.worker.ID || others[at].in.Epoch != m.in.Epoch {
			out = append(out, change{m.in, m.card.Name})
		}
	}
	return out
}

// note logs changes: first the workers that left.
func (r *roster) note(joined, left []change) {
	if len(joined)+len(left) == 0 {
		return
	}
	r.flush(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range left {
		if !r.tell("worker left", c) {
			r.mu.left++
		}
	}
	for _, c := range joined {
		if !r.tell("worker joined", c) {
			r.mu.joined++
		}
	}
}

// tell logs one change if there is room. The caller holds mu.
func (r *roster) tell(msg string, c change) bool {
	if r.mu.records == rosterRecords {
		return false
	}
	r.mu.records++
	r.log.Info(msg, "worker", uint64(c.in.ID), "name", nameOf(&c.in), "host", c.in.Host, "addr", c.in.Addr, "model", c.model)
	return true
}

// flush logs what was only counted, and begins a new period, if the last one is over
// or, at the end, anyway.
func (r *roster) flush(end bool) {
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
