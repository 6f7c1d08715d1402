package simcluster

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Faults are injected on the planes and in the processes, by the seed of the run. Shares are from 0 to 1. The
// zero value injects none.
type Faults struct {
	// Until is when injection stops; 0 is never.
	Until time.Duration

	// Shares of the cache event records to a router which are lost, duplicated, and delayed by up to
	// MaxLateness, so that others overtake them.
	RecordsLost, RecordsRepeated, RecordsLate float64
	MostLate                                  time.Duration
	// ResyncsLost, LoadsLost and PingsLost are shares of the resync requests, of load reports, and of pings.
	ResyncsLost, LoadsLost, PingsLost float64
	// CallsBroken is the share of calls which fail in transit, and the same share of accepted calls, at any
	// of their tokens.
	CallsBroken float64
	// Slow is the share of passes which take SlowBy times as long.
	Slow   float64
	SlowBy int
	// CrashEvery is the mean lifetime of a worker; 0 is for ever. It restarts, with a new epoch and an empty
	// cache, after up to MaxDowntime plus its engine's start time. Discovery removes a dead worker after
	// Lease, and adds a new one at once or up to MaxLateness later.
	CrashEvery, MostDown, Lease time.Duration
	// DrainShare is the share of lifetimes which end in a drain: the worker reports it, refuses new calls,
	// and aborts the rest after Drain.
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
	// minLifetime is the shortest mean lifetime of a worker. Time advances by events: with lifetimes of
	// nanoseconds it would not advance.
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

// faultInjector draws the faults.
type chaos struct {
	Faults
	random random
	late   [2]time.Duration // scratch of copyDelays
}

func newChaos(f Faults, seed uint64) chaos {
	return chaos{Faults: f, random: random{splitmix.Source(derive(seed, 1))}}
}

// isActive reports whether faults are injected now.
func (x *chaos) on(now kv.Mono) bool { return x.Until == 0 || since(now) < x.Until }

func (x *chaos) hits(now kv.Mono, share float64) bool {
	return share > 0 && x.on(now) && x.random.chance(share)
}

func (x *chaos) losesResync(now kv.Mono) bool { return x.hits(now, x.ResyncsLost) }
func (x *chaos) losesLoad(now kv.Mono) bool   { return x.hits(now, x.LoadsLost) }
func (x *chaos) losesPing(now kv.Mono) bool   { return x.hits(now, x.PingsLost) }
func (x *chaos) breaks(now kv.Mono) bool      { return x.hits(now, x.CallsBroken) }

// copyDelays returns the delay of each copy of a record. It is valid until the next call.
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

// slowedTime returns the duration of a pass.
func (x *chaos) slowed(now kv.Mono, d time.Duration) time.Duration {
	if x.hits(now, x.Slow) {
		return d * time.Duration(x.SlowBy)
	}
	return d
}

// scheduleFirstEnds schedules the end of each worker's first lifetime.
func (x *chaos) begin(c *cluster) {
	for i := range c.workers {
		x.doom(c, uint32(i))
	}
}

// scheduleEnd schedules the end of a worker's lifetime: uniformly within twice the mean.
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

// crashWorker crashes a worker: its calls break, its cache is lost.
func (c *cluster) crash(worker uint32) {
	w := &c.workers[worker]
	c.halt(w, fault.Unavailable)
	c.queue.push(c.now.Add(c.chaos.Lease), expired, worker, uint32(w.epoch))
}

// drainWorker starts the planned stop of a worker.
func (c *cluster) leave(worker uint32) {
	w := &c.workers[worker]
	w.leaving, w.registered = true, false
	w.report(c)
	c.announce()
	c.queue.push(c.now.Add(c.chaos.Drain), left, worker, 0)
}

// stopWorker fails a worker's calls with a code and stops it; it restarts later.
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

// restartWorker starts the next epoch of a worker.
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

// expireLease ends the registration of an earlier epoch.
func (c *cluster) expire(worker, epoch uint32) {
	w := &c.workers[worker]
	if !w.registered || uint32(w.registeredEpoch) != epoch {
		return
	}
	w.registered = false
	c.announce()
}

// announceMembers tells each router the registered workers.
func (c *cluster) announce() {
	for i := range c.routers {
		c.queue.push(c.now.Add(c.chaos.random.within(c.chaos.MostLate)), found, uint32(i), 0)
	}
}
