package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/mimic"
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
type hung struct {
	e       *env
	r       *result
	engines *engines
	f       *fleet.Fleet
	mix     []fleet.Known
}

// startHangScenario starts it with two engines, which take a while for each piece of a response, and learns
// the responses.
func (e *env) hang(ctx context.Context, r *result) (h *hung, err error) {
	h = &hung{e: e, r: r}
	if h.engines, err = e.startEngines(ctx, 2); err != nil {
		return nil, err
	}
	h.f, err = e.fleet(ctx, fleet.Config{
		Workers: 2, Frontends: 2, Routers: 1, Routed: 1,
		Each: func(role *fleet.Role) {
			if role.Kind == "worker" {
				role.Args = []string{"--engine", h.engines.spec[role.ID-1], "--model-path", h.engines.dir}
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, h.engines.close())
	}
	// After a migration random draws start again: these engines do not know the earlier attempt.
	var mix []fleet.Request
	for _, q := range fleet.Mix(96, mixTokens) {
		if q.Body["temperature"] == 0 {
			mix = append(mix, q)
		}
	}
	if h.mix, err = fleet.Learn(ctx, e.client, h.f.Frontends[0].URL(), mix); err == nil {
		err = h.calm(ctx)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// slowTokens delays each piece of a response, so that streams last long enough to be hit.
var drip = mimic.Fault{Kind: mimic.FaultDrip, For: mimic.Wait(25 * time.Millisecond)}

// clearFaults removes the faults.
func (h *hung) calm(ctx context.Context) error {
	return errors.Join(h.engines.set(ctx, 0, drip), h.engines.set(ctx, 1, drip))
}

// endScenario stops all processes.
func (h *hung) close() {
	h.r.excused = "the engine does not answer"
	h.e.end(h.f, h.r)
	if err := h.engines.close(); err != nil {
		h.r.problem("the engines at the end: %v", err)
	}
}

// newLoad returns clients of all frontends.
func (h *hung) load() *fleet.Load {
	l := h.e.load(h.f.Doors()...)
	l.Mix = h.mix
	return l
}

// runFreeze freezes an engine (SIGSTOP), with and without other traffic, and resumes it.
func freeze(ctx context.Context, e *env, r *result) error {
	h, err := e.hang(ctx, r)
	if err != nil {
		return err
	}
	defer h.close()
	var found, back fleet.Durations
	for round := range pick(e, 5, 1) {
		for _, traffic := range []bool{true, false} {
			if err := h.freeze(ctx, traffic, &found, &back); err != nil {
				return fmt.Errorf("round %d, other traffic %v: %w", round, traffic, err)
			}
		}
	}
	r.times("freeze to not ready in every router", &found)
	r.times("thaw to ready in every router", &back)
	if found.Max() > freezeBound {
		r.problem("a frozen engine was found after %v, more than %v", found.Max(), freezeBound)
	}
	return nil
}

// freezeOnce does so once.
func (h *hung) freeze(ctx context.Context, traffic bool, found, back *fleet.Durations) error {
	load := h.load().Start(ctx, 8)
	if err := h.underWay(ctx, load, 6); err != nil {
		return err
	}
	if !traffic {
		load.NoMore()
	}
	victim, engine := h.f.Workers[0], h.engines.all[0]
	if err := engine.Pause(); err != nil {
		return err
	}
	froze := time.Now()
	load.Dead(victim.ID, froze)
	took, err := h.everywhere(ctx, func(door *fleet.Role) func(context.Context) error { return gone(door, victim) })
	if err != nil {
		return err
	}
	found.Add(took)
	if traffic {
		load.NoMore()
	}
	tally, hit := load.Wait()
	if err := engine.Resume(); err != nil {
		return err
	}
	thawed := time.Now()
	h.r.flawless(&tally)
	what := map[bool]string{true: "beside other traffic", false: "alone"}[traffic]
	h.r.times(what+": freeze to the next token of a stream", &hit)
	h.e.say("%s: found after %v, %d streams moved", what, took.Round(time.Millisecond), hit.Count())
	if hit.Count() == 0 {
		h.r.problem("%s: no stream was hit", what)
	}
	if err := h.f.Ready(ctx); err != nil {
		return err
	}
	back.Add(time.Since(thawed))
	return nil
}

// awaitStreams waits until n streams are in progress.
func (h *hung) underWay(ctx context.Context, load *fleet.Running, n int) error {
	_, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, func(context.Context) error {
		if _, accepted := load.InFlight(); accepted < n {
			return fmt.Errorf("%d streams are under way, not %d", accepted, n)
		}
		return nil
	})
	return err
}

// awaitRouters waits until look succeeds for every router which follows workers itself.
func (h *hung) everywhere(ctx context.Context, look func(door *fleet.Role) func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	doors := h.f.Watchers()
	errs := make([]error, len(doors))
	var all sync.WaitGroup
	for i, door := range doors {
		all.Go(func() { _, errs[i] = fleet.Until(ctx, 10*time.Millisecond, returnPatience, look(door)) })
	}
	all.Wait()
	return time.Since(began), errors.Join(errs...)
}

// runStalls stalls streams of one engine, in the middle and before their first tokens, while it works
// otherwise.
func stalls(ctx context.Context, e *env, r *result) error {
	h, err := e.hang(ctx, r)
	if err != nil {
		return err
	}
	defer h.close()
	// The usual times of streams are learned from some.
	warm := h.load()
	warm.Limit = pick[int64](e, 60, 24)
	tally, _ := warm.Start(ctx, 8).Wait()
	r.flawless(&tally)

	n := pick(e, 24, 4)
	middle := mimic.Fault{Kind: mimic.FaultStall, After: 5, Count: n}
	first := mimic.Fault{Kind: mimic.FaultStall, Count: pick(e, 12, 2)}
	before := 0.0
	for _, phase := range []struct {
		name  string
		fault mimic.Fault
		bound time.Duration
	}{{"in the middle", middle, stallBound}, {"before the first token", first, time.Minute}} {
		if err := h.engines.set(ctx, 0, drip, phase.fault); err != nil {
			return err
		}
		load := h.load().Start(ctx, 8)
		_, err := fleet.Until(ctx, 100*time.Millisecond, 3*time.Minute, func(ctx context.Context) error {
			stalled, err := h.stalled(ctx)
			if err == nil && stalled-before < float64(phase.fault.Count) {
				err = fmt.Errorf("%v of %d streams were found to have stalled %s", stalled-before, phase.fault.Count, phase.name)
			}
			return err
		})
		load.NoMore()
		tally, _ := load.Wait()
		if err != nil {
			return err
		}
		r.flawless(&tally)
		r.figure("stalled "+phase.name, float64(phase.fault.Count), "")
		r.time(phase.name+": longest pause of any stream", max(tally.Pause.Max(), tally.First.Max()))
		e.say("%s: %d streams stalled and moved", phase.name, phase.fault.Count)
		if p := max(tally.Pause.Max(), tally.First.Max()); p > phase.bound {
			r.problem("%s: a stream paused for %v, more than %v", phase.name, p, phase.bound)
		}
		if before, err = h.stalled(ctx); err != nil {
			return err
		}
	}
	return h.calm(ctx)
}

// countStalled is the number of stalled streams, by the workers' count.
func (h *hung) stalled(ctx context.Context) (n float64, err error) {
	for _, w := range h.f.Workers {
		m, lookErr := fleet.Look(ctx, w.URL())
		n, err = n+m.Sum("penstock_streams_stalled_total"), errors.Join(err, lookErr)
	}
	return n, err
}
