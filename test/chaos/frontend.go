package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/test/fleet"
)

// freedBound bounds the time in which the resources of a dead frontend are freed.
const freedBound = 2 * time.Second

// runFrontendKill kills a frontend with streams in progress: its own end, other frontends' continue, and the
// workers free the resources of the dead one.
func runFrontendKill(ctx context.Context, e *testEnv, r *scenarioResult) error {
	f, err := e.startFleet(ctx, fleet.Config{Workers: 2, Frontends: 2, Routers: e.routerCount()})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	var freed fleet.Durations
	for range longOrShort(e, 10, 2) {
		if err := killOneFrontend(ctx, e, r, f, &freed); err != nil {
			return err
		}
	}
	r.addDurations("death of a frontend to free blocks and calls in every worker", &freed)
	if freed.Max() > freedBound {
		r.addProblem("what a dead frontend held was free after %v", freed.Max())
	}
	return nil
}

// routerCount is the number of router processes in a fleet which shows their state.
func (e *testEnv) routerCount() int {
	if e.hasFlag("router", "rpc-addr") {
		return 1
	}
	return 0
}

func killOneFrontend(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet, freed *fleet.Durations) error {
	victim, other := f.Frontends[0], f.Frontends[1]
	// Streams which last much longer than the bound.
	long := e.newLoad(victim)
	long.Mix = []fleet.KnownRequest{{Request: endlessRequest(e, 4000)}}
	doomed := long.StartClients(ctx, 6)
	short := e.newLoad(other).StartClients(ctx, 4)
	defer short.AbandonStreams()
	defer doomed.AbandonStreams()
	if _, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, func(context.Context) error {
		if _, accepted := doomed.InFlight(); accepted < 6 {
			return fmt.Errorf("%d of 6 streams are accepted", accepted)
		}
		return nil
	}); err != nil {
		return err
	}
	doomed.StopSending()
	victim.Kill()
	died := time.Now()
	spared, _ := short.FinishLoad() // each finishes its current response
	survivors := e.newLoad(other)
	survivors.Limit = 1 // the other frontend still serves
	after, _ := survivors.StartClients(ctx, 1).WaitClients()
	if _, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, func(ctx context.Context) error { return checkIdle(ctx, f, other) }); err != nil {
		return err
	}
	freed.Add(time.Since(died))
	spared.MergeCounts(&after)
	r.requireFlawless(&spared)
	lost := doomed.AbandonStreams()
	if lost.Failed != 6 {
		r.addProblem("of 6 streams of the dead frontend %d failed: %v", lost.Failed, lost.Errors)
	}
	r.Sent += lost.Sent
	r.Doomed += lost.Failed
	if err := victim.Start(); err != nil {
		return err
	}
	return f.WaitReady(ctx)
}

// endlessRequest is a request whose response takes longer than any test waits.
func endlessRequest(e *testEnv, tokens int) fleet.Request {
	return fleet.Request{Name: "endless", Path: "/v1/completions", Body: map[string]any{
		"model": fleet.Model, "prompt": fmt.Sprintf("The water of year %d goes on and on", e.random.IntN(1e6)),
		"max_tokens": tokens, "ignore_eos": true, "temperature": 1, "seed": e.random.IntN(1e6),
	}}
}

// checkIdle returns nil if no worker serves a call or holds a block for one, and none of the given routers
// counts a request.
func checkIdle(ctx context.Context, f *fleet.Fleet, routers ...*fleet.Role) error {
	for _, w := range slices.Concat(f.Workers, f.Prefillers) {
		m, err := fleet.ReadMetrics(ctx, w.URL())
		if err != nil {
			return err
		}
		for _, quantity := range []string{"running", "waiting", "used_blocks"} {
			if n := m.SumOf("penstock_worker_load", `quantity="`+quantity+`"`); n != 0 {
				return fmt.Errorf("%s: %s is %v", w.Name(), quantity, n)
			}
		}
		if n := m.SumOf("penstock_worker_inflight"); n != 0 {
			return fmt.Errorf("%s serves %v calls", w.Name(), n)
		}
	}
	for _, w := range f.Encoders {
		m, err := fleet.ReadMetrics(ctx, w.URL())
		if err != nil {
			return err
		}
		if n := m.SumOf("penstock_worker_inflight"); n != 0 {
			return fmt.Errorf("%s encodes for %v calls", w.Name(), n)
		}
	}
	for _, door := range append(routers, f.Routers...) {
		if err := checkNoRequests(ctx, door); err != nil {
			return err
		}
	}
	return nil
}

// checkNoRequests returns nil if the router of a process counts no request.
func checkNoRequests(ctx context.Context, door *fleet.Role) error {
	rows, err := fleet.ReadWorkers(ctx, door.URL())
	if err != nil {
		return err
	}
	for _, row := range rows {
		if l := row.Load; l.Requests != 0 || l.Blocks != 0 || l.Prefill != 0 {
			return fmt.Errorf("%s counts %d requests, %d blocks and %d tokens of prefill at worker %d", door.Name(), l.Requests, l.Blocks, l.Prefill, row.ID)
		}
	}
	return nil
}
