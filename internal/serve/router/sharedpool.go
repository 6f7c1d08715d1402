package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/poolindex"
	"penstock/internal/obs"
)

// This part of the cache index tracks the contents of memory pools that workers share: a
// poolindex.Table, and its effects on the index. The cache's lock guards all of it.

// applyMovedLocked applies a move of blocks in the pools.
func (c *cacheIndex) applyMovedLocked(now kv.Mono, w kv.Worker, ev *kv.Event) {
	c.mu.effects = c.mu.pools.ApplyMove(now, w, ev, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// resolvePooledLocked looks for pooled blocks whose position among prefixes ev shows. The index has
// already applied ev.
func (c *cacheIndex) resolvePooledLocked(ev *kv.Event) {
	c.mu.effects = c.mu.pools.RetryParked(ev, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// doubtPoolsLocked hides the blocks reported only by w from the index while events of w are missing,
// and forgets them if those will not arrive. A new epoch of w without records is no reason: the pools
// still exist.
func (c *cacheIndex) doubtPoolsLocked(now kv.Mono, w kv.Worker, v kvfeed.FeedVerdict) {
	if v.Outcome == kvfeed.Gap || v.Lost {
		c.hidePooledLocked(now, w)
	}
	if v.Lost {
		c.mu.pools.ForgetLost(w)
	}
}

// hidePooledLocked hides the blocks reported only by w from the index.
func (c *cacheIndex) hidePooledLocked(now kv.Mono, w kv.Worker) {
	c.mu.effects = c.mu.pools.SuspectWorker(now, w, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// showPooledLocked reverts hidePooledLocked.
func (c *cacheIndex) showPooledLocked(w kv.Worker) {
	c.mu.effects = c.mu.pools.TrustWorker(w, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// detachPoolsLocked records that w, which ended or restarted, has attached no pools.
func (c *cacheIndex) detachPoolsLocked(w kv.Worker) {
	c.mu.effects = c.mu.pools.DetachWorker(w, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// applyEffectsLocked applies the effects of the pools to the index.
func (c *cacheIndex) applyEffectsLocked() {
	c.mu.pools.ApplyEffects(c.mu.index, c.mu.effects)
	clear(c.mu.effects) // the effects' lists can be large
}

// tickPools does the periodic work of the pools.
func (c *cacheIndex) tickPools() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.effects = c.mu.pools.Tick(c.now(), c.mu.effects[:0])
	c.applyEffectsLocked()
}

// poolStats returns the sizes and totals of the pools.
func (c *cacheIndex) poolStats() poolindex.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pools.Stats()
}

// poolRow is the JSON of a pool.
type poolRow struct {
	Pool   uint32 `json:"pool_id"`
	Pooled int    `json:"pooled_blocks"`
	// Access is null if it is not known which workers can attach the pool.
	Access []workerName `json:"accessible_workers"`
}

// poolRows returns the state of the pools.
func (c *cacheIndex) poolRows() (rows []poolRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.mu.pools.AppendPools(nil) {
		row := poolRow{Pool: uint32(p.ID), Pooled: p.Pooled}
		access := p.Attached
		if p.AccessKnown {
			row.Access, access = []workerName{}, p.Access
		}
		for _, w := range access {
			row.Access = append(row.Access, workerName{uint64(w.ID), w.Rank})
		}
		rows = append(rows, row)
	}
	return rows
}

// poolMetrics are read on collection.
type poolMetrics struct {
	cache                     *cacheIndex
	pools, blocks, moves, ram *prometheus.Desc
}

// collectPools registers the metrics of the pools.
func collectPools(m *obs.Metrics, c *cacheIndex) {
	m.RegisterCollector(&poolMetrics{
		cache:  c,
		pools:  prometheus.NewDesc(obs.Namespace+"_pools", "Pools of memory that workers share.", nil, nil),
		blocks: prometheus.NewDesc(obs.Namespace+"_pool_blocks", "Blocks in shared pools, by state; doubted and parked ones are pooled and count for nothing.", []string{"state"}, nil),
		moves:  prometheus.NewDesc(obs.Namespace+"_pool_moves_total", "Blocks that moved in shared pools, by what became of it.", []string{"outcome"}, nil),
		ram:    prometheus.NewDesc(obs.Namespace+"_pool_table_bytes", "Estimated memory of what is known of shared pools.", nil, nil),
	})
}

// Describe implements prometheus.Collector.
func (p *poolMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- p.pools
	ch <- p.blocks
	ch <- p.moves
	ch <- p.ram
}

// Collect implements prometheus.Collector.
func (p *poolMetrics) Collect(ch chan<- prometheus.Metric) {
	st := p.cache.poolStats()
	ch <- prometheus.MustNewConstMetric(p.pools, prometheus.GaugeValue, float64(st.Pools))
	ch <- prometheus.MustNewConstMetric(p.ram, prometheus.GaugeValue, float64(st.Bytes))
	for _, s := range [...]struct {
		state string
		n     int
	}{
		{"in_transit", st.InTransit},
		{"cxl_pooled", st.Pooled - st.Doubtful - st.Parked},
		{"doubted", st.Doubtful},
		{"parked", st.Parked},
		{"evicted", st.Evicted},
	} {
		ch <- prometheus.MustNewConstMetric(p.blocks, prometheus.GaugeValue, float64(s.n), s.state)
	}
	for _, s := range [...]struct {
		outcome string
		n       uint64
	}{
		{"applied", st.Counts.Moved},
		{"repeated", st.Counts.Same},
		{"other_copy", st.Counts.Ignored},
		{"unknown", st.Counts.Unknown},
		{"refused", st.Counts.Refused},
		{"stuck", st.Counts.Stuck},
		{"overflowed", st.Counts.Overflowed},
		{"forgotten", st.Counts.Forgotten},
	} {
		ch <- prometheus.MustNewConstMetric(p.moves, prometheus.CounterValue, float64(s.n), s.outcome)
	}
}
