package router

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net/http"
	"time"

	"penstock/core/kv"
	"penstock/core/slots"
	"penstock/core/slots/replica"
	"penstock/internal/plane/bus"
)

const (
	// told bounds the time for which one message to other routers may wait for the plane.
	// What is lost then is healed.
	told = time.Second
	// gather is how long a change waits for others to go with it.
	gather = time.Millisecond
)

// newReplica returns this router's part in the exchange of what routers have sent to
// workers. Its id is drawn anew in each life.
func (r *Router) newReplica() (*replica.Replica, error) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it cannot fail
	return replica.New(replica.Config{
		Router: max(1, binary.LittleEndian.Uint64(id[:])),
		Epoch:  uint64(r.started.UnixNano()),
	}, tables{r})
}

// tables finds the pool of a worker. The caller of its replica holds mu.
type tables struct{ r *Router }

// Table implements replica.Tables.
func (t tables) Table(w kv.Worker) *slots.Table {
	m := t.r.member(w)
	if m == nil {
		return nil
	}
	if p := t.r.mu.names[m.card.Name]; p != nil && p.model == m.card.Name {
		return p.active
	}
	return nil
}

// journal is told of the reservations of a pool; nil if nobody is. The caller holds mu.
func (r *Router) journal() slots.Journal {
	if r.mu.replica == nil {
		return nil
	}
	return r.mu.replica
}

// tell wakes the one who tells others, if there are any and there is something to tell.
// The caller holds mu.
func (r *Router) tell() {
	if r.mu.replica == nil || !r.mu.replica.Pending() {
		return
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// syncReplicas tells other routers what this one has sent to workers until ctx ends, and
// then that it leaves.
func (r *Router) syncReplicas(ctx context.Context) {
	due := time.NewTimer(0)
	defer due.Stop()
	var out [][]byte
	for ctx.Err() == nil {
		select {
		case <-r.changed:
			due.Reset(gather) // what comes meanwhile goes with it
			select {
			case <-due.C:
			case <-ctx.Done():
			}
		case <-due.C:
		case <-ctx.Done():
		}
		var next time.Duration
		out, next = r.stepReplica(out[:0])
		for _, data := range out {
			r.publishSlots(ctx, data)
		}
		clear(out)
		due.Reset(next)
	}
	r.publishSlots(context.WithoutCancel(ctx), r.farewell())
}

// stepReplica appends to out what is to be told now, and says when there is more.
func (r *Router) stepReplica(out [][]byte) ([][]byte, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	out = r.mu.replica.Step(now, out)
	return out, max(gather, r.mu.replica.Next().Sub(now))
}

// farewell tells the others that this router goes, so that they need not miss it.
func (r *Router) farewell() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.replica.Leave()
}

// publishSlots publishes one message; decisions do not wait for it.
func (r *Router) publishSlots(ctx context.Context, data []byte) {
	limited, cancel := context.WithTimeout(ctx, told)
	defer cancel()
	err := r.planes.Bus.Publish(limited, bus.Slots(r.cfg.Namespace, r.cfg.Component), "", data)
	if err != nil && ctx.Err() == nil {
		r.throttle.Log(ctx, slog.LevelWarn, "cannot tell other routers of this one's requests", "error", err)
	}
}

// takeSlots takes what another router tells.
func (r *Router) takeSlots(m bus.Message) error {
	r.mu.Lock()
	err := r.mu.replica.Accept(r.now(), m.Data)
	for _, p := range r.mu.pools {
		r.admit(p) // a worker may have less to do
	}
	r.tell() // an answer, it may be
	r.mu.Unlock()
	if err != nil {
		r.throttle.Log(context.Background(), slog.LevelWarn, "a message of another router cannot be read", "error", err)
	}
	return nil
}

// replicaRow is the JSON of another router.
type replicaRow struct {
	Router   string  `json:"router"`   // its id, hex
	Requests int     `json:"requests"` // that it has sent to workers
	Unplaced int     `json:"unplaced"` // of those, on workers that are not known here
	HeardFor float64 `json:"heard_seconds"`
	// AgreedFor is the time since what it has was last known to be what is known of it
	// here; null if it never was.
	AgreedFor *float64 `json:"agreed_seconds"`
	// BehindFor is for how long something of it has been missing.
	BehindFor float64 `json:"behind_seconds"`
}

// replicasRow is the JSON of what routers tell each other.
type replicasRow struct {
	Sync     bool         `json:"sync"`
	Requests int          `json:"requests"` // this router's own
	Rows     []replicaRow `json:"rows"`
}

func (r *Router) serveReplicas(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, r.replicas())
}

func (r *Router) replicas() replicasRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := replicasRow{Rows: []replicaRow{}}
	if r.mu.replica == nil {
		for _, p := range r.mu.pools {
			row.Requests += p.active.Len()
		}
		return row
	}
	now := r.now()
	row.Sync, row.Requests = true, r.mu.replica.Own()
	for _, p := range r.mu.replica.Peers(nil) {
		out := replicaRow{Router: hex(p.Router), Requests: p.Requests, Unplaced: p.Unplaced, HeardFor: seconds(now.Sub(p.Heard))}
		if p.Agreed > 0 {
			out.AgreedFor = new(seconds(now.Sub(p.Agreed)))
		}
		if p.Lacking {
			out.BehindFor = seconds(now.Sub(p.Behind))
		}
		row.Rows = append(row.Rows, out)
	}
	return row
}
