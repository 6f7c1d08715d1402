package simcluster

import (
	"slices"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
)

// minDescribe is the least time between two descriptions of a cache that routers
// asked for.
const minDescribe = time.Second

// publisher numbers the events of a worker's cache, as the process of a worker
// does.
type publisher struct {
	cut   feed.Cutter
	next  uint64  // number of the next event
	since kv.Mono // when the cache was described last
	again bool    // it is to be described once minDescribe is over
	due   bool    // it is to be described as soon as no batch is computed
}

// publish tells the routers what changed in the cache since the last time.
func (w *worker) publish(c *cluster) {
	if !c.follow {
		return
	}
	w.tell(c, w.sched.Events(nil))
	if w.due {
		w.describe(c)
	}
}

// describe tells the routers all that is cached. All changes have been told.
func (w *worker) describe(c *cluster) {
	w.due, w.since = false, c.now
	if c.follow {
		w.tell(c, w.sched.Dump(nil))
	}
}

// tell publishes events in records of bounded size.
func (w *worker) tell(c *cluster, events []kv.Event) {
	w.cut.Reset(events)
	for {
		piece := slices.Clone(w.cut.Next())
		if len(piece) == 0 {
			return
		}
		r := &feed.Record{Worker: w.id, Epoch: w.epoch, First: w.next, BlockSize: uint32(c.cfg.BlockSize), Events: piece}
		w.next += uint64(len(piece))
		c.mail(r)
	}
}

// asked notes that a router wants the cache described.
func (w *worker) asked(c *cluster) {
	if !w.alive || w.again || w.due {
		return
	}
	w.again = true
	c.queue.push(max(c.now, w.since.Add(minDescribe)), described, w.number, uint32(w.epoch))
}

// described is when the cache may be described again.
func (w *worker) described(c *cluster, epoch uint32) {
	if !w.alive || uint32(w.epoch) != epoch {
		return
	}
	w.again, w.due = false, true
	if !w.busy {
		w.publish(c)
	}
}

// parcel is a record on its way to routers.
type parcel struct {
	record *feed.Record
	copies int // that have not arrived
}

// mail sends a record to all routers.
func (c *cluster) mail(r *feed.Record) {
	at := c.parcels.take()
	p := &c.parcels.all[at]
	p.record, p.copies = r, 0
	for i := range c.routers {
		for _, late := range c.chaos.copies(c.now) {
			p.copies++
			c.queue.push(c.now.Add(c.cfg.EventDelay+late), recorded, at, uint32(i))
		}
	}
	c.drain(at)
}

// unpack hands a record to a router.
func (c *cluster) unpack(at, router uint32) {
	p := &c.parcels.all[at]
	p.copies--
	c.routers[router].accept(c, p.record)
	c.drain(at)
}

// drain makes the place of a parcel vacant if no copies are on their way.
func (c *cluster) drain(at uint32) {
	if p := &c.parcels.all[at]; p.copies == 0 {
		p.record = nil
		c.parcels.give(at)
	}
}
