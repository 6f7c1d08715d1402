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
func overload(ctx context.Context, e *env, r *result) error {
	f, err := e.fleet(ctx, fleet.Config{
		Workers: 2, Frontends: 1,
		WorkerArgs: []string{"--max-num-seqs", "8", "--max-waiting", "8"},
	})
	if err != nil {
		return err
	}
	defer e.end(f, r)
	const usual = 6
	load := e.load(f.Doors()...)
	load.Gap = 20 * time.Millisecond // think time, which also prevents refused clients from spinning
	base := load.Start(ctx, usual)
	defer base.Abandon()
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	base.Cut() // warm by now
	if err := pause(ctx, 6*time.Second); err != nil {
		return err
	}
	normal := base.Cut()
	r.flawless(&normal)
	r.times("normal: request", &normal.Took)

	crowd := e.load(f.Doors()...)
	crowd.Gap = load.Gap
	began := time.Now()
	burst := crowd.Start(ctx, 9*usual)
	defer burst.Abandon()
	if err := pause(ctx, 8*time.Second); err != nil {
		return err
	}
	crush, _ := burst.Finish()
	ended := time.Now()
	meanwhile := base.Cut()
	for _, t := range []*fleet.Tally{&crush, &meanwhile} {
		r.count(t)
		r.right(t)
		if t.Failed > 0 {
			r.problem("%d requests got neither an answer nor a time to come again: %v", t.Failed, t.Errors)
		}
		if t.Took.Max() > hangBound {
			r.problem("a request took %v", t.Took.Max())
		}
	}
	if crush.Refused == 0 {
		r.problem("nothing was refused: the burst was none")
	}
	r.time("burst, with the end of its last request", ended.Sub(began))
	r.times("burst: request", &crush.Took)
	return settles(ctx, r, base, &normal, ended)
}

// awaitNormal waits until requests are as fast as before the burst, judged in windows of half a second.
func settles(ctx context.Context, r *result, base *fleet.Running, normal *fleet.Tally, ended time.Time) error {
	base.Cut()
	limit := max(2*normal.Took.Percentile(50), normal.Took.Percentile(99))
	_, err := fleet.Until(ctx, 500*time.Millisecond, returnPatience, func(context.Context) error {
		window := base.Cut()
		r.count(&window)
		r.right(&window)
		if p50 := window.Took.Percentile(50); window.Right < 3 || p50 > limit || window.Refused+window.Failed > 0 {
			return fmt.Errorf("requests take %v, usual is %v; %d are refused", p50, normal.Took.Percentile(50), window.Refused)
		}
		return nil
	})
	took := time.Since(ended)
	r.time("burst: from its end to normal latency", took)
	if err == nil && took > normalBound {
		r.problem("latency was normal %v after the burst", took)
	}
	return err
}
