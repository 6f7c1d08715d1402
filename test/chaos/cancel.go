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
func cancelled(ctx context.Context, e *env, r *result) error {
	f, err := e.fleet(ctx, fleet.Config{
		Workers: 1, Frontends: 1, Routers: e.routers(),
		WorkerArgs: []string{"--max-num-seqs", "2", "--max-num-batched-tokens", "64"},
	})
	if err != nil {
		return err
	}
	defer e.end(f, r)
	l := leaving{e: e, r: r, f: f, door: f.Frontends[0], worker: f.Workers[0]}
	times := pick(e, 20, 3)
	for _, phase := range []phase{
		{"in decode", l.decode}, {"in prefill", l.prefill}, {"queued", l.queued}, {"between workers", l.moving},
	} {
		var freed fleet.Durations
		for range times {
			took, err := phase.leave(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", phase.name, err)
			}
			freed.Add(took)
		}
		r.times("left "+phase.name+": to free blocks and slots", &freed)
		if freed.Max() > cancelBound {
			r.problem("what a client that left %s had held was free after %v", phase.name, freed.Max())
		}
		e.say("%s: %v", phase.name, &freed)
	}
	return nil
}

// cancelPhase is the phase in which clients disconnect.
type phase struct {
	name  string
	leave func(context.Context) (time.Duration, error)
}

// cancelScenario is the state of that scenario.
type leaving struct {
	e            *env
	r            *result
	f            *fleet.Fleet
	door, worker *fleet.Role
}

// startRequest sends one request and returns its load.
func (l *leaving) start(ctx context.Context, req fleet.Request) *fleet.Running {
	load := l.e.load(l.door)
	load.Mix, load.Limit = []fleet.Known{{Request: req}}, 1
	return load.Start(ctx, 1)
}

// abandonUntil aborts a request and returns how long ok failed.
func (l *leaving) leave(ctx context.Context, running *fleet.Running, ok func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	left := make(chan fleet.Tally, 1)
	go func() { left <- running.Abandon() }()
	_, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, ok)
	took := time.Since(began)
	tally := <-left
	l.r.count(&tally)
	if tally.Left != tally.Sent {
		l.r.problem("requests that clients were to leave ended by themselves: %v", tally.Errors)
	}
	return took, err
}

func (l *leaving) idle(ctx context.Context) error { return idle(ctx, l.f, l.door) }

// awaitPhase waits for a phase to be reached.
func (l *leaving) until(ctx context.Context, ok func(context.Context) error) error {
	_, err := fleet.Until(ctx, 2*time.Millisecond, returnPatience, ok)
	return err
}

// awaitAccepted waits until a worker has accepted the one request of a load.
func (l *leaving) accepted(ctx context.Context, running *fleet.Running) error {
	return l.until(ctx, func(context.Context) error {
		if _, n := running.InFlight(); n != 1 {
			return fmt.Errorf("the request is not accepted")
		}
		return nil
	})
}

func (l *leaving) decode(ctx context.Context) (time.Duration, error) {
	running := l.start(ctx, endless(l.e, 4000))
	if err := l.accepted(ctx, running); err != nil {
		return 0, err
	}
	if err := pause(ctx, time.Duration(l.e.random.IntN(100))*time.Millisecond); err != nil {
		return 0, err
	}
	return l.leave(ctx, running, l.idle)
}

// cancelInPrefill disconnects while a long prompt is computed: the worker has the call, and there is no token
// yet.
func (l *leaving) prefill(ctx context.Context) (time.Duration, error) {
	req := endless(l.e, 100)
	req.Body["prompt"] = strings.Repeat(fmt.Sprintf("%d litres passed gate %d. ", l.e.random.IntN(1e6), l.e.random.IntN(100)), 300)
	running := l.start(ctx, req)
	err := l.until(ctx, func(ctx context.Context) error {
		rows, err := fleet.Workers(ctx, l.door.URL())
		if err == nil && (len(rows) != 1 || rows[0].Load.Prefill == 0) {
			err = fmt.Errorf("nothing is in prefill")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return l.leave(ctx, running, l.idle)
}

// cancelInQueue disconnects while two other requests occupy the worker.
func (l *leaving) queued(ctx context.Context) (time.Duration, error) {
	blockers := []*fleet.Running{l.start(ctx, endless(l.e, 7000)), l.start(ctx, endless(l.e, 7000))}
	for _, b := range blockers {
		if err := l.accepted(ctx, b); err != nil {
			return 0, err
		}
	}
	running := l.start(ctx, endless(l.e, 100))
	if err := l.calls(ctx, 3); err != nil {
		return 0, err
	}
	took, err := l.leave(ctx, running, func(ctx context.Context) error {
		rows, err := fleet.Workers(ctx, l.door.URL())
		if err != nil {
			return err
		}
		if len(rows) != 1 || rows[0].Load.Requests != 2 {
			return fmt.Errorf("the router counts it still")
		}
		return l.serves(ctx, 2)
	})
	for _, b := range blockers {
		if _, err := l.leave(ctx, b, func(context.Context) error { return nil }); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return took, err
	}
	return took, l.until(ctx, l.idle)
}

// awaitCalls waits until the worker serves n calls.
func (l *leaving) calls(ctx context.Context, n int) error {
	return l.until(ctx, func(ctx context.Context) error { return l.serves(ctx, n) })
}

func (l *leaving) serves(ctx context.Context, n int) error {
	m, err := fleet.Look(ctx, l.worker.URL())
	if have := int(m.Sum("penstock_worker_inflight")); err == nil && have != n {
		err = fmt.Errorf("the worker serves %d calls, not %d", have, n)
	}
	return err
}

// cancelInMigration disconnects while the request waits for another worker: its own is dead.
func (l *leaving) moving(ctx context.Context) (time.Duration, error) {
	running := l.start(ctx, endless(l.e, 4000))
	if err := l.accepted(ctx, running); err != nil {
		return 0, err
	}
	l.worker.Kill()
	if _, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, gone(l.door, l.worker)); err != nil {
		return 0, err
	}
	took, err := l.leave(ctx, running, func(ctx context.Context) error {
		m, err := fleet.Look(ctx, l.door.URL())
		if err != nil {
			return err
		}
		if n := m.Sum("penstock_frontend_inflight"); n != 0 {
			return fmt.Errorf("%s serves %v requests", l.door.Name(), n)
		}
		return noSlots(ctx, l.door)
	})
	if err != nil {
		return took, err
	}
	if err := l.worker.Start(); err != nil {
		return took, err
	}
	return took, l.f.Ready(ctx)
}
