package main

import (
	"context"
	"fmt"
	"path/filepath"

	"penstock/test/fleet"
)

// runPoolKill is runKill on workers which share a pool of KV blocks: streams go on from it. Blocks which a dead worker was
// about to write must not be taken for good ones.
func runPoolKill(ctx context.Context, e *testEnv, r *scenarioResult) error {
	pool := fmt.Sprintf("0=%s:64MiB", filepath.Join(e.dir, "pool"))
	f, err := e.startFleet(ctx, fleet.Config{Workers: 3, Frontends: 2, WorkerArgs: []string{"--pool", pool}})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	if err := runKill(ctx, e, r, f); err != nil {
		return err
	}
	// Of the workers which live now; what dead ones have done is not counted.
	sums := map[string]float64{}
	for _, w := range f.Workers {
		m, err := fleet.ReadMetrics(ctx, w.URL())
		if err != nil {
			return err
		}
		for _, name := range []string{"stored", "fetched", "damaged", "abandoned"} {
			sums[name] += m.SumOf("penstock_pool_" + name + "_total")
		}
	}
	r.addFigure("blocks stored in the pool", sums["stored"], "")
	r.addFigure("blocks fetched from the pool", sums["fetched"], "")
	r.addFigure("uses of the pool which were given up", sums["abandoned"], "")
	if sums["fetched"] == 0 {
		r.addProblem("nothing was fetched from the pool, in which %v blocks were stored", sums["stored"])
	}
	if sums["damaged"] > 0 {
		r.addProblem("%v blocks of the pool were damaged", sums["damaged"])
	}
	return nil
}
