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
	// maxPings bounds the pings in flight; further ones wait.
	maxPings = 256
	// idleProbe is how often the prober wakes when no ping is due.
	idleProbe = time.Hour
)

// pingOutcome is the outcome of a ping.
type pingOutcome int

const (
	pingAnswered pingOutcome = iota
	pingFailed
	pingOutcomes
)

var pingOutcomeNames = [pingOutcomes]string{"answered", "failed"}

// memberStateLocked returns the routing state of a member now, and since when it has been in doubt.
func (r *Router) memberStateLocked(now kv.Mono, m *member) (route.WorkerState, kv.Mono) {
	st, _ := r.mu.health.StatusOf(m.worker.ID)
	switch {
	case m.isDraining(now):
		return route.Draining, now
	case st.Quarantined && st.Cause == health.CallFailed:
		return route.Suspected, st.Since
	case st.Quarantined:
		return route.NotAnswering, st.Since
	case m.reportsState(now, engine.StateNotReady):
		return route.NotReady, now
	}
	return route.Ready, now
}

// updateStateLocked passes a member's state on to its pool, and admits waiting requests if it changed.
func (r *Router) updateStateLocked(now kv.Mono, m *member) {
	if p := r.memberPoolLocked(m); p != nil {
		state, since := r.memberStateLocked(now, m)
		if p.router.SetState(m.worker, state, since) {
			r.admitLocked(p)
		}
	}
}

// updateWorkerStateLocked calls updateStateLocked for all ranks of a worker.
func (r *Router) updateWorkerStateLocked(now kv.Mono, id kv.WorkerID) {
	at, _ := memberIndex(r.mu.members, kv.Worker{ID: id})
	for ; at < len(r.mu.members) && r.mu.members[at].worker.ID == id; at++ {
		r.updateStateLocked(now, r.mu.members[at])
	}
}

// isQuarantinedLocked reports whether a member does not answer.
func (r *Router) isQuarantinedLocked(m *member) bool {
	st, _ := r.mu.health.StatusOf(m.worker.ID)
	return st.Quarantined
}

func (r *Router) countQuarantined() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.health.QuarantinedCount()
}

// healthWorkers returns the workers of members, ascending.
func healthWorkers(members []*member) []health.Worker {
	var list []health.Worker
	for _, m := range members {
		if n := len(list); n == 0 || list[n-1].ID != m.worker.ID {
			list = append(list, health.Worker{ID: m.worker.ID, Epoch: m.in.Epoch, Confirmed: !m.in.Unconfirmed})
		}
	}
	return list
}

// ReportFailure records that a call to a worker failed with err, which is the worker's failure or its
// refusal. A worker that did not answer gets no requests until it answers a ping, while there is
// another worker. A draining worker gets no more requests. A full worker keeps its state.
func (r *Router) ReportFailure(w kv.Worker, err error) {
	code := fault.CodeOf(err)
	r.metrics.calls.WithLabelValues(code.String()).Inc()
	r.log.Debug("call failed", "worker", uint64(w.ID), "error", err)
	switch code {
	case fault.Draining:
		r.markDraining(w.ID)
	case fault.EngineError: // about the request: the worker works
	case fault.Unavailable, fault.Deadline:
		if r.planes.RPC != nil && r.recordFailedCall(w) {
			r.logQuarantine(context.Background(), w.ID, health.CallFailed, err)
			r.wakeProber()
		}
	}
}

// recordFailedCall records that a worker did not answer a call, and reports whether that starts its
// quarantine.
func (r *Router) recordFailedCall(w kv.Worker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memberLocked(w)
	now := r.now()
	if m == nil || !r.mu.health.RecordFailedCall(now, w.ID, m.in.Epoch) {
		return false
	}
	r.updateWorkerStateLocked(now, w.ID)
	return true
}

// markDraining records that a worker refused a call because it drains. Earlier load reports may still
// arrive, so they do not make it ready again.
func (r *Router) markDraining(id kv.WorkerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, m := range r.mu.members {
		if m.worker.ID == id {
			m.drainingUntil = now.Add(reportValidFor)
		}
	}
	r.updateWorkerStateLocked(now, id)
}

// logQuarantine logs that a quarantine has started, with its cause err.
func (r *Router) logQuarantine(ctx context.Context, id kv.WorkerID, why health.Cause, err error) {
	r.throttle.Log(ctx, slog.LevelWarn, "a worker does not answer, nothing is sent to it until it does", "worker", uint64(id), "reason", why.String(), "error", err)
}

// wakeProber makes the prober look for due pings.
func (r *Router) wakeProber() {
	select {
	case r.probeWake <- struct{}{}:
	default:
	}
}

// workerProbe is a ping with its address.
type workerProbe struct {
	health.Ping
	addr string
}

// checkHealth sends the due pings until ctx ends, and waits for them.
func (r *Router) checkHealth(ctx context.Context) {
	var pings sync.WaitGroup
	defer pings.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due []health.Ping
	for {
		select {
		case <-timer.C:
		case <-r.probeWake:
		case <-ctx.Done():
			return
		}
		probes, wait := r.takeDueProbes(due[:0])
		for _, p := range probes {
			pings.Go(func() { r.sendPing(ctx, p) })
		}
		timer.Reset(wait)
	}
}

// takeDueProbes returns the pings to send now and the time until the next one. due is memory for them.
func (r *Router) takeDueProbes(due []health.Ping) (probes []workerProbe, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.health.DuePings(now, due, maxPings-r.mu.pinging) {
		// Discovery lists every worker that the machine knows, so there is a first rank.
		if m := r.memberLocked(kv.Worker{ID: p.ID}); m != nil {
			probes = append(probes, workerProbe{Ping: p, addr: m.in.Addr})
		}
	}
	r.mu.pinging += len(probes)
	next, ok := r.mu.health.Deadline()
	if !ok || r.mu.pinging == maxPings { // the end of a ping wakes the prober
		return probes, idleProbe
	}
	return probes, max(next.Sub(now), 0)
}

// sendPing sends one ping and records its outcome.
func (r *Router) sendPing(ctx context.Context, p workerProbe) {
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
		return // this router stops: that says nothing about the worker
	case errors.Is(err, context.DeadlineExceeded):
		err = fault.New(fault.Unavailable, "no answer to a ping within %v", pingTimeout)
	case err == nil && pong == nil:
		err = fault.New(fault.Unavailable, "worker %d ended its answer to a ping early", p.ID)
	case err == nil && pong.WorkerID != p.ID:
		err = fault.New(fault.Unavailable, "at the address of worker %d there is worker %d", p.ID, pong.WorkerID)
	case err == nil && pong.Epoch < p.Epoch:
		err = fault.New(fault.Unavailable, "at the address of worker %d there is an earlier life of it", p.ID)
	}
	r.recordPing(ctx, p.Ping, pong, err)
	r.wakeProber()
}

// recordPing records the outcome of a ping. A worker that refuses a ping has answered it.
func (r *Router) recordPing(ctx context.Context, p health.Ping, pong *engine.Pong, err error) {
	changed, outcome := false, pingAnswered
	switch code := fault.CodeOf(err); {
	case err == nil:
		changed = r.recordPong(p, pong.Epoch, &pong.LoadReport)
	case code == fault.Draining:
		r.markDraining(p.ID)
		changed = r.recordPong(p, p.Epoch, nil)
	case code == fault.Overloaded, code == fault.Limited, code == fault.Unimplemented:
		changed = r.recordPong(p, p.Epoch, nil)
	default:
		outcome = pingFailed
		changed = r.recordMissedPing(p)
	}
	r.metrics.pings[outcome].Inc()
	switch {
	case !changed:
	case outcome == pingFailed:
		r.logQuarantine(ctx, p.ID, health.PingFailed, err)
	case err == nil && pong.State == engine.StateNotReady: // it becomes ready when its engine does
		r.throttle.Log(ctx, slog.LevelInfo, "a worker answers, and its engine does not", "worker", uint64(p.ID))
	default:
		r.throttle.Log(ctx, slog.LevelInfo, "a worker answers again", "worker", uint64(p.ID))
	}
}

// recordPong records the answer of a worker of the given epoch, with its load report, and reports
// whether that ends its quarantine.
func (r *Router) recordPong(p health.Ping, epoch uint64, report *engine.LoadReport) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.pinging--
	changed := r.mu.health.RecordAnswer(now, p, epoch)
	if report != nil {
		r.applyReportLocked(now, *report)
	}
	r.updateWorkerStateLocked(now, p.ID)
	return changed
}

// recordMissedPing records that a ping was not answered, and reports whether that starts a quarantine.
func (r *Router) recordMissedPing(p health.Ping) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.pinging--
	changed := r.mu.health.RecordMissed(now, p)
	r.updateWorkerStateLocked(now, p.ID)
	return changed
}
