package router

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net/http"
	"time"

	"penstock/core/activeseq"
	"penstock/core/activeseq/replica"
	"penstock/core/kv"
	"penstock/internal/plane/bus"
)

const (
	// publishTimeout bounds how long one message to other routers waits for the plane. The protocol
	// repairs lost messages.
	publishTimeout = time.Second
	// batchDelay is how long a change waits for further changes to join its message.
	batchDelay = time.Millisecond
)

// newReplica returns this router's side of the exchange of active requests between routers. Each
// process draws a new random id.
func (r *Router) newReplica() (*replica.Replica, error) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it cannot fail
	return replica.New(replica.Config{
		Router: max(1, binary.LittleEndian.Uint64(id[:])),
		Epoch:  uint64(r.started.UnixNano()),
	}, replicaTables{r})
}

// replicaTables finds the active sequences of a worker's pool. The replica's caller holds mu.
type replicaTables struct{ r *Router }

// TableOf implements replica.Tables.
func (t replicaTables) TableOf(w kv.Worker) *activeseq.ReservationTable {
	m := t.r.memberLocked(w)
	if m == nil {
		return nil
	}
	if p := t.r.memberPoolLocked(m); p != nil {
		return p.active
	}
	return nil
}

// journalLocked returns the journal of reservations for a pool; nil without Sync.
func (r *Router) journalLocked() activeseq.Journal {
	if r.mu.replica == nil {
		return nil
	}
	return r.mu.replica
}

// wakeSyncLocked wakes syncReplicas if there is something to publish.
func (r *Router) wakeSyncLocked() {
	if r.mu.replica == nil || !r.mu.replica.HasPending() {
		return
	}
	select {
	case r.syncWake <- struct{}{}:
	default:
	}
}

// syncReplicas publishes to the other routers what this one has sent to workers, until ctx ends, and
// then that it stops.
func (r *Router) syncReplicas(ctx context.Context) {
	due := time.NewTimer(0)
	defer due.Stop()
	var out [][]byte
	for ctx.Err() == nil {
		select {
		case <-r.syncWake:
			due.Reset(batchDelay) // changes in the meantime go with it
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
			r.publishActive(ctx, data)
		}
		clear(out)
		due.Reset(next)
	}
	r.publishActive(context.WithoutCancel(ctx), r.leaveMessage())
}

// stepReplica appends to out the messages to publish now, and returns the time until the next step.
func (r *Router) stepReplica(out [][]byte) ([][]byte, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	out = r.mu.replica.Tick(now, out)
	for _, p := range r.mu.pools {
		p.router.SetRouters(r.mu.replica.CountRouters(), r.mu.replica.PlaceOf())
	}
	return out, max(batchDelay, r.mu.replica.Deadline().Sub(now))
}

// leaveMessage returns the message that this router stops, so that the others need not wait for it.
func (r *Router) leaveMessage() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.replica.LeaveMessage()
}

// publishActive publishes one message; decisions do not wait for it.
func (r *Router) publishActive(ctx context.Context, data []byte) {
	limited, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	err := r.planes.Bus.Publish(limited, bus.ActiveSequencesTopic(r.cfg.Namespace, r.cfg.Component), "", data)
	if err != nil && ctx.Err() == nil {
		r.throttle.Log(ctx, slog.LevelWarn, "cannot tell other routers of this one's requests", "error", err)
	}
}

// handlePeerMessage takes a message of another router.
func (r *Router) handlePeerMessage(m bus.Message) error {
	r.mu.Lock()
	err := r.mu.replica.HandleMessage(r.now(), m.Data)
	for _, p := range r.mu.pools {
		p.active.MarkPublished(r.now(), r.mu.replica.EchoedNumber())
		r.admitLocked(p) // a worker may have less load
	}
	r.wakeSyncLocked() // possibly an answer
	r.mu.Unlock()
	if err != nil {
		r.throttle.Log(context.Background(), slog.LevelWarn, "a message of another router cannot be read", "error", err)
	}
	return nil
}

// replicaRow is the JSON of another router.
type replicaRow struct {
	Router   string  `json:"router"`   // its id, hex
	Requests int     `json:"requests"` // sent to workers
	Unplaced int     `json:"unplaced"` // the part of them on workers that are not known here
	HeardFor float64 `json:"heard_seconds"`
	// AgreedFor is the time since its state last matched what is known of it here; null if it never
	// did.
	AgreedFor *float64 `json:"agreed_seconds"`
	// BehindFor is how long some of its state has been missing.
	BehindFor float64 `json:"behind_seconds"`
}

// replicasRow is the JSON of the exchange between routers.
type replicasRow struct {
	Sync     bool         `json:"sync"`
	Requests int          `json:"requests"` // this router's own
	Rows     []replicaRow `json:"rows"`
}

func (r *Router) serveReplicas(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, r.replicaTable())
}

func (r *Router) replicaTable() replicasRow {
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
	row.Sync, row.Requests = true, r.mu.replica.OwnReservations()
	for _, p := range r.mu.replica.AppendPeers(nil) {
		out := replicaRow{Router: formatHex(p.Router), Requests: p.Requests, Unplaced: p.Unplaced, HeardFor: toSeconds(now.Sub(p.Heard))}
		if p.Agreed > 0 {
			out.AgreedFor = new(toSeconds(now.Sub(p.Agreed)))
		}
		if p.Lacking {
			out.BehindFor = toSeconds(now.Sub(p.Behind))
		}
		row.Rows = append(row.Rows, out)
	}
	return row
}
