package main

import (
	"context"
	"fmt"
	"time"

	"penstock/test/fleet"
)

// runNATSAway takes the NATS server away under load for longer than leases last: first it dies, then it is
// paused.
func runNATSAway(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	away := longOrShort(e, 5*fleet.Lease, 12*time.Second)
	died := natsAbsence{e, r, f, "NATS dead", away, func() error { f.Store.Kill(); return nil }, f.Store.Start}
	if err := died.runAbsence(ctx); err != nil || e.short {
		return err
	}
	paused := natsAbsence{e, r, f, "NATS paused", away, f.Store.Pause, f.Store.Resume}
	return paused.runAbsence(ctx)
}

// natsAbsence is a time without NATS.
type natsAbsence struct {
	e                   *testEnv
	r                   *scenarioResult
	f                   *fleet.Fleet
	what                string
	away                time.Duration
	takeAway, bringBack func() error
}

func (a natsAbsence) runAbsence(ctx context.Context) error {
	before, err := fleet.ReadRegistry(ctx, a.f.NATS)
	if err != nil {
		return err
	}
	load := a.e.newLoad(a.f.Frontends...).StartClients(ctx, 6) // the hub has none: it is what dies
	defer load.AbandonStreams()
	if err := sleepContext(ctx, 2*time.Second); err != nil {
		return err
	}
	a.e.logProgress("%s for %v", a.what, a.away)
	if err := a.takeAway(); err != nil {
		return err
	}
	if err := sleepContext(ctx, a.away); err != nil {
		return err
	}
	during := load.CountsSoFar()
	a.e.logProgress("%d answers meanwhile, %d failures", during.Right, during.Failed)
	if err := a.bringBack(); err != nil {
		return err
	}
	if err := a.awaitRegistered(ctx, before); err != nil {
		return err
	}
	if err := sleepContext(ctx, 2*time.Second); err != nil {
		return err
	}
	tally, _ := load.FinishLoad()
	a.r.requireFlawless(&tally)
	a.r.addDurations(a.what+": longest pause of any stream", &tally.Pause)
	return a.checkEventsFlow(ctx)
}

// awaitRegistered waits until every worker is registered again, with its id, and confirmed in every router. A
// worker which survived the absence keeps its epoch, that of its process and its cache; the epoch of another
// holder is higher.
func (a natsAbsence) awaitRegistered(ctx context.Context, before fleet.Registry) error {
	took, err := fleet.WaitUntil(ctx, 50*time.Millisecond, returnPatience, func(ctx context.Context) error {
		now, err := fleet.ReadRegistry(ctx, a.f.NATS)
		if err != nil {
			return err
		}
		for _, w := range a.f.Workers {
			in, there := now.Workers[w.ID]
			old := before.Workers[w.ID]
			switch {
			case !there:
				return fmt.Errorf("worker %d is not registered", w.ID)
			case in.Epoch < old.Epoch || in.Epoch == old.Epoch && in.Holder != old.Holder:
				return fmt.Errorf("worker %d is registered by %s in epoch %d, before by %s in epoch %d", w.ID, in.Holder, in.Epoch, old.Holder, old.Epoch)
			}
		}
		for _, door := range a.f.Frontends {
			if err := a.f.CheckSees(ctx, door, a.f.Workers...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.r.addTime(a.what+": return to all confirmed", took)
	return nil
}

// checkEventsFlow checks that every router's index equals the workers' caches, with new blocks among them.
func (a natsAbsence) checkEventsFlow(ctx context.Context) error {
	events, err := lastEvents(ctx, a.f)
	if err != nil {
		return err
	}
	load := a.e.newLoad(a.f.Frontends...)
	load.Fresh = 1
	load.Limit = 24
	tally, _ := load.StartClients(ctx, 6).WaitClients()
	a.r.requireFlawless(&tally)
	took, err := fleet.WaitUntil(ctx, 20*time.Millisecond, returnPatience, func(ctx context.Context) error {
		now, err := lastEvents(ctx, a.f)
		if err != nil {
			return err
		}
		moved := false
		for at, seq := range now {
			moved = moved || seq > events[at]
		}
		if !moved {
			return fmt.Errorf("no cache event arrives")
		}
		return checkIndex(ctx, a.f)
	})
	if err != nil {
		return err
	}
	a.r.addTime(a.what+": index equals the caches after the load, within", took)
	return nil
}

// workerInRouter is a worker in a router.
type workerInRouter struct {
	door   string
	worker uint64
}

// lastEvents returns the number of the last cache event of every worker in every router which serves clients.
func lastEvents(ctx context.Context, f *fleet.Fleet) (map[workerInRouter]uint64, error) {
	last := map[workerInRouter]uint64{}
	for _, door := range f.Frontends {
		rows, err := fleet.ReadWorkers(ctx, door.URL())
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			last[workerInRouter{door.Name(), row.ID}] = row.Feed.LastSeq
		}
	}
	return last, nil
}

// checkIndex returns nil if every router counts as many blocks for every worker as that worker reports.
func checkIndex(ctx context.Context, f *fleet.Fleet) error {
	for _, w := range f.Workers {
		m, err := fleet.ReadMetrics(ctx, w.URL())
		if err != nil {
			return err
		}
		held := int(m.SumOf("penstock_worker_load", `quantity="cached_blocks"`))
		for _, door := range f.Frontends {
			rows, err := fleet.ReadWorkers(ctx, door.URL())
			if err != nil {
				return err
			}
			for _, row := range rows {
				switch {
				case row.ID != w.ID:
				case row.Feed.State != "live":
					return fmt.Errorf("%s: the feed of worker %d is %s", door.Name(), w.ID, row.Feed.State)
				case row.Cached != held:
					return fmt.Errorf("%s believes worker %d to hold %d blocks, it holds %d", door.Name(), w.ID, row.Cached, held)
				}
			}
		}
	}
	return nil
}
