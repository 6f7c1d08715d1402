package main

import (
	"context"
	"fmt"
	"time"

	"penstock/test/fleet"
)

const (
	// normalBound bounds the time after a burst until latency is normal again.
	normalBound = 5 * time.Second
	// hangBound is more than any response of a full fleet takes.
	hangBound = 30 * time.Second
)

// runOverload runs ten times the clients for a while on a fleet with short queues: every request gets a
// response, or a time to retry.
func runOverload(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	const usual = 6
	load := e.newLoad(f.ClientRoles()...)
	load.Gap = 20 * time.Millisecond // think time, which also prevents refused clients from spinning
	base := load.StartClients(ctx, usual)
	defer base.AbandonStreams()
	if err := sleepContext(ctx, 2*time.Second); err != nil {
		return err
	}
	base.TakeCounts() // warm by now
	if err := sleepContext(ctx, 6*time.Second); err != nil {
		return err
	}
	normal := base.TakeCounts()
	r.requireFlawless(&normal)
	r.addDurations("normal: request", &normal.Took)

	crowd := e.newLoad(f.ClientRoles()...)
	crowd.Gap = load.Gap
	began := time.Now()
	burst := crowd.StartClients(ctx, 9*usual)
	defer burst.AbandonStreams()
	if err := sleepContext(ctx, 8*time.Second); err != nil {
		return err
	}
	crush, _ := burst.FinishLoad()
	ended := time.Now()
	meanwhile := base.TakeCounts()
	for _, t := range []*fleet.OutcomeCounts{&crush, &meanwhile} {
		r.addCounts(t)
		r.requireRight(t)
		if t.Failed > 0 {
			r.addProblem("%d requests got neither an answer nor a time to come again: %v", t.Failed, t.Errors)
		}
		if t.Took.Max() > hangBound {
			r.addProblem("a request took %v", t.Took.Max())
		}
	}
	if crush.Refused == 0 {
		r.addProblem("nothing was refused: the burst was none")
	}
	r.addTime("burst, with the end of its last request", ended.Sub(began))
	r.addDurations("burst: request", &crush.Took)
	return awaitNormal(ctx, r, base, &normal, ended)
}

// awaitNormal waits until requests are as fast as before the burst, judged in windows of half a second.
func awaitNormal(ctx context.Context, r *scenarioResult, base *fleet.RunningLoad, normal *fleet.OutcomeCounts, ended time.Time) error {
	base.TakeCounts()
	limit := max(2*normal.Took.Percentile(50), normal.Took.Percentile(99))
	_, err := fleet.WaitUntil(ctx, 500*time.Millisecond, returnPatience, func(context.Context) error {
		window := base.TakeCounts()
		r.addCounts(&window)
		r.requireRight(&window)
		if p50 := window.Took.Percentile(50); window.Right < 3 || p50 > limit || window.Refused+window.Failed > 0 {
			return fmt.Errorf("requests take %v, usual is %v; %d are refused", p50, normal.Took.Percentile(50), window.Refused)
		}
		return nil
	})
	took := time.Since(ended)
	r.addTime("burst: from its end to normal latency", took)
	if err == nil && took > normalBound {
		r.addProblem("latency was normal %v after the burst", took)
	}
	return err
}
