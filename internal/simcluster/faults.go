package simcluster

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Faults are what goes wrong on the planes and in the processes, by the seed of the
// run. Shares are from 0 to 1. The zero value is a cluster in which nothing does.
type Faults struct {
	// Until is when faults stop; 0 is never.
	Until time.Duration

	// Of each record of cache events on its way to a router: the shares that are lost,
	// come twice, and come late, by up to MostLate, so that others overtake them.
	RecordsLost, RecordsRepeated, RecordsLate float64
	MostLate                                  time.Duration
	// ResyncsLost, LoadsLost and PingsLost are shares of the requests to describe
	// a cache, of load reports, and of pings.
	ResyncsLost, LoadsLost, PingsLost float64
	// CallsBroken is the share of calls that fail on their way, and as large a share of
	// those that were accepted, at any of their tokens.
	CallsBroken float64
	// Slow is the share of passes that take SlowBy times as long.
	Slow   float64
	SlowBy int
	// CrashEvery is the mean time for which a worker lives; 0 is for ever. It comes
	// back, in a new life and with an empty cache, after up to MostDown and
	// the time that its engine takes to start. Discovery
	// learns of a death after Lease, and of a life at once or up to MostLate later.
	CrashEvery, MostDown, Lease time.Duration
	// Leaves is the share of lives that end as planned: the worker says that it leaves, refuses
	// what is new, and after Drain ends what is left.
	Leaves float64
	Drain  time.Duration
}

func (f *Faults) ensureDefaults() {
	if f.SlowBy == 0 {
		f.SlowBy = 10
	}
	if f.Lease == 0 {
		f.Lease = 10 * time.Second
	}
	if f.Drain == 0 {
		f.Drain = 5 * time.Second
	}
	if f.MostDown == 0 {
		f.MostDown = 20 * time.Second
	}
}

const (
	// maxSlow times the longest pass is within the virtual clock.
	maxSlow = 100
	// leastLife is the shortest mean life of a worker. Time passes by the events of the
	// run: with lives of nanoseconds it would stand still.
	leastLife = time.Millisecond
)

func (f *Faults) validate() error {
	var errs []error
	for _, share := range [...]float64{f.RecordsLost, f.RecordsRepeated, f.RecordsLate, f.ResyncsLost, f.LoadsLost, f.PingsLost, f.CallsBroken, f.Slow, f.Leaves} {
		if !(share >= 0 && share <= 1) {
			errs = append(errs, fmt.Errorf("simcluster: the share %g of faults is not between 0 and 1", share))
		}
	}
	if min(f.Until, f.MostLate, f.CrashEvery, f.MostDown, f.Lease, f.Drain) < 0 || f.SlowBy < 1 || f.SlowBy > maxSlow {
		errs = append(errs, fmt.Errorf("simcluster: times of faults must not be negative, nor may slow be fast, or more than %d times as long", maxSlow))
	}
	if max(f.MostLate, f.CrashEvery, f.MostDown, f.Lease, f.Drain) > maxIdle || f.CrashEvery > 0 && f.CrashEvery < leastLife {
		errs = append(errs, fmt.Errorf("simcluster: times of faults must be at most %v, and a life at least %v: shorter ones have no end", maxIdle, leastLife))
	}
	return errors.Join(errs...)
}

// chaos draws the faults.
type chaos struct {
	Faults
	random random
	late   [2]time.Duration // scratch of copies
}

func newChaos(f Faults, seed uint64) chaos {
	return chaos{Faults: f, random: random{splitmix.Source(derive(seed, 1))}}
}

// on reports whether things go wrong now.
func (x *chaos) on(now kv.Mono) bool { return x.Until == 0 || since(now) < x.Until }

func (x *chaos) hits(now kv.Mono, share float64) bool {
	return share > 0 && x.on(now) && x.random.chance(share)
}

func (x *chaos) losesResync(now kv.Mono) bool { return x.hits(now, x.ResyncsLost) }
func (x *chaos) losesLoad(now kv.Mono) bool   { return x.hits(now, x.LoadsLost) }
func (x *chaos) losesPing(now kv.Mono) bool   { return x.hits(now, x.PingsLost) }
func (x *chaos) breaks(now kv.Mono) bool      { return x.hits(now, x.CallsBroken) }

// copies returns how late each copy of a record comes. It is valid until the next
// call.
func (x *chaos) copies(now kv.Mono) []time.Duration {
	if x.hits(now, x.RecordsLost) {
		return nil
	}
	n := 1
	if x.hits(now, x.RecordsRepeated) {
		n = 2
	}
	for i := range n {
		x.late[i] = 0
		if x.hits(now, x.RecordsLate) {
			x.late[i] = x.random.within(x.MostLate)
		}
	}
	return x.late[:n]
}

// slowed returns how long a pass takes.
func (x *chaos) slowed(now kv.Mono, d time.Duration) time.Duration {
	if x.hits(now, x.Slow) {
		return d * time.Duration(x.SlowBy)
	}
	return d
}

// begin plans the end of each worker's first life.
func (x *chaos) begin(c *cluster) {
	for i := range c.workers {
		x.doom(c, uint32(i))
	}
}

// doom plans the end of a worker's life: uniformly within twice the mean.
func (x *chaos) doom(c *cluster, worker uint32) {
	if x.CrashEvery == 0 {
		return
	}
	at := c.now.Add(x.random.within(2 * x.CrashEvery))
	switch leaves := x.random.chance(x.Leaves); {
	case !x.on(at):
	case leaves:
		c.queue.push(at, leaving, worker, 0)
	default:
		c.queue.push(at, crashed, worker, 0)
	}
}

// crash ends a life of a worker: its calls break, its cache is gone.
func (c *cluster) crash(worker uint32) {
	w := &c.workers[worker]
	c.halt(w, fault.Unavailable)
	c.queue.push(c.now.Add(c.chaos.Lease), expired, worker, uint32(w.epoch))
}

// leave begins the planned end of a worker's life.
func (c *cluster) leave(worker uint32) {
	w := &c.workers[worker]
	w.leaving, w.registered = true, false
	w.report(c)
	c.announce()
	c.queue.push(c.now.Add(c.chaos.Drain), left, worker, 0)
}

// halt ends what a worker has in work, with a code, and the worker; the next life begins
// later.
func (c *cluster) halt(w *worker, code fault.Code) {
	w.alive = false
	w.part(c)
	w.inbox, w.aborts = w.inbox[:0], w.aborts[:0]
	for i := range c.calls.all {
		cl := &c.calls.all[i]
		switch at := uint32(i); {
		case cl.worker != w.number || cl.state != inbox && cl.state != running:
		case cl.client:
			w.end(c, at, code)
		default:
			c.forget(at)
		}
	}
	down := c.chaos.random.within(c.chaos.MostDown) + c.cfg.Timing.Startup
	c.queue.push(c.now.Add(down), reborn, w.number, 0)
}

// reborn begins the next life of a worker.
func (c *cluster) reborn(worker uint32) {
	w := &c.workers[worker]
	if err := w.live(c); err != nil {
		c.defect = err
		return
	}
	w.registered, w.registeredEpoch = true, w.epoch
	c.announce()
	c.chaos.doom(c, worker)
}

// expire ends the registration of a life that is over.
func (c *cluster) expire(worker, epoch uint32) {
	w := &c.workers[worker]
	if !w.registered || uint32(w.registeredEpoch) != epoch {
		return
	}
	w.registered = false
	c.announce()
}

// announce tells each router who is registered.
func (c *cluster) announce() {
	for i := range c.routers {
		c.queue.push(c.now.Add(c.chaos.random.within(c.chaos.MostLate)), found, uint32(i), 0)
	}
}
