package simcluster

import (
	"cmp"
	"errors"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Faults are injected on the planes and in the processes, by the seed of the run. Shares are from 0 to 1. The
// zero value injects none.
type Faults struct {
	// Until is when injection stops; 0 is never.
	Until time.Duration

	// Shares of the cache event records to a router which are lost, duplicated, and delayed by up to
	// MaxLateness, so that others overtake them.
	RecordsLost, RecordsRepeated, RecordsLate float64
	MaxLateness                               time.Duration
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
	CrashEvery, MaxDowntime, Lease time.Duration
	// DrainShare is the share of lifetimes which end in a drain: the worker reports it, refuses new calls,
	// and aborts the rest after Drain.
	DrainShare float64
	Drain      time.Duration
}

func (f *Faults) ensureDefaults() {
	f.SlowBy = cmp.Or(f.SlowBy, 10)
	f.Lease = cmp.Or(f.Lease, 10*time.Second)
	f.Drain = cmp.Or(f.Drain, 5*time.Second)
	f.MaxDowntime = cmp.Or(f.MaxDowntime, 20*time.Second)
}

const (
	// maxSlow times the longest pass is within the virtual clock.
	maxSlow = 100
	// minLifetime is the shortest mean lifetime of a worker. Time advances by events: with lifetimes of
	// nanoseconds it would not advance.
	minLifetime = time.Millisecond
)

func (f *Faults) validate() error {
	var errs []error
	for _, share := range [...]float64{f.RecordsLost, f.RecordsRepeated, f.RecordsLate, f.ResyncsLost, f.LoadsLost, f.PingsLost, f.CallsBroken, f.Slow, f.DrainShare} {
		if !(share >= 0 && share <= 1) {
			errs = append(errs, fault.New(fault.Invalid, "simcluster: the share %g of faults is not between 0 and 1", share))
		}
	}
	if min(f.Until, f.MaxLateness, f.CrashEvery, f.MaxDowntime, f.Lease, f.Drain) < 0 || f.SlowBy < 1 || f.SlowBy > maxSlow {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: times of faults must not be negative, nor may slow be fast, or more than %d times as long", maxSlow))
	}
	if max(f.MaxLateness, f.CrashEvery, f.MaxDowntime, f.Lease, f.Drain) > maxIdle || f.CrashEvery > 0 && f.CrashEvery < minLifetime {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: times of faults must be at most %v, and a life at least %v: shorter ones have no end", maxIdle, minLifetime))
	}
	return errors.Join(errs...)
}

// faultInjector draws the faults.
type faultInjector struct {
	Faults
	random   randomSource
	lateness [2]time.Duration // scratch of copyDelays
}

// isActive reports whether faults are injected now.
func (x *faultInjector) isActive(now kv.Mono) bool { return x.Until == 0 || sinceStart(now) < x.Until }

func (x *faultInjector) occurs(now kv.Mono, share float64) bool {
	return share > 0 && x.isActive(now) && x.random.drawChance(share)
}

func (x *faultInjector) losesResync(now kv.Mono) bool { return x.occurs(now, x.ResyncsLost) }
func (x *faultInjector) losesLoad(now kv.Mono) bool   { return x.occurs(now, x.LoadsLost) }
func (x *faultInjector) losesPing(now kv.Mono) bool   { return x.occurs(now, x.PingsLost) }
func (x *faultInjector) breaksCall(now kv.Mono) bool  { return x.occurs(now, x.CallsBroken) }

// copyDelays returns the delay of each copy of a record. It is valid until the next call.
func (x *faultInjector) copyDelays(now kv.Mono) []time.Duration {
	if x.occurs(now, x.RecordsLost) {
		return nil
	}
	n := 1
	if x.occurs(now, x.RecordsRepeated) {
		n = 2
	}
	for i := range n {
		x.lateness[i] = 0
		if x.occurs(now, x.RecordsLate) {
			x.lateness[i] = x.random.drawUpTo(x.MaxLateness)
		}
	}
	return x.lateness[:n]
}

// slowedTime returns the duration of a pass.
func (x *faultInjector) slowedTime(now kv.Mono, d time.Duration) time.Duration {
	if x.occurs(now, x.Slow) {
		return d * time.Duration(x.SlowBy)
	}
	return d
}

// scheduleFirstEnds schedules the end of each worker's first lifetime.
func (x *faultInjector) scheduleFirstEnds(c *cluster) {
	for i := range c.workers {
		x.scheduleEnd(c, uint32(i))
	}
}

// scheduleEnd schedules the end of a worker's lifetime: uniformly within twice the mean.
func (x *faultInjector) scheduleEnd(c *cluster, worker uint32) {
	if x.CrashEvery == 0 {
		return
	}
	at := c.now.Add(x.random.drawUpTo(2 * x.CrashEvery))
	switch leaves := x.random.drawChance(x.DrainShare); {
	case !x.isActive(at):
	case leaves:
		c.queue.push(at, eventWorkerDrain, worker, 0)
	default:
		c.queue.push(at, eventWorkerCrash, worker, 0)
	}
}

// crashWorker crashes a worker: its calls break, its cache is lost.
func (c *cluster) crashWorker(worker uint32) {
	if !c.scaling.exists(worker) {
		return
	}
	w := &c.workers[worker]
	c.stopWorker(w, fault.Unavailable)
	c.queue.push(c.now.Add(c.faults.Lease), eventLeaseExpired, worker, uint32(w.epoch))
}

// drainWorker starts the planned stop of a worker.
func (c *cluster) drainWorker(worker uint32) {
	if !c.scaling.exists(worker) {
		return
	}
	w := &c.workers[worker]
	w.draining, w.registered = true, false
	c.dropPulls(worker)
	c.forgetHolder(w.id)
	w.reportLoad(c)
	c.announceMembers()
	c.queue.push(c.now.Add(c.faults.Drain), eventWorkerStop, worker, 0)
}

// stopWorker fails a worker's calls with a code and stops it; it restarts later.
func (c *cluster) stopWorker(w *simWorker, code fault.Code) {
	c.haltWorker(w, code)
	down := c.faults.random.drawUpTo(c.faults.MaxDowntime) + c.cfg.Timing.Startup
	c.queue.push(c.now.Add(down), eventWorkerRestart, w.number, 0)
}

// haltWorker fails a worker's calls with a code and stops it.
func (c *cluster) haltWorker(w *simWorker, code fault.Code) {
	w.alive = false
	w.leavePool(c)
	w.inbox, w.aborts = w.inbox[:0], w.aborts[:0]
	for i := range c.calls.all {
		cl := &c.calls.all[i]
		if cl.worker != w.number || cl.state != callAwaitsRows && cl.state != callQueued && cl.state != callRunning {
			continue
		}
		at := uint32(i)
		if c.cancelHandoff(at); cl.clientWaits {
			w.failCall(c, at, code)
		} else {
			c.freeCall(at)
		}
	}
	c.loseJobs(w)
}

// restartWorker starts the next epoch of a worker.
func (c *cluster) restartWorker(worker uint32) {
	w := &c.workers[worker]
	if w.alive || !c.scaling.exists(worker) {
		return
	}
	if err := w.startEpoch(c); err != nil {
		c.internalError = err
		return
	}
	w.registered, w.registeredEpoch = true, w.epoch
	c.forgetHolder(w.id)
	c.announceMembers()
	c.addPulls(w, c.cfg.PrefillConcurrency)
	c.faults.scheduleEnd(c, worker)
}

// expireLease ends the registration of an earlier epoch.
func (c *cluster) expireLease(worker, epoch uint32) {
	w := &c.workers[worker]
	if !w.registered || uint32(w.registeredEpoch) != epoch {
		return
	}
	w.registered = false
	c.forgetHolder(w.id)
	c.announceMembers()
}

// announceMembers tells each router the registered workers.
func (c *cluster) announceMembers() {
	for i := range c.routers {
		c.queue.push(c.now.Add(c.faults.random.drawUpTo(c.faults.MaxLateness)), eventDiscovery, uint32(i), 0)
	}
}
