package plan

import (
	"time"

	"penstock/core/kv"
)

// fakeWorker is a worker of a connector.
type fakeWorker struct {
	role    int
	ready   kv.Mono // when it is, or was
	placed  bool    // on a machine
	drains  bool
	gone    kv.Mono // when it has drained
	neverUp bool
}

// fakeConnector carries out orders: it starts and drains workers on a number of accelerators.
type fakeConnector struct {
	roles        []RoleConfig
	accelerators int // 0 for no bound
	start, drain time.Duration
	// refuses says that it reports workers without a machine as refused, and not as starting. broken workers never get
	// ready.
	refuses, broken bool
	workers         []fakeWorker
	refused         []int
	most            int // accelerators which were occupied at once
}

// used returns the occupied accelerators.
func (c *fakeConnector) used() int {
	n := 0
	for _, w := range c.workers {
		if w.placed {
			n += c.roles[w.role].Accelerators
		}
	}
	return n
}

// advance lets workers get ready and go until now, and places waiting ones.
func (c *fakeConnector) advance(now kv.Mono) {
	left := c.workers[:0]
	for _, w := range c.workers {
		if !w.drains || now < w.gone {
			left = append(left, w)
		}
	}
	c.workers = left
	for i := range c.workers {
		if w := &c.workers[i]; !w.placed && c.hasRoom(w.role) {
			w.placed, w.ready = true, now.Add(c.start)
		}
	}
	c.most = max(c.most, c.used())
}

func (c *fakeConnector) hasRoom(role int) bool {
	return c.accelerators == 0 || c.used()+c.roles[role].Accelerators <= c.accelerators
}

// obey starts and drains workers until an order of a role holds. Workers which are not ready go first.
func (c *fakeConnector) obey(now kv.Mono, role, order int) {
	existing := 0
	for _, w := range c.workers {
		if w.role == role && !w.drains {
			existing++
		}
	}
	if c.refused == nil {
		c.refused = make([]int, len(c.roles))
	}
	c.refused[role] = 0
	for ; existing < order; existing++ {
		w := fakeWorker{role: role, placed: c.hasRoom(role), ready: now.Add(c.start), neverUp: c.broken}
		if !w.placed && c.refuses {
			c.refused[role]++
			continue
		}
		c.workers = append(c.workers, w)
		c.most = max(c.most, c.used())
	}
	for ; existing > order; existing-- {
		victim := -1
		for i, w := range c.workers {
			if w.role == role && !w.drains && (victim < 0 || c.worth(now, w) <= c.worth(now, c.workers[victim])) {
				victim = i
			}
		}
		w := &c.workers[victim]
		w.drains, w.gone = true, now.Add(c.drain)
		if c.worth(now, *w) < 2 {
			w.gone = now
		}
	}
	c.advance(now)
}

// worth orders workers: without a machine, starting, ready.
func (c *fakeConnector) worth(now kv.Mono, w fakeWorker) int {
	switch {
	case !w.placed:
		return 0
	case w.neverUp || now < w.ready:
		return 1
	}
	return 2
}

// fleet returns what a planner is told.
func (c *fakeConnector) fleet(now kv.Mono) []RoleFleet {
	out := make([]RoleFleet, len(c.roles))
	for _, w := range c.workers {
		switch f := &out[w.role]; {
		case w.drains:
			f.Draining++
		case c.worth(now, w) == 2:
			f.Ready++
		default:
			f.Starting++
		}
	}
	for i := range c.refused {
		out[i].Refused = c.refused[i]
	}
	return out
}

// crash removes ready workers of a role.
func (c *fakeConnector) crash(now kv.Mono, role, n int) {
	left := c.workers[:0]
	for _, w := range c.workers {
		if n > 0 && w.role == role && !w.drains && c.worth(now, w) == 2 {
			n--
			continue
		}
		left = append(left, w)
	}
	c.workers = left
}
