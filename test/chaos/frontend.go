package main

import (
	"context"
	"fmt"
	"time"

	"penstock/test/fleet"
)

// freedBound bounds the time in which the resources of a dead frontend are freed.
const freedBound = 2 * time.Second

// runFrontendKill kills a frontend with streams in progress: its own end, other frontends' continue, and the
// workers free the resources of the dead one.
func killFrontend(ctx context.Context, e *env, r *result) error {
	f, err := e.fleet(ctx, fleet.Config{Workers: 2, Frontends: 2, Routers: e.routers()})
	if err != nil {
		return err
	}
	defer e.end(f, r)
	var freed fleet.Durations
	for range pick(e, 10, 2) {
		if err := frontendDies(ctx, e, r, f, &freed); err != nil {
			return err
		}
	}
	r.times("death of a frontend to free blocks and calls in every worker", &freed)
	if freed.Max() > freedBound {
		r.problem("what a dead frontend held was free after %v", freed.Max())
	}
	return nil
}

// routerCount is the number of router processes in a fleet which shows their state.
func (e *env) routers() int {
	if e.has("router", "rpc-addr") {
		return 1
	}
	return 0
}

func frontendDies(ctx context.Context, e *env, r *result, f *fleet.Fleet, freed *fleet.Durations) error {
	victim, other := f.Frontends[0], f.Frontends[1]
	// Streams which last much longer than the bound.
	long := e.load(victim)
	long.Mix = []fleet.Known{{Request: endless(e, 4000)}}
	doomed := long.Start(ctx, 6)
	short := e.load(other).Start(ctx, 4)
	defer short.Abandon()
	defer doomed.Abandon()
	if _, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, func(context.Context) error {
		if _, accepted := doomed.InFlight(); accepted < 6 {
			return fmt.Errorf("%d of 6 streams are accepted", accepted)
		}
		return nil
	}); err != nil {
		return err
	}
	doomed.NoMore()
	victim.Kill()
	died := time.Now()
	spared, _ := short.Finish() // each finishes its current response
	survivors := e.load(other)
	survivors.Limit = 1 // the other frontend still serves
	after, _ := survivors.Start(ctx, 1).Wait()
	if _, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, func(ctx context.Context) error { return idle(ctx, f, other) }); err != nil {
		return err
	}
	freed.Add(time.Since(died))
	spared.Merge(&after)
	r.flawless(&spared)
	lost := doomed.Abandon()
	if lost.Failed != 6 {
		r.problem("of 6 streams of the dead frontend %d failed: %v", lost.Failed, lost.Errors)
	}
	r.Sent += lost.Sent
	r.Doomed += lost.Failed
	if err := victim.Start(); err != nil {
		return err
	}
	return f.Ready(ctx)
}

// endlessRequest is a request whose response takes longer than any test waits.
func endless(e *env, tokens int) fleet.Request {
	return fleet.Request{Name: "endless", Path: "/v1/completions", Body: map[string]any{
		"model": fleet.Model, "prompt": fmt.Sprintf("The water of year %d goes on and on", e.random.IntN(1e6)),
		"max_tokens": tokens, "ignore_eos": true, "temperature": 1, "seed": e.random.IntN(1e6),
	}}
}

// checkIdle returns nil if no worker serves a call or holds a block for one, and none of the given routers
// counts a request.
func idle(ctx context.Context, f *fleet.Fleet, routers ...*fleet.Role) error {
	for _, w := range f.Workers {
		m, err := fleet.Look(ctx, w.URL())
		if err != nil {
			return err
		}
		for _, quantity := range []string{"running", "waiting", "used_blocks"} {
			if n := m.Sum("penstock_worker_load", `quantity="`+quantity+`"`); n != 0 {
				return fmt.Errorf("%s: %s is %v", w.Name(), quantity, n)
			}
		}
		if n := m.Sum("penstock_worker_inflight"); n != 0 {
			return fmt.Errorf("%s serves %v calls", w.Name(), n)
		}
	}
	for _, door := range append(routers, f.Routers...) {
		if err := noSlots(ctx, door); err != nil {
			return err
		}
	}
	return nil
}

// checkNoRequests returns nil if the router of a process counts no request.
func noSlots(ctx context.Context, door *fleet.Role) error {
	rows, err := fleet.Workers(ctx, door.URL())
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
