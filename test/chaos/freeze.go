package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/enginemock"
	"penstock/test/fleet"
)

const (
	// freezeBound bounds the time from an engine's freeze until no router has it as ready.
	freezeBound = 15 * time.Second
	// stallBound bounds the pause of a stream which stalls in the middle: the smallest stall limit, the
	// polling intervals, and the migration.
	stallBound = 20 * time.Second
)

// hangScenario is a fleet whose workers are in front of engines which hang; one of its frontends uses a
// router process.
type hangScenario struct {
	e       *testEnv
	r       *scenarioResult
	engines *mockEngines
	f       *fleet.Fleet
	mix     []fleet.KnownRequest
}

// startHangScenario starts it with two engines, which take a while for each piece of a response, and learns
// the responses.
func (e *testEnv) startHangScenario(ctx context.Context, r *scenarioResult) (h *hangScenario, err error) {
	h = &hangScenario{e: e, r: r}
	if h.engines, err = e.startEngines(ctx, 2); err != nil {
		return nil, err
	}
	h.f, err = e.startFleet(ctx, fleet.Config{
		Workers: 2, Frontends: 2, Routers: 1, Routed: 1,
		Each: func(role *fleet.Role) {
			if role.Kind == "worker" {
				role.Args = []string{"--engine", h.engines.spec[role.ID-1], "--model-path", h.engines.dir}
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, h.engines.stopAll())
	}
	// After a migration random draws start again: these engines do not know the earlier attempt.
	var mix []fleet.Request
	for _, q := range fleet.RequestMix(96, mixTokens) {
		if q.Body["temperature"] == 0 {
			mix = append(mix, q)
		}
	}
	if h.mix, err = fleet.LearnAnswers(ctx, e.client, h.f.Frontends[0].URL(), mix); err == nil {
		err = h.clearFaults(ctx)
	}
	if err != nil {
		h.endScenario()
		return nil, err
	}
	return h, nil
}

// slowTokens delays each piece of a response, so that streams last long enough to be hit.
var slowTokens = enginemock.Fault{Kind: enginemock.FaultDrip, For: enginemock.Wait(25 * time.Millisecond)}

// clearFaults removes the faults.
func (h *hangScenario) clearFaults(ctx context.Context) error {
	return errors.Join(h.engines.setFaults(ctx, 0, slowTokens), h.engines.setFaults(ctx, 1, slowTokens))
}

// endScenario stops all processes.
func (h *hangScenario) endScenario() {
	h.r.excused = "the engine does not answer"
	h.e.endFleet(h.f, h.r)
	if err := h.engines.stopAll(); err != nil {
		h.r.addProblem("the engines at the end: %v", err)
	}
}

// newLoad returns clients of all frontends.
func (h *hangScenario) newLoad() *fleet.Load {
	l := h.e.newLoad(h.f.ClientRoles()...)
	l.Mix = h.mix
	return l
}

// runFreeze freezes an engine (SIGSTOP), with and without other traffic, and resumes it.
func runFreeze(ctx context.Context, e *testEnv, r *scenarioResult) error {
	h, err := e.startHangScenario(ctx, r)
	if err != nil {
		return err
	}
	defer h.endScenario()
	var found, back fleet.Durations
	for round := range longOrShort(e, 5, 1) {
		for _, traffic := range []bool{true, false} {
			if err := h.freezeOnce(ctx, traffic, &found, &back); err != nil {
				return fmt.Errorf("round %d, other traffic %v: %w", round, traffic, err)
			}
		}
	}
	r.addDurations("freeze to not ready in every router", &found)
	r.addDurations("thaw to ready in every router", &back)
	if found.Max() > freezeBound {
		r.addProblem("a frozen engine was found after %v, more than %v", found.Max(), freezeBound)
	}
	return nil
}

// freezeOnce does so once.
func (h *hangScenario) freezeOnce(ctx context.Context, traffic bool, found, back *fleet.Durations) error {
	load := h.newLoad().StartClients(ctx, 8)
	if err := h.awaitStreams(ctx, load, 6); err != nil {
		return err
	}
	if !traffic {
		load.StopSending()
	}
	victim, engine := h.f.Workers[0], h.engines.all[0]
	if err := engine.Pause(); err != nil {
		return err
	}
	froze := time.Now()
	load.MarkWorkerDead(victim.ID, froze)
	took, err := h.awaitRouters(ctx, func(door *fleet.Role) func(context.Context) error { return workerGone(door, victim) })
	if err != nil {
		return err
	}
	found.Add(took)
	if traffic {
		load.StopSending()
	}
	tally, hit := load.WaitClients()
	if err := engine.Resume(); err != nil {
		return err
	}
	thawed := time.Now()
	h.r.requireFlawless(&tally)
	what := map[bool]string{true: "beside other traffic", false: "alone"}[traffic]
	h.r.addDurations(what+": freeze to the next token of a stream", &hit)
	h.e.logProgress("%s: found after %v, %d streams moved", what, took.Round(time.Millisecond), hit.Count())
	if hit.Count() == 0 {
		h.r.addProblem("%s: no stream was hit", what)
	}
	if err := h.f.WaitReady(ctx); err != nil {
		return err
	}
	back.Add(time.Since(thawed))
	return nil
}

// awaitStreams waits until n streams are in progress, and two of them at the first worker: routers may send all
// requests of a moment to the other one.
func (h *hangScenario) awaitStreams(ctx context.Context, load *fleet.RunningLoad, n int) error {
	_, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, func(context.Context) error {
		if _, accepted := load.InFlight(); accepted < n {
			return fmt.Errorf("%d streams are in progress, not %d", accepted, n)
		}
		if at := load.AcceptedBy(h.f.Workers[0].ID); at < 2 {
			return fmt.Errorf("%d streams are at worker %d, not 2", at, h.f.Workers[0].ID)
		}
		return nil
	})
	return err
}

// awaitRouters waits until look succeeds for every router which follows workers itself.
func (h *hangScenario) awaitRouters(ctx context.Context, look func(door *fleet.Role) func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	doors := h.f.DirectRouters()
	errs := make([]error, len(doors))
	var all sync.WaitGroup
	for i, door := range doors {
		all.Go(func() { _, errs[i] = fleet.WaitUntil(ctx, 10*time.Millisecond, returnPatience, look(door)) })
	}
	all.Wait()
	return time.Since(began), errors.Join(errs...)
}

// runStalls stalls streams of one engine, in the middle and before their first tokens, while it works
// otherwise.
func runStalls(ctx context.Context, e *testEnv, r *scenarioResult) error {
	h, err := e.startHangScenario(ctx, r)
	if err != nil {
		return err
	}
	defer h.endScenario()
	// The usual times of streams are learned from some.
	warm := h.newLoad()
	warm.Limit = longOrShort[int64](e, 60, 24)
	tally, _ := warm.StartClients(ctx, 8).WaitClients()
	r.requireFlawless(&tally)

	n := longOrShort(e, 24, 4)
	middle := enginemock.Fault{Kind: enginemock.FaultStall, After: 5, Count: n}
	first := enginemock.Fault{Kind: enginemock.FaultStall, MinTokens: 2, Count: longOrShort(e, 12, 2)} // no canary
	before := 0.0
	for _, phase := range []struct {
		name  string
		fault enginemock.Fault
		bound time.Duration
	}{{"in the middle", middle, stallBound}, {"before the first token", first, time.Minute}} {
		if err := h.engines.setFaults(ctx, 0, slowTokens, phase.fault); err != nil {
			return err
		}
		load := h.newLoad().StartClients(ctx, 8)
		_, err := fleet.WaitUntil(ctx, 100*time.Millisecond, 3*time.Minute, func(ctx context.Context) error {
			stalled, err := h.countStalled(ctx)
			if err == nil && stalled-before < float64(phase.fault.Count) {
				err = fmt.Errorf("%v of %d streams were found to have stalled %s", stalled-before, phase.fault.Count, phase.name)
			}
			return err
		})
		load.StopSending()
		tally, _ := load.WaitClients()
		if err != nil {
			return err
		}
		r.requireFlawless(&tally)
		r.addFigure("stalled "+phase.name, float64(phase.fault.Count), "")
		r.addTime(phase.name+": longest pause of any stream", max(tally.Pause.Max(), tally.First.Max()))
		e.logProgress("%s: %d streams stalled and moved", phase.name, phase.fault.Count)
		if p := max(tally.Pause.Max(), tally.First.Max()); p > phase.bound {
			r.addProblem("%s: a stream paused for %v, more than %v", phase.name, p, phase.bound)
		}
		if before, err = h.countStalled(ctx); err != nil {
			return err
		}
	}
	return h.clearFaults(ctx)
}

// countStalled is the number of stalled streams, by the workers' count.
func (h *hangScenario) countStalled(ctx context.Context) (n float64, err error) {
	for _, w := range h.f.Workers {
		m, lookErr := fleet.ReadMetrics(ctx, w.URL())
		n, err = n+m.SumOf("penstock_streams_stalled_total"), errors.Join(err, lookErr)
	}
	return n, err
}
