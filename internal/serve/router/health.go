package router

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

const (
	// pingTimeout is how long a worker may take to answer a ping.
	pingTimeout = time.Second
	// maxPings bounds the pings that are out at once; the rest wait their turn.
	maxPings = 256
	// idleProbe is how often the pinger looks at a fleet that gives it nothing to do.
	idleProbe = time.Hour
)

// pingOutcome is how a ping ended.
type pingOutcome int

const (
	pingAnswered pingOutcome = iota
	pingFailed
	pingOutcomes
)

var pingOutcomeNames = [pingOutcomes]string{"answered", "failed"}

// state is how requests see a member at a time, and since when it is in doubt. The
// caller holds mu.
func (r *Router) state(now kv.Mono, m *member) (route.State, kv.Mono) {
	st, _ := r.mu.health.Status(m.worker.ID)
	switch {
	case m.draining(now):
		return route.Draining, now
	case st.Quarantined && st.Cause == health.CallFailed:
		return route.Suspected, st.Since
	case st.Quarantined:
		return route.NotAnswering, st.Since
	case m.says(now, engine.StateNotReady):
		return route.NotReady, now
	}
	return route.Ready, now
}

// settle makes decisions follow a member's state. The caller holds mu.
func (r *Router) settle(now kv.Mono, m *member) {
	if p := r.mu.names[m.card.Name]; p != nil {
		state, since := r.state(now, m)
		if p.router.SetState(m.worker, state, since) {
			r.admit(p)
		}
	}
}

// settleAll does so for all ranks of a worker. The caller holds mu.
func (r *Router) settleAll(now kv.Mono, id kv.WorkerID) {
	at, _ := findMember(r.mu.members, kv.Worker{ID: id})
	for ; at < len(r.mu.members) && r.mu.members[at].worker.ID == id; at++ {
		r.settle(now, r.mu.members[at])
	}
}

// quarantined reports whether a member does not answer. The caller holds mu.
func (r *Router) quarantined(m *member) bool {
	st, _ := r.mu.health.Status(m.worker.ID)
	return st.Quarantined
}

func (r *Router) countQuarantined() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.health.Quarantined()
}

// watched returns the workers of members, ascending.
func watched(members []*member) []health.Worker {
	var list []health.Worker
	for _, m := range members {
		if n := len(list); n == 0 || list[n-1].ID != m.worker.ID {
			list = append(list, health.Worker{ID: m.worker.ID, Epoch: m.in.Epoch, Confirmed: !m.in.Unconfirmed})
		}
	}
	return list
}

// Failed notes that a call to a worker ended in err, which is the worker's failure
// or its refusal. One that did not answer gets nothing more, while there is another,
// until it answers a ping; one that drains nothing more at all; one that is full is
// where it should be.
func (r *Router) Failed(w kv.Worker, err error) {
	code := fault.Of(err)
	r.metrics.calls.WithLabelValues(code.String()).Inc()
	r.log.Debug("call failed", "worker", uint64(w.ID), "error", err)
	switch code {
	case fault.Draining:
		r.leaves(w.ID)
	case fault.EngineError: // about the request: the worker works
	case fault.Unavailable, fault.Deadline:
		if r.planes.RPC != nil && r.suspect(w) {
			r.tellSilent(context.Background(), w.ID, health.CallFailed, err)
			r.wakeProbe()
		}
	}
}

// suspect notes that a worker did not answer a call, and reports whether its
// quarantine begins with that.
func (r *Router) suspect(w kv.Worker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.member(w)
	now := r.now()
	if m == nil || !r.mu.health.Failed(now, w.ID, m.in.Epoch) {
		return false
	}
	r.settleAll(now, w.ID)
	return true
}

// leaves notes that a worker refused a call because it drains. Reports that it sent
// before may be on their way, so they do not make it ready again.
func (r *Router) leaves(id kv.WorkerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, m := range r.mu.members {
		if m.worker.ID == id {
			m.leaving = now.Add(fresh)
		}
	}
	r.settleAll(now, id)
}

// tellSilent says that a quarantine has begun, and err, which began it.
func (r *Router) tellSilent(ctx context.Context, id kv.WorkerID, why health.Cause, err error) {
	r.throttle.Log(ctx, slog.LevelWarn, "a worker does not answer, nothing is sent to it until it does", "worker", uint64(id), "reason", why.String(), "error", err)
}

// wakeProbe has the pinger look for what is due.
func (r *Router) wakeProbe() {
	select {
	case r.probe <- struct{}{}:
	default:
	}
}

// probe is a ping with the address that it goes to.
type probe struct {
	health.Ping
	addr string
}

// checkHealth pings whom it is time to ping until ctx ends, and waits for the pings.
func (r *Router) checkHealth(ctx context.Context) {
	var pings sync.WaitGroup
	defer pings.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due []health.Ping
	for {
		select {
		case <-timer.C:
		case <-r.probe:
		case <-ctx.Done():
			return
		}
		probes, wait := r.probes(due[:0])
		for _, p := range probes {
			pings.Go(func() { r.ping(ctx, p) })
		}
		timer.Reset(wait)
	}
}

// probes returns the pings to be sent now and the time to the next one. due is
// memory for them.
func (r *Router) probes(due []health.Ping) (probes []probe, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.health.Due(now, due, maxPings-r.mu.pinging) {
		// Discovery knows whoever the machine knows, so there is a first rank.
		if m := r.member(kv.Worker{ID: p.ID}); m != nil {
			probes = append(probes, probe{Ping: p, addr: m.in.Addr})
		}
	}
	r.mu.pinging += len(probes)
	next, ok := r.mu.health.Next()
	if !ok || r.mu.pinging == maxPings { // the end of a ping wakes
		return probes, idleProbe
	}
	return probes, max(next.Sub(now), 0)
}

// ping sends one ping and notes what came of it.
func (r *Router) ping(ctx context.Context, p probe) {
	limited, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var pong *engine.Pong
	err := r.planes.RPC.Call(limited, p.addr, engine.MethodPing, nil, func(frame []byte) error {
		got, err := engine.DecodePong(frame)
		pong = &got
		return err
	})
	switch {
	case ctx.Err() != nil:
		return // this router ends: that says nothing of the worker
	case errors.Is(err, context.DeadlineExceeded):
		err = fault.New(fault.Unavailable, "no answer to a ping within %v", pingTimeout)
	case err == nil && pong == nil:
		err = fault.New(fault.Unavailable, "worker %d ended its answer to a ping early", p.ID)
	case err == nil && pong.WorkerID != p.ID:
		err = fault.New(fault.Unavailable, "at the address of worker %d there is worker %d", p.ID, pong.WorkerID)
	case err == nil && pong.Epoch < p.Epoch:
		err = fault.New(fault.Unavailable, "at the address of worker %d there is an earlier life of it", p.ID)
	}
	r.pinged(ctx, p.Ping, pong, err)
	r.wakeProbe()
}

// pinged notes how a ping ended. Whoever refuses a ping has answered it.
func (r *Router) pinged(ctx context.Context, p health.Ping, pong *engine.Pong, err error) {
	changed, outcome := false, pingAnswered
	switch code := fault.Of(err); {
	case err == nil:
		changed = r.answered(p, pong.Epoch, &pong.LoadReport)
	case code == fault.Draining:
		r.leaves(p.ID)
		changed = r.answered(p, p.Epoch, nil)
	case code == fault.Overloaded, code == fault.Limited, code == fault.Unimplemented:
		changed = r.answered(p, p.Epoch, nil)
	default:
		outcome = pingFailed
		changed = r.missed(p)
	}
	r.metrics.pings[outcome].Inc()
	switch {
	case !changed:
	case outcome == pingFailed:
		r.tellSilent(ctx, p.ID, health.PingFailed, err)
	case err == nil && pong.State == engine.StateNotReady: // it comes back when its engine does
		r.throttle.Log(ctx, slog.LevelInfo, "a worker answers, and its engine does not", "worker", uint64(p.ID))
	default:
		r.throttle.Log(ctx, slog.LevelInfo, "a worker answers again", "worker", uint64(p.ID))
	}
}

// answered notes the answer of a life of a worker, with what it says of itself, and
// reports whether its quarantine ends with that.
func (r *Router) answered(p health.Ping, epoch uint64, report *engine.LoadReport) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.pinging--
	changed := r.mu.health.Answered(now, p, epoch)
	if report != nil {
		r.heed(now, *report)
	}
	r.settleAll(now, p.ID)
	return changed
}

// missed notes that a ping was not answered, and reports whether a quarantine
// begins with that.
func (r *Router) missed(p health.Ping) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.pinging--
	changed := r.mu.health.Missed(now, p)
	r.settleAll(now, p.ID)
	return changed
}
