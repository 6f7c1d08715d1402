package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/test/fleet"
)

// runRolling restarts workers and frontends one after another, as in a rolling update: SIGTERM, wait, start.
// Clients come through a balancer, half of them with keep-alive connections. The hub is never restarted, so
// that leaks of removed processes show in it.
func runRolling(ctx context.Context, e *testEnv, r *scenarioResult) error {
	f, err := e.startFleet(ctx, fleet.Config{
		Workers: 3, Frontends: 2,
		// Short, so that calls in progress migrate instead of being waited for.
		WorkerArgs:   e.knownFlags("worker", "drain-timeout", "100ms"),
		FrontendArgs: e.knownFlags("frontend", "drain-timeout", "30s", "drain-grace", "500ms"),
	})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	b, err := e.startBalancer(f.ClientRoles())
	if err != nil {
		return err
	}
	defer b.closeAll()
	roll := rollingScenario{e: e, r: r, f: f, b: b}
	rounds := longOrShort(e, max(1, (e.runs+4)/5), 1)
	if !e.short {
		// Connections and pools have grown after a round.
		if err := roll.runRounds(ctx, 1); err != nil {
			return err
		}
	}
	before, err := roll.awaitRest(ctx, resourceCounts{})
	if err != nil {
		return err
	}
	if err := roll.runRounds(ctx, rounds); err != nil {
		return err
	}
	after, err := roll.awaitRest(ctx, before)
	if err != nil {
		return err
	}
	r.addFigure("restarts", float64(roll.restarts), "")
	r.addDurations("restart, from SIGTERM to part of the fleet", &roll.took)
	refused, lost := b.retryCounts()
	r.addFigure("connects of the balancer that went elsewhere", float64(refused), "")
	if lost > 0 {
		r.addProblem("the balancer found no server %d times", lost)
	}
	r.addNote("the hub before: %v; after %d restarts of others: %v", before, roll.restarts, after)
	if !after.isWithin(before) {
		r.addProblem("the hub keeps something of processes which left: %v, after %v", before, after)
	}
	return nil
}

func (e *testEnv) startBalancer(doors []*fleet.Role) (*connBalancer, error) {
	addr, err := e.ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, d := range doors {
		targets = append(targets, d.HTTP)
	}
	return newConnBalancer(addr, targets...)
}

// rollingScenario is the state of that scenario.
type rollingScenario struct {
	e        *testEnv
	r        *scenarioResult
	f        *fleet.Fleet
	b        *connBalancer
	restarts int
	took     fleet.Durations
}

// runRounds restarts every worker and frontend except the hub n times, under load, and demands that no
// request fails.
func (s *rollingScenario) runRounds(ctx context.Context, n int) error {
	var running []*fleet.RunningLoad
	for _, c := range []fleet.ConnectionMode{fleet.FreshConnections, fleet.KeepAlive} {
		load := s.e.newLoad()
		load.URLs = []string{"http://" + s.b.ln.Addr().String()}
		load.Client = fleet.NewClient(c)
		defer load.Client.Close()
		running = append(running, load.StartClients(ctx, 3))
	}
	err := s.restartAll(ctx, n)
	for i, load := range running {
		tally, _ := load.FinishLoad()
		s.r.requireFlawless(&tally)
		s.r.addDurations([]string{"connection per request", "connections kept"}[i]+": longest pause of any stream", &tally.Pause)
	}
	return err
}

func (s *rollingScenario) restartAll(ctx context.Context, n int) error {
	for round := range n {
		for _, role := range slices.Concat(s.f.Frontends, s.f.Workers) {
			if err := s.restartRole(ctx, role); err != nil {
				return fmt.Errorf("restart %s: %w", role.Name(), err)
			}
		}
		if (round+1)%5 == 0 {
			s.e.logProgress("%d restarts", s.restarts)
		}
	}
	return nil
}

// stopPatience bounds the time from SIGTERM to the exit of a process.
const stopPatience = 40 * time.Second

func (s *rollingScenario) restartRole(ctx context.Context, role *fleet.Role) error {
	began := time.Now()
	if err := role.Terminate(); err != nil {
		return err
	}
	end, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if err := role.Wait(end); err != nil {
		return err
	}
	if err := role.Start(); err != nil {
		return err
	}
	if err := s.f.WaitReady(ctx); err != nil {
		return err
	}
	s.restarts++
	s.took.Add(time.Since(began))
	return nil
}

// resourceCounts are the resources which a process could leak.
type resourceCounts struct {
	goroutines, descriptors, keys int
}

func (t resourceCounts) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d keys in discovery", t.goroutines, t.descriptors, t.keys)
}

// The allowed excess: connections which are about to close.
const (
	spareGoroutines  = 12
	spareDescriptors = 6
)

func (t resourceCounts) isWithin(before resourceCounts) bool {
	return t.goroutines <= before.goroutines+spareGoroutines && t.descriptors <= before.descriptors+spareDescriptors && t.keys <= before.keys
}

// The fluctuation from pings and from polling.
const (
	briefGoroutines  = 5
	briefDescriptors = 3
)

// isSimilar reports whether t equals o within the fluctuation.
func (t resourceCounts) isSimilar(o resourceCounts) bool {
	return max(t.goroutines-o.goroutines, o.goroutines-t.goroutines) <= briefGoroutines &&
		max(t.descriptors-o.descriptors, o.descriptors-t.descriptors) <= briefDescriptors && t.keys == o.keys
}

// How many similar polls in a row count as rest: before, they cover the time in which a router pings unused
// workers, for which it opens connections.
const (
	looksBefore = 30
	looksAfter  = 5
)

// restPatience bounds the wait for the hub to come to rest: idle connections are closed after two minutes.
const restPatience = 150 * time.Second

// awaitRest polls the hub until it is within before for a while; without a before until it stays constant for
// long.
func (s *rollingScenario) awaitRest(ctx context.Context, before resourceCounts) (resourceCounts, error) {
	if s.f.Hub == nil {
		return resourceCounts{}, nil
	}
	var first, last resourceCounts // of the similar polls
	calm, looks := 0, looksAfter
	if before == (resourceCounts{}) {
		looks = looksBefore
	}
	_, err := fleet.WaitUntil(ctx, 200*time.Millisecond, restPatience, func(ctx context.Context) error {
		now, err := s.readCounts(ctx)
		if err != nil {
			return err
		}
		good := now.isSimilar(first)
		if before != (resourceCounts{}) {
			good = now.isWithin(before)
		}
		if last = now; !good {
			calm, first = 0, now
			return errors.New("it changes")
		}
		if calm++; calm < looks {
			return errors.New("it has not been calm for long")
		}
		return nil
	})
	if ctx.Err() != nil {
		return last, context.Cause(ctx)
	}
	if err != nil {
		s.e.logProgress("the hub: %v: %v", last, err)
	}
	return last, nil
}

func (s *rollingScenario) readCounts(ctx context.Context) (resourceCounts, error) {
	m, err := fleet.ReadMetrics(ctx, s.f.Hub.URL())
	if err != nil {
		return resourceCounts{}, err
	}
	fds, err := fleet.CountDescriptors(s.f.Hub.PID())
	if err != nil {
		return resourceCounts{}, err
	}
	reg, err := fleet.ReadRegistry(ctx, s.f.NATS)
	return resourceCounts{int(m.SumOf("go_goroutines")), fds, reg.Keys}, err
}
