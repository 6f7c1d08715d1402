package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"penstock/test/fleet"
)

// cancelBound bounds the time from a client's disconnect until its blocks and reservations are free.
const cancelBound = 100 * time.Millisecond

// runCancel disconnects clients in every phase of a request, and measures how long their resources stay in
// use.
func runCancel(ctx context.Context, e *testEnv, r *scenarioResult) error {
	f, err := e.startFleet(ctx, fleet.Config{
		Workers: 1, Frontends: 1, Routers: e.routerCount(),
		WorkerArgs: []string{"--max-num-seqs", "2", "--max-num-batched-tokens", "64"},
	})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	l := cancelScenario{e: e, r: r, fleet: f, frontend: f.Frontends[0], worker: f.Workers[0]}
	times := longOrShort(e, 20, 3)
	for _, phase := range []cancelPhase{
		{"in decode", l.cancelInDecode}, {"in prefill", l.cancelInPrefill}, {"queued", l.cancelInQueue}, {"between workers", l.cancelInMigration},
	} {
		var freed fleet.Durations
		for range times {
			took, err := phase.disconnect(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", phase.name, err)
			}
			freed.Add(took)
		}
		r.addDurations("left "+phase.name+": to free blocks and slots", &freed)
		if freed.Max() > cancelBound {
			r.addProblem("what a client that left %s had held was free after %v", phase.name, freed.Max())
		}
		e.logProgress("%s: %v", phase.name, &freed)
	}
	return nil
}

// cancelPhase is the phase in which clients disconnect.
type cancelPhase struct {
	name       string
	disconnect func(context.Context) (time.Duration, error)
}

// cancelScenario is the state of that scenario.
type cancelScenario struct {
	e                *testEnv
	r                *scenarioResult
	fleet            *fleet.Fleet
	frontend, worker *fleet.Role
}

// startRequest sends one request and returns its load.
func (l *cancelScenario) startRequest(ctx context.Context, req fleet.Request) *fleet.RunningLoad {
	load := l.e.newLoad(l.frontend)
	load.Mix, load.Limit = []fleet.KnownRequest{{Request: req}}, 1
	return load.StartClients(ctx, 1)
}

// abandonUntil aborts a request and returns how long ok failed.
func (l *cancelScenario) abandonUntil(ctx context.Context, running *fleet.RunningLoad, ok func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	left := make(chan fleet.OutcomeCounts, 1)
	go func() { left <- running.AbandonStreams() }()
	_, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, ok)
	took := time.Since(began)
	tally := <-left
	l.r.addCounts(&tally)
	if tally.Left != tally.Sent {
		l.r.addProblem("requests that clients were to leave ended by themselves: %v", tally.Errors)
	}
	return took, err
}

func (l *cancelScenario) isIdle(ctx context.Context) error {
	return checkIdle(ctx, l.fleet, l.frontend)
}

// awaitPhase waits for a phase to be reached.
func (l *cancelScenario) awaitPhase(ctx context.Context, ok func(context.Context) error) error {
	_, err := fleet.WaitUntil(ctx, 2*time.Millisecond, returnPatience, ok)
	return err
}

// awaitAccepted waits until a worker has accepted the one request of a load.
func (l *cancelScenario) awaitAccepted(ctx context.Context, running *fleet.RunningLoad) error {
	return l.awaitPhase(ctx, func(context.Context) error {
		if _, n := running.InFlight(); n != 1 {
			return fmt.Errorf("the request is not accepted")
		}
		return nil
	})
}

func (l *cancelScenario) cancelInDecode(ctx context.Context) (time.Duration, error) {
	running := l.startRequest(ctx, endlessRequest(l.e, 4000))
	if err := l.awaitAccepted(ctx, running); err != nil {
		return 0, err
	}
	if err := sleepContext(ctx, time.Duration(l.e.random.IntN(100))*time.Millisecond); err != nil {
		return 0, err
	}
	return l.abandonUntil(ctx, running, l.isIdle)
}

// cancelInPrefill disconnects while a long prompt is computed: the worker has the call, and there is no token
// yet.
func (l *cancelScenario) cancelInPrefill(ctx context.Context) (time.Duration, error) {
	req := endlessRequest(l.e, 100)
	req.Body["prompt"] = strings.Repeat(fmt.Sprintf("%d litres passed gate %d. ", l.e.random.IntN(1e6), l.e.random.IntN(100)), 300)
	running := l.startRequest(ctx, req)
	err := l.awaitPhase(ctx, func(ctx context.Context) error {
		rows, err := fleet.ReadWorkers(ctx, l.frontend.URL())
		if err == nil && (len(rows) != 1 || rows[0].Load.Prefill == 0) {
			err = fmt.Errorf("nothing is in prefill")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return l.abandonUntil(ctx, running, l.isIdle)
}

// cancelInQueue disconnects while two other requests occupy the worker.
func (l *cancelScenario) cancelInQueue(ctx context.Context) (time.Duration, error) {
	blockers := []*fleet.RunningLoad{l.startRequest(ctx, endlessRequest(l.e, 7000)), l.startRequest(ctx, endlessRequest(l.e, 7000))}
	for _, b := range blockers {
		if err := l.awaitAccepted(ctx, b); err != nil {
			return 0, err
		}
	}
	running := l.startRequest(ctx, endlessRequest(l.e, 100))
	if err := l.awaitCalls(ctx, 3); err != nil {
		return 0, err
	}
	took, err := l.abandonUntil(ctx, running, func(ctx context.Context) error {
		rows, err := fleet.ReadWorkers(ctx, l.frontend.URL())
		if err != nil {
			return err
		}
		if len(rows) != 1 || rows[0].Load.Requests != 2 {
			return fmt.Errorf("the router counts it still")
		}
		return l.checkCalls(ctx, 2)
	})
	for _, b := range blockers {
		if _, err := l.abandonUntil(ctx, b, func(context.Context) error { return nil }); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return took, err
	}
	return took, l.awaitPhase(ctx, l.isIdle)
}

// awaitCalls waits until the worker serves n calls.
func (l *cancelScenario) awaitCalls(ctx context.Context, n int) error {
	return l.awaitPhase(ctx, func(ctx context.Context) error { return l.checkCalls(ctx, n) })
}

func (l *cancelScenario) checkCalls(ctx context.Context, n int) error {
	m, err := fleet.ReadMetrics(ctx, l.worker.URL())
	if have := int(m.SumOf("penstock_worker_inflight")); err == nil && have != n {
		err = fmt.Errorf("the worker serves %d calls, not %d", have, n)
	}
	return err
}

// cancelInMigration disconnects while the request waits for another worker: its own is dead.
func (l *cancelScenario) cancelInMigration(ctx context.Context) (time.Duration, error) {
	running := l.startRequest(ctx, endlessRequest(l.e, 4000))
	if err := l.awaitAccepted(ctx, running); err != nil {
		return 0, err
	}
	l.worker.Kill()
	if _, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, workerGone(l.frontend, l.worker)); err != nil {
		return 0, err
	}
	took, err := l.abandonUntil(ctx, running, func(ctx context.Context) error {
		m, err := fleet.ReadMetrics(ctx, l.frontend.URL())
		if err != nil {
			return err
		}
		if n := m.SumOf("penstock_frontend_inflight"); n != 0 {
			return fmt.Errorf("%s serves %v requests", l.frontend.Name(), n)
		}
		return checkNoRequests(ctx, l.frontend)
	})
	if err != nil {
		return took, err
	}
	if err := l.worker.Start(); err != nil {
		return took, err
	}
	return took, l.fleet.WaitReady(ctx)
}
