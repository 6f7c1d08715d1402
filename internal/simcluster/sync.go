package simcluster

import (
	"penstock/core/kv"
	"penstock/core/slots"
	"penstock/core/slots/replica"
)

// routerSync is a router's part of the exchange of reservations between routers.
type exchange struct {
	replica *replica.Replica // nil without sync
	says    bool             // a check for due messages is scheduled at syncAt, with number syncSeq
	say     kv.Mono
	saying  uint32
	out     [][]byte
}

// syncMessage is a message in flight between routers.
type letter struct {
	data   []byte
	copies int // not yet arrived
}

// openSync joins a router to the exchange.
func (r *router) openExchange() (err error) {
	r.replica, err = replica.New(replica.Config{Router: uint64(r.number) + 1}, r)
	return err
}

// Table implements replica.Tables.
func (r *router) Table(w kv.Worker) *slots.Table {
	if w.ID == 0 || int(w.ID) > len(r.members) || !r.members[w.ID-1].known {
		return nil
	}
	return r.active
}

// scheduleSync schedules the router's next check for due messages.
func (r *router) tell(c *cluster) {
	if r.replica == nil {
		return
	}
	at := max(c.now, r.replica.Next())
	if r.says && r.say <= at {
		return
	}
	r.says, r.say = true, at
	r.saying++
	c.queue.push(at, told, r.number, r.saying)
}

// sendSync sends the due messages to all routers, including itself, as planes do.
func (r *router) speak(c *cluster, number uint32) {
	if number != r.saying {
		return // an earlier check was scheduled
	}
	r.says = false
	r.out = r.replica.Step(c.now, r.out[:0])
	for _, data := range r.out {
		at := c.letters.take()
		l := &c.letters.all[at]
		l.data, l.copies = data, 0
		for i := range c.routers {
			for _, late := range c.chaos.copies(c.now) {
				l.copies++
				c.queue.push(c.now.Add(c.cfg.EventDelay+late), heard, at, uint32(i))
			}
		}
		c.file(at)
	}
	r.tell(c)
}

// receiveSync handles a message of a router.
func (r *router) hear(c *cluster, at uint32) {
	l := &c.letters.all[at]
	l.copies--
	if err := r.replica.Accept(c.now, l.data); err != nil {
		c.defect = err
	}
	c.file(at)
	r.tell(c)
}

// freeSyncMessage frees the slot of a message without copies in flight.
func (c *cluster) file(at uint32) {
	if l := &c.letters.all[at]; l.copies == 0 {
		l.data = nil
		c.letters.give(at)
	}
}

// advanceReplica advances the replica's clock, before the router's reservations change.
func (r *router) ticks(now kv.Mono) {
	if r.replica != nil {
		r.replica.Advance(now)
	}
}

// reservationJournal returns the journal of the router's reservations; nil without sync.
func (r *router) journal() slots.Journal {
	if r.replica == nil {
		return nil
	}
	return r.replica
}
