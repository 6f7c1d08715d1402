package simcluster

import (
	"penstock/core/activeseq"
	"penstock/core/activeseq/replica"
	"penstock/core/kv"
)

// routerSync is a router's part of the exchange of reservations between routers.
type routerSync struct {
	replica       *replica.Replica // nil without sync
	syncScheduled bool             // a check for due messages is scheduled at syncAt, with number syncSeq
	syncAt        kv.Mono
	syncSeq       uint32
	out           [][]byte
}

// syncMessage is a message in flight between routers.
type syncMessage struct {
	data   []byte
	copies int // not yet arrived
}

// openSync joins a router to the exchange.
func (r *simRouter) openSync() (err error) {
	r.replica, err = replica.New(replica.Config{Router: uint64(r.number) + 1}, r)
	return err
}

// TableOf implements replica.Tables.
func (r *simRouter) TableOf(w kv.Worker) *activeseq.ReservationTable {
	if w.ID == 0 || int(w.ID) > len(r.members) || !r.members[w.ID-1].known {
		return nil
	}
	return r.active
}

// scheduleSync schedules the router's next check for due messages.
func (r *simRouter) scheduleSync(c *cluster) {
	if r.replica == nil {
		return
	}
	at := max(c.now, r.replica.Deadline())
	if r.syncScheduled && r.syncAt <= at {
		return
	}
	r.syncScheduled, r.syncAt = true, at
	r.syncSeq++
	c.queue.push(at, eventSyncDue, r.number, r.syncSeq)
}

// sendSync sends the due messages to all routers, including itself, as planes do.
func (r *simRouter) sendSync(c *cluster, number uint32) {
	if number != r.syncSeq {
		return // an earlier check was scheduled
	}
	r.syncScheduled = false
	r.out = r.replica.Tick(c.now, r.out[:0])
	for _, data := range r.out {
		at := c.syncMessages.takeSlot()
		l := &c.syncMessages.all[at]
		l.data, l.copies = data, 0
		for i := range c.routers {
			for _, late := range c.faults.copyDelays(c.now) {
				l.copies++
				c.queue.push(c.now.Add(c.cfg.EventDelay+late), eventSyncArrived, at, uint32(i))
			}
		}
		c.freeSyncMessage(at)
	}
	r.scheduleSync(c)
}

// receiveSync handles a message of a router.
func (r *simRouter) receiveSync(c *cluster, at uint32) {
	l := &c.syncMessages.all[at]
	l.copies--
	if err := r.replica.HandleMessage(c.now, l.data); err != nil {
		c.internalError = err
	}
	r.active.MarkPublished(c.now, r.replica.EchoedNumber())
	r.scheduleAdmission(c)
	c.freeSyncMessage(at)
	r.scheduleSync(c)
}

// freeSyncMessage frees the slot of a message without copies in flight.
func (c *cluster) freeSyncMessage(at uint32) {
	if l := &c.syncMessages.all[at]; l.copies == 0 {
		l.data = nil
		c.syncMessages.freeSlot(at)
	}
}

// advanceReplica advances the replica's clock, before the router's reservations change.
func (r *simRouter) advanceReplica(now kv.Mono) {
	if r.replica != nil {
		r.replica.AdvanceTime(now)
	}
}

// reservationJournal returns the journal of the router's reservations; nil without sync.
func (r *simRouter) reservationJournal() activeseq.Journal {
	if r.replica == nil {
		return nil
	}
	return r.replica
}
