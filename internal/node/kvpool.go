package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/node/engines"
	"penstock/internal/obs"
	"penstock/internal/plane/xfer/pool"
)

// poolRetry is how long a worker which cannot join its pool waits before it tries again.
const poolRetry = 10 * time.Second

// poolUse is the use of a pool of KV blocks by one worker.
type poolUse struct {
	worker kv.Worker
	file   *pool.File
	engine poolEngine
	log    *slog.Logger
}

// poolEngine is an engine which can use a pool of KV blocks.
type poolEngine interface {
	engine.BlockProvider
	UsePool(batch.PoolMemory, kv.PoolID, kv.Worker) error
	PoolOwnersChanged(owners, dead []kv.Worker)
	PoolLost()
	PoolStats() batch.PoolStats
}

// usePool makes the engine of a worker use the pool which the settings name, if they name one.
func (p *process) usePool(id kv.WorkerID, eng engines.Local) error {
	spec, own := p.cfg.SharedPool(), poolEngine(nil)
	if spec != nil {
		own, _ = eng.(poolEngine)
	}
	if own == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), readyTimeout)
	defer stop()
	layout := own.BlockLayout()
	f, err := pool.Open(ctx, spec.Path, spec.Size, layout.PoolConfig())
	if err != nil {
		err = fmt.Errorf("pool: %w", err)
		switch fault.CodeOf(err) {
		case fault.Conflict, fault.Forbidden, fault.Invalid:
			err = config.AsSettingError(err)
		}
		return err
	}
	worker := kv.Worker{ID: id}
	p.pools = append(p.pools, &poolUse{worker: worker, file: f, engine: own, log: obs.Component(p.log, "engine")})
	return own.UsePool(f, spec.ID, worker)
}

// run keeps the worker an owner of the pool until ctx ends. Without a pool the engine computes.
func (u *poolUse) run(ctx context.Context) error {
	for {
		err := u.file.Run(ctx, u.worker, u.engine.PoolOwnersChanged)
		if err == nil {
			return nil
		}
		u.log.Warn("the pool of KV blocks cannot be used: prompts are computed", "worker", u.worker.ID, "error", err)
		var again <-chan time.Time
		if fault.CodeOf(err) == fault.PoolLost { // lost memory does not come back
			u.engine.PoolLost()
		} else {
			again = time.After(poolRetry)
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// poolRunners returns what keeps the workers owners of their pool.
func (p *process) poolRunners() (all []func(context.Context) error) {
	for _, u := range p.pools {
		all = append(all, u.run)
	}
	return all
}

// closePools unmaps the pools. Their engines have stopped.
func (p *process) closePools() {
	for _, u := range p.pools {
		u.file.Close()
	}
}

// poolMetrics reports what the engines of this process do with their pool; it collects at each scrape.
type poolMetrics struct {
	stats func() batch.PoolStats

	stored, dropped, fetched, damaged, evicted, abandoned *prometheus.Desc
}

var _ prometheus.Collector = (*poolMetrics)(nil)

func newPoolMetrics(stats func() batch.PoolStats) *poolMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_pool_"+name+"_total", help, nil, nil)
	}
	return &poolMetrics{
		stats:     stats,
		stored:    desc("stored", "KV blocks which engines copied into the pool."),
		dropped:   desc("dropped", "Full KV blocks which engines did not copy into the pool: too many waited, they were evicted before, the pool had no room or could not be used, or their media have no digest."),
		fetched:   desc("fetched", "KV blocks which engines fetched from the pool in place of computing them."),
		damaged:   desc("damaged", "KV blocks which could not be read from the pool, or were not what had been stored: they end a fetch."),
		evicted:   desc("evicted", "KV blocks which engines evicted from the pool to store others."),
		abandoned: desc("abandoned", "Look-ups and fetches of KV blocks in the pool for which requests did not wait any longer, because it did not answer for a second."),
	}
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.stored, m.dropped, m.fetched, m.damaged, m.evicted, m.abandoned} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.stats()
	count := func(d *prometheus.Desc, n uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	count(m.stored, s.Stored)
	count(m.dropped, s.Dropped)
	count(m.fetched, s.Fetched)
	count(m.damaged, s.Damaged)
	count(m.evicted, s.Evicted)
	count(m.abandoned, s.Abandoned)
}

// poolStats returns the sum of what the engines of this process did with their pool.
func (p *process) poolStats() (sum batch.PoolStats) {
	for _, u := range p.pools {
		sum.Add(u.engine.PoolStats())
	}
	return sum
}
