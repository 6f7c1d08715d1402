package simcluster

import (
	"slices"

	"penstock/core/feed"
	"penstock/core/kv"
)

// publisher numbers the events of a worker's cache, and answers resync requests of routers, as a worker
// process does.
type publisher struct {
	cut    feed.Cutter
	log    *feed.Log[*feed.Record]
	again  []*feed.Record // scratch of resendRecords
	due    bool           // describe the cache as soon as no batch is computed
	wakes  bool           // answerResyncs is scheduled at resyncAt
	wakeAt kv.Mono
}

// newPublisher starts an epoch of a worker.
func newPublisher(epoch uint64) (publisher, error) {
	log, err := feed.NewLog[*feed.Record](feed.LogConfig{}, epoch)
	return publisher{log: log}, err
}

// publishChanges sends the routers the changes of the cache since the last time.
func (w *worker) publish(c *cluster) {
	if !c.follow {
		return
	}
	events := w.sched.Events(nil)
	w.tell(c, events)
	w.copy(c, events)
	if w.due {
		w.describe(c)
	}
}

// describeCache sends the routers everything which is cached. All changes have been published.
func (w *worker) describe(c *cluster) {
	w.due = false
	w.log.Describing(c.now)
	if c.follow {
		w.tell(c, w.sched.Dump(nil))
		if w.member != nil {
			w.tell(c, w.member.Describe(nil))
		}
	}
}

// publishEvents publishes events in records of bounded size.
func (w *worker) tell(c *cluster, events []kv.Event) {
	w.cut.Reset(events)
	for {
		piece := slices.Clone(w.cut.Next())
		if len(piece) == 0 {
			return
		}
		r := w.record(c, piece)
		size := 0
		for i := range piece {
			size += feed.EventSize(piece[i])
		}
		w.log.Add(len(piece), size, r)
		c.mail(r)
	}
}

// newRecord returns a record of the next events.
func (w *worker) record(c *cluster, events []kv.Event) *feed.Record {
	return &feed.Record{Worker: w.id, Epoch: w.epoch, First: w.log.Next(), BlockSize: uint32(c.cfg.BlockSize), Events: events}
}

// sendResync sends a router's resync request to a worker; at is its arrival time.
func (c *cluster) post(at kv.Mono, worker uint32, q feed.Request) {
	place := c.requests.take()
	c.requests.all[place] = q
	c.queue.push(at, asked, worker, place)
}

// acceptResync records a resync request.
func (w *worker) asked(c *cluster, place uint32) {
	q := c.requests.all[place]
	c.requests.give(place)
	if w.alive {
		w.log.Ask(q)
		w.wake(c)
	}
}

// scheduleResync schedules the answer to the first due resync request.
func (w *worker) wake(c *cluster) {
	at, ok := w.log.Due()
	if !ok || w.due || w.wakes && w.wakeAt <= at {
		return
	}
	w.wakes, w.wakeAt = true, max(c.now, at)
	c.queue.push(w.wakeAt, answered, w.number, uint32(w.epoch))
}

// answerResyncs answers the due resync requests.
func (w *worker) answered(c *cluster, epoch uint32) {
	if !w.alive || uint32(w.epoch) != epoch || !w.wakes || c.now < w.wakeAt {
		return
	}
	w.wakes = false
	switch a := w.log.Answer(c.now); {
	case a.Describe:
		w.due = true
		if !w.busy {
			w.publish(c)
		}
	case a.Repeat:
		w.repeat(c, a.From)
	}
	w.wake(c)
}

// resendRecords resends published records with the same numbers.
func (w *worker) repeat(c *cluster, from uint64) {
	w.again = w.log.AppendFrom(w.again[:0], from)
	for _, r := range w.again {
		c.mail(r)
	}
	if len(w.again) == 0 {
		c.mail(w.record(c, nil))
	}
	clear(w.again)
}

// recordInFlight is a record in flight to routers.
type parcel struct {
	record *feed.Record
	copies int // not yet arrived
}

// broadcastRecord sends a record to all routers.
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

// deliverRecord delivers a record to a router.
func (c *cluster) unpack(at, router uint32) {
	p := &c.parcels.all[at]
	p.copies--
	c.routers[router].accept(c, p.record)
	c.drain(at)
}

// freeRecord frees the slot of a record without copies in flight.
func (c *cluster) drain(at uint32) {
	if p := &c.parcels.all[at]; p.copies == 0 {
		p.record = nil
		c.parcels.give(at)
	}
}
