package main

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	"penstock/test/fleet"
)

// statePatience bounds the time in which a restarted router catches up with the others.
const statePatience = 20 * time.Second

// runRouterDeaths repeatedly kills all frontends but the hub, while snapshots are written all the time and
// the event stream is purged after them: the next router knows the cached blocks as well as the hub, which
// survived, without a resync of a worker. Then the hub, with the store in it, is restarted too.
func runRouterDeaths(ctx context.Context, e *testEnv, r *scenarioResult) error {
	often := e.knownFlags("frontend", "router-snapshot-threshold", "5")
	f, err := e.startFleet(ctx, fleet.Config{Workers: 2, Frontends: 2, HubArgs: often, FrontendArgs: often})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	var known fleet.Durations
	for round := range longOrShort(e, 10, 2) {
		tally, err := e.serveFor(ctx, f, longOrShort(e, 12*time.Second, 7*time.Second))
		if err != nil {
			return err
		}
		r.requireFlawless(&tally)
		for _, door := range f.Frontends {
			door.Kill()
		}
		began := time.Now()
		for _, door := range f.Frontends {
			if err := door.Start(); err != nil {
				return err
			}
		}
		if err := e.awaitAgreement(ctx, r, f); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		known.Add(time.Since(began))
	}
	r.addDurations("start of a router to the index of one that lived", &known)
	if f.Hub == nil {
		return nil
	}
	f.Hub.Kill()
	if err := f.Hub.Start(); err != nil {
		return err
	}
	if err := f.WaitReady(ctx); err != nil {
		return err
	}
	return e.awaitAgreement(ctx, r, f)
}

// serveFor runs clients at every frontend for a while, and waits for their last responses.
func (e *testEnv) serveFor(ctx context.Context, f *fleet.Fleet, d time.Duration) (fleet.OutcomeCounts, error) {
	running := e.newLoad(f.ClientRoles()...).StartClients(ctx, 4)
	defer running.AbandonStreams()
	err := sleepContext(ctx, d)
	tally, _ := running.FinishLoad()
	return tally, err
}

// awaitAgreement waits until the routers of all frontends agree, and reports the time.
func (e *testEnv) awaitAgreement(ctx context.Context, r *scenarioResult, f *fleet.Fleet) error {
	if _, err := fleet.WaitUntil(ctx, 20*time.Millisecond, statePatience, func(ctx context.Context) error {
		want, blocks, err := indexDigest(ctx, f.ClientRoles()[0])
		if err != nil {
			return err
		}
		for _, door := range f.ClientRoles()[1:] {
			got, n, err := indexDigest(ctx, door)
			if err != nil {
				return err
			}
			if got != want || blocks == 0 {
				return fmt.Errorf("%s knows of %d blocks, %s of %d", door.Name(), n, f.ClientRoles()[0].Name(), blocks)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, door := range f.Frontends {
		m, err := fleet.ReadMetrics(ctx, door.URL())
		if err != nil {
			return err
		}
		if m.SumOf("penstock_router_snapshots_total", `outcome="restored"`) != 1 {
			r.addProblem("%s started without a snapshot", door.Name())
		}
		if n := m.SumOf("penstock_feed_resyncs_total", `wanted="all"`); n != 0 {
			r.addProblem("%s asked workers %v times for all of their caches", door.Name(), n)
		}
	}
	return nil
}

// indexDigest returns an order-independent digest of a router's index, and its number of rows.
func indexDigest(ctx context.Context, door *fleet.Role) (digest uint64, rows int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, door.URL()+"/v1/router/index/dump", nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: the dump of the index answers %d", door.Name(), resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		h := fnv.New64a()
		h.Write(lines.Bytes())
		digest += h.Sum64()
		rows++
	}
	return digest, rows, lines.Err()
}
