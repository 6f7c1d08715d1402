package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/test/fleet"
)

const (
	// deathPatience bounds how long a dead worker may count as ready after the first failure: it is the
	// product's promise.
	deathPatience = 2 * time.Second
	// resumeBound bounds the time from a worker's death to the next token of its streams, for 99 of 100.
	resumeBound = time.Second
	// returnPatience bounds the time for a recovery.
	returnPatience = 60 * time.Second
)

// runKill repeatedly kills a worker at a random token of one stream, while others are served, and restarts
// it.
func runKill(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	var err error
	k := killScenario{e: e, f: f, load: e.newLoad(f.ClientRoles()...).StartClients(ctx, 6), failures: map[*fleet.Role]float64{}}
	runs := longOrShort(e, e.runs, min(e.runs, 6))
	for tries := 0; k.deaths < runs && tries < 3*runs && err == nil; tries++ { // some streams end before the token
		before := k.deaths
		err = k.killOnce(ctx)
		if k.deaths > before && k.deaths%20 == 0 {
			_, accepted := k.load.InFlight()
			e.logProgress("%d deaths, %d streams in progress", k.deaths, accepted)
		}
	}
	tally, held := k.load.FinishLoad()
	r.requireFlawless(&tally)
	r.addFigure("deaths", float64(k.deaths), "")
	r.addDurations("death to the next token of a stream", &held)
	r.addDurations("death to quarantine in a router", &k.noticed)
	r.addDurations("first failed call or ping of a router to its quarantine", &k.reacted)
	r.addDurations("restart to ready in every router", &k.back)
	r.addDurations("longest pause of any stream", &tally.Pause)
	switch {
	case err != nil:
		return err
	case k.deaths < runs:
		r.addProblem("%d deaths, not %d: too many streams ended before their token came", k.deaths, runs)
	case held.Count() == 0:
		r.addProblem("no stream was hit by %d deaths", k.deaths)
	case held.Percentile(99) > resumeBound:
		r.addProblem("the p99 from a death to the next token is %v, more than %v", held.Percentile(99), resumeBound)
	}
	if k.reacted.Max() > deathPatience {
		r.addProblem("a dead worker counted as ready for %v after a call or a ping to it had failed", k.reacted.Max())
	}
	return nil
}

// killScenario is the state of that scenario.
type killScenario struct {
	e             *testEnv
	f             *fleet.Fleet
	load          *fleet.RunningLoad
	deaths        int
	failures      map[*fleet.Role]float64 // of each router, before the next death
	noticed, back fleet.Durations
	reacted       fleet.Durations
}

// killTrigger is an observer which kills a worker at the nth text.
type killTrigger struct {
	fleet.Observer
	at     int
	worker uint64
	strike func(worker uint64)
}

// OnAccepted implements fleet.Observer.
func (t *killTrigger) OnAccepted(worker uint64) {
	t.worker = worker
	t.Observer.OnAccepted(worker)
}

// OnText implements fleet.Observer.
func (t *killTrigger) OnText(n int, at time.Time) {
	t.Observer.OnText(n, at)
	if n == t.at {
		t.strike(t.worker)
	}
}

// killOnce kills a worker in the middle of a stream, and restarts it.
func (k *killScenario) killOnce(ctx context.Context) error {
	e := k.e
	known := &e.mix[e.random.IntN(len(e.mix))]
	doors := k.f.ClientRoles()
	door := doors[e.random.IntN(len(doors))]
	elsewhere := e.random.IntN(4) == 0 // sometimes another worker than the stream's
	other := k.f.Workers[e.random.IntN(len(k.f.Workers))]

	watch, done := k.load.ObserveStream()
	var victim *fleet.Role
	var died time.Time
	var strike sync.WaitGroup
	strikes := func(worker uint64) {
		victim = other
		if !elsewhere && !door.Routed { // its worker is a router
			victim = k.f.Workers[worker-1]
		}
		died = time.Now()
		k.load.MarkWorkerDead(victim.ID, died)
		strike.Go(victim.Kill) // the stream is read meanwhile
	}
	// There are fewer texts than tokens: some streams end before the trigger.
	o := e.client.Stream(ctx, door.URL(), known.Request, &killTrigger{Observer: watch, at: 1 + e.random.IntN(max(1, known.Want.Output*3/4)), strike: strikes})
	done(&o, known)
	strike.Wait()
	if victim == nil {
		return ctx.Err()
	}
	k.deaths++
	return k.restartWorker(ctx, victim, died)
}

// restartWorker restarts a dead worker when every router has noticed, and waits until it is part of the
// fleet.
func (k *killScenario) restartWorker(ctx context.Context, victim *fleet.Role, died time.Time) error {
	if err := k.awaitNoticed(ctx, victim, died); err != nil {
		return err
	}
	began := time.Now()
	if err := victim.Start(); err != nil {
		return err
	}
	if err := k.f.WaitReady(ctx); err != nil {
		return err
	}
	k.back.Add(time.Since(began))
	for _, door := range k.f.DirectRouters() {
		n, err := countFailures(ctx, door)
		if err != nil {
			return err
		}
		k.failures[door] = n
	}
	return nil
}

// awaitNoticed returns when no router counts a dead worker as ready. A router without a request for it, and
// without a due ping, has nothing to notice for a while: its time counts from its first failure.
func (k *killScenario) awaitNoticed(ctx context.Context, victim *fleet.Role, died time.Time) error {
	doors := k.f.DirectRouters()
	first, last, errs := make([]time.Time, len(doors)), make([]time.Time, len(doors)), make([]error, len(doors))
	var watches sync.WaitGroup
	for i, door := range doors {
		watches.Go(func() {
			isGone := workerGone(door, victim)
			_, errs[i] = fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, func(ctx context.Context) error {
				if first[i].IsZero() {
					n, err := countFailures(ctx, door)
					if err != nil {
						return err
					}
					if n > k.failures[door] {
						first[i] = time.Now()
					}
				}
				err := isGone(ctx)
				last[i] = time.Now()
				return err
			})
		})
	}
	watches.Wait()
	for i := range doors {
		k.noticed.Add(last[i].Sub(died))
		if first[i].IsZero() {
			first[i] = last[i] // between two polls
		}
		k.reacted.Add(last[i].Sub(first[i]))
	}
	return errors.Join(errs...)
}

// countFailures is the number of failed calls and pings of a router.
func countFailures(ctx context.Context, door *fleet.Role) (float64, error) {
	m, err := fleet.ReadMetrics(ctx, door.URL())
	return m.SumOf("penstock_router_failed_calls_total", `code="unavailable"`) + m.SumOf("penstock_router_pings_total", `outcome="failed"`), err
}

// workerGone returns nil when a router does not count a worker as ready.
func workerGone(door, worker *fleet.Role) func(context.Context) error {
	return func(ctx context.Context) error {
		rows, err := fleet.ReadWorkers(ctx, door.URL())
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.ID == worker.ID && (row.State == "ready" || row.State == "unconfirmed") {
				return fmt.Errorf("%s has %s as %s", door.Name(), worker.Name(), row.State)
			}
		}
		return nil
	}
}
