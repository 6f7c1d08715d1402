package simcluster

import (
	"time"

	"penstock/core/health"
)

const (
	// pingTimeout bounds the wait for a ping's response.
	pingTimeout = time.Second
	// maxPings bounds the pings sent at once.
	maxPings = 256
	// loadEvery is how often workers check their load, loadRefresh how often they report an unchanged one.
	loadEvery   = 250 * time.Millisecond
	loadRefresh = 5 * time.Second
)

// sentPing is a ping in flight.
type sentPing struct {
	health.Ping
	router uint32
	lost   bool
}

// schedulePings schedules the router's next check for due pings, possibly too early: responses postpone pings
// all the time.
func (r *simRouter) schedulePings(c *cluster) {
	at, ok := r.health.Deadline()
	if !ok || r.pingScheduled && r.pingAt <= at {
		return
	}
	r.pingScheduled, r.pingAt = true, max(at, c.now)
	r.pingSeq++
	c.queue.push(r.pingAt, eventPingDue, r.number, r.pingSeq)
}

// sendPings sends the pings which are due.
func (r *simRouter) sendPings(c *cluster, number uint32) {
	if number != r.pingSeq {
		return // an earlier check was scheduled
	}
	r.pingScheduled = false
	r.pings = r.health.DuePings(c.now, r.pings[:0], maxPings)
	for _, p := range r.pings {
		at := c.pings.takeSlot()
		out := &c.pings.all[at]
		*out = sentPing{Ping: p, router: r.number, lost: c.faults.losesPing(c.now)}
		after := 2 * c.cfg.Delay
		if out.lost {
			after = pingTimeout
		}
		c.queue.push(c.now.Add(after), eventPingDone, at, 0)
	}
	r.schedulePings(c)
}

// finishPing completes a ping.
func (c *cluster) finishPing(at uint32) {
	p := c.pings.all[at]
	c.pings.freeSlot(at)
	r, w := &c.routers[p.router], &c.workers[p.ID-1]
	if p.lost || !w.alive {
		r.health.RecordMissed(c.now, p.Ping)
	} else {
		r.health.RecordAnswer(c.now, p.Ping, w.epoch)
		r.applyLoad(c, w)
	}
	if r.members[w.number].known {
		r.updateState(c, w.number)
	}
	r.schedulePings(c)
}

// loadReport is the part of a worker's load report which a router uses.
type loadReport struct {
	epoch uint64
	next  uint64 // number of its next cache event
	drain bool
}

// reportLoad sends a load report to the routers if it changed or is due.
func (w *simWorker) reportLoad(c *cluster) {
	said := w.currentLoad()
	if !w.alive || w.isPrefill(c) || said == w.load && !hasElapsed(w.loadAt, c.now, loadRefresh) {
		return
	}
	w.load, w.loadAt = said, c.now
	for i := range c.routers {
		if r := &c.routers[i]; !c.faults.losesLoad(c.now) {
			r.health.RecordHeard(c.now, w.id.ID, w.epoch)
			r.applyLoad(c, w)
			r.schedulePings(c)
		}
	}
}

// currentLoad is a worker's current load report.
func (w *simWorker) currentLoad() loadReport {
	return loadReport{epoch: w.epoch, next: w.log.Next(), drain: w.draining}
}

// applyLoad applies a worker's load report.
func (r *simRouter) applyLoad(c *cluster, w *simWorker) {
	m := &r.members[w.number]
	if !m.known || m.epoch != w.epoch {
		return
	}
	m.load, m.loadAt, m.reported = w.currentLoad(), c.now, true
	r.updateState(c, w.number)
}
