package simcluster

import (
	"slices"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

// publisher numbers the events of a worker's cache, and answers resync requests of routers, as a worker
// process does.
type publisher struct {
	cut             kvfeed.RecordSplitter
	log             *kvfeed.EventLog[*kvfeed.Record]
	resendScratch   []*kvfeed.Record // scratch of resendRecords
	describeDue     bool             // describe the cache as soon as no batch is computed
	resyncScheduled bool             // answerResyncs is scheduled at resyncAt
	resyncAt        kv.Mono
}

// newPublisher starts an epoch of a worker.
func newPublisher(epoch uint64) (publisher, error) {
	log, err := kvfeed.NewEventLog[*kvfeed.Record](kvfeed.LogConfig{}, epoch)
	return publisher{log: log}, err
}

// publishChanges sends the routers the changes of the cache since the last time.
func (w *simWorker) publishChanges(c *cluster) {
	if !c.usesEvents || w.isPrefill(c) {
		return
	}
	events := w.sched.AppendEvents(nil)
	w.publishEvents(c, events)
	w.startPoolCopy(c, events)
	if w.describeDue {
		w.describeCache(c)
	}
}

// describeCache sends the routers everything which is cached. All changes have been published.
func (w *simWorker) describeCache(c *cluster) {
	w.describeDue = false
	w.log.StartDescription(c.now)
	if c.usesEvents && !w.isPrefill(c) {
		w.publishEvents(c, w.sched.AppendDump(nil))
		if w.member != nil {
			w.publishEvents(c, w.member.AppendContents(nil))
		}
	}
}

// publishEvents publishes events in records of bounded size.
func (w *simWorker) publishEvents(c *cluster, events []kv.Event) {
	w.cut.Reset(events)
	for {
		piece := slices.Clone(w.cut.Next())
		if len(piece) == 0 {
			return
		}
		r := w.newRecord(c, piece)
		size := 0
		for i := range piece {
			size += kvfeed.EventSize(piece[i])
		}
		w.log.AddRecord(len(piece), size, r)
		c.broadcastRecord(r)
	}
}

// newRecord returns a record of the next events.
func (w *simWorker) newRecord(c *cluster, events []kv.Event) *kvfeed.Record {
	return &kvfeed.Record{Worker: w.id, Epoch: w.epoch, First: w.log.Next(), BlockSize: uint32(c.cfg.BlockSize), Events: events}
}

// sendResync sends a router's resync request to a worker; at is its arrival time.
func (c *cluster) sendResync(at kv.Mono, worker uint32, q kvfeed.ResyncRequest) {
	place := c.requests.takeSlot()
	c.requests.all[place] = q
	c.queue.push(at, eventResyncArrived, worker, place)
}

// acceptResync records a resync request.
func (w *simWorker) acceptResync(c *cluster, place uint32) {
	q := c.requests.all[place]
	c.requests.freeSlot(place)
	if w.alive {
		w.log.AddRequest(q)
		w.scheduleResync(c)
	}
}

// scheduleResync schedules the answer to the first due resync request.
func (w *simWorker) scheduleResync(c *cluster) {
	at, ok := w.log.Deadline()
	if !ok || w.describeDue || w.resyncScheduled && w.resyncAt <= at {
		return
	}
	w.resyncScheduled, w.resyncAt = true, max(c.now, at)
	c.queue.push(w.resyncAt, eventResyncAnswer, w.number, uint32(w.epoch))
}

// answerResyncs answers the due resync requests.
func (w *simWorker) answerResyncs(c *cluster, epoch uint32) {
	if !w.alive || uint32(w.epoch) != epoch || !w.resyncScheduled || c.now < w.resyncAt {
		return
	}
	w.resyncScheduled = false
	switch a := w.log.NextAnswer(c.now); {
	case a.Describe:
		w.describeDue = true
		if !w.busy {
			w.publishChanges(c)
		}
	case a.Repeat:
		w.resendRecords(c, a.From)
	}
	w.scheduleResync(c)
}

// resendRecords resends published records with the same numbers.
func (w *simWorker) resendRecords(c *cluster, from uint64) {
	w.resendScratch = w.log.AppendRecords(w.resendScratch[:0], from)
	for _, r := range w.resendScratch {
		c.broadcastRecord(r)
	}
	if len(w.resendScratch) == 0 {
		c.broadcastRecord(w.newRecord(c, nil))
	}
	clear(w.resendScratch)
}

// recordInFlight is a record in flight to routers.
type recordInFlight struct {
	record *kvfeed.Record
	copies int // not yet arrived
}

// broadcastRecord sends a record to all routers.
func (c *cluster) broadcastRecord(r *kvfeed.Record) {
	at := c.records.takeSlot()
	p := &c.records.all[at]
	p.record, p.copies = r, 0
	for i := range c.routers {
		for _, late := range c.faults.copyDelays(c.now) {
			p.copies++
			c.queue.push(c.now.Add(c.cfg.EventDelay+late), eventRecordArrived, at, uint32(i))
		}
	}
	c.freeRecord(at)
}

// deliverRecord delivers a record to a router.
func (c *cluster) deliverRecord(at, router uint32) {
	p := &c.records.all[at]
	p.copies--
	c.routers[router].acceptRecord(c, p.record)
	c.freeRecord(at)
}

// freeRecord frees the slot of a record without copies in flight.
func (c *cluster) freeRecord(at uint32) {
	if p := &c.records.all[at]; p.copies == 0 {
		p.record = nil
		c.records.freeSlot(at)
	}
}
