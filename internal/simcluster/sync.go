package simcluster

import (
	"penstock/core/kv"
	"penstock/core/slots"
	"penstock/core/slots/replica"
)

// exchange is a router's part in what routers tell each other of their requests.
type exchange struct {
	replica *replica.Replica // nil without
	says    bool             // it will look, at say, for what is due: the look of number saying
	say     kv.Mono
	saying  uint32
	out     [][]byte
}

// letter is a message on its way from router to router.
type letter struct {
	data   []byte
	copies int // that have not arrived
}

// openExchange lets a router take part.
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

// tell has the router look for what it has to tell others, when it is due.
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

// speak sends what is due to all routers, itself included, as planes do.
func (r *router) speak(c *cluster, number uint32) {
	if number != r.saying {
		return // there was an earlier look
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

// hear takes a message of a router.
func (r *router) hear(c *cluster, at uint32) {
	l := &c.letters.all[at]
	l.copies--
	if err := r.replica.Accept(c.now, l.data); err != nil {
		c.defect = err
	}
	c.file(at)
	r.tell(c)
}

// file makes the place of a letter vacant if no copies are on their way.
func (c *cluster) file(at uint32) {
	if l := &c.letters.all[at]; l.copies == 0 {
		l.data = nil
		c.letters.give(at)
	}
}

// ticks tells the router's part the time, before its reservations change.
func (r *router) ticks(now kv.Mono) {
	if r.replica != nil {
		r.replica.Advance(now)
	}
}

// journal is told of the router's reservations; nil if nobody is.
func (r *router) journal() slots.Journal {
	if r.replica == nil {
		return nil
	}
	return r.replica
}
