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
type ping struct {
	health.Ping
	router uint32
	lost   bool
}

// schedulePings schedules the router's next check for due pings, possibly too early: responses postpone pings
// all the time.
func (r *router) watch(c *cluster) {
	at, ok := r.health.Next()
	if !ok || r.looks && r.look <= at {
		return
	}
	r.looks, r.look = true, max(at, c.now)
	r.probing++
	c.queue.push(r.look, probed, r.number, r.probing)
}

// sendPings sends the pings which are due.
func (r *router) probe(c *cluster, number uint32) {
	if number != r.probing {
		return // an earlier check was scheduled
	}
	r.looks = false
	r.pings = r.health.Due(c.now, r.pings[:0], maxPings)
	for _, p := range r.pings {
		at := c.pings.take()
		out := &c.pings.all[at]
		*out = ping{Ping: p, router: r.number, lost: c.chaos.losesPing(c.now)}
		after := 2 * c.cfg.Delay
		if out.lost {
			after = pingTimeout
		}
		c.queue.push(c.now.Add(after), ponged, at, 0)
	}
	r.watch(c)
}

// finishPing completes a ping.
func (c *cluster) ponged(at uint32) {
	p := c.pings.all[at]
	c.pings.give(at)
	r, w := &c.routers[p.router], &c.workers[p.ID-1]
	if p.lost || !w.alive {
		r.health.Missed(c.now, p.Ping)
	} else {
		r.health.Answered(c.now, p.Ping, w.epoch)
		r.heed(c, w)
	}
	if r.members[w.number].known {
		r.settle(c, w.number)
	}
	r.watch(c)
}

// loadReport is the part of a worker's load report which a router uses.
type loadReport struct {
	epoch uint64
	next  uint64 // number of its next cache event
	drain bool
}

// reportLoad sends a load report to the routers if it changed or is due.
func (w *worker) report(c *cluster) {
	said := w.said()
	if !w.alive || said == w.load && !elapsed(w.loadAt, c.now, loadRefresh) {
		return
	}
	w.load, w.loadAt = said, c.now
	for i := range c.routers {
		if r := &c.routers[i]; !c.chaos.losesLoad(c.now) {
			r.health.Heard(c.now, w.id.ID, w.epoch)
			r.heed(c, w)
			r.watch(c)
		}
	}
}

// currentLoad is a worker's current load report.
func (w *worker) said() loadReport {
	return loadReport{epoch: w.epoch, next: w.log.Next(), drain: w.leaving}
}

// applyLoad applies a worker's load report.
func (r *router) heed(c *cluster, w *worker) {
	m := &r.members[w.number]
	if !m.known || m.epoch != w.epoch {
		return
	}
	m.load, m.loadAt, m.reported = w.said(), c.now, true
	r.settle(c, w.number)
}
