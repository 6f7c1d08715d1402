package router

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

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
	if l := c.mu.lives[w]; l.foreignPool && (!ev.Move.HasPool || ev.Move.Pool == l.pool.ID) {
		return
	}
	c.mu.sources[w].hasMoved = true
	c.mu.effects = c.mu.pools.ApplyMove(now, w, ev, c.mu.effects[:0])
	c.applyEffectsLocked()
}

// separatePoolsLocked makes the pools follow the cards of the workers. A pool begins empty whose ID names other memory than
// it did, or of which a worker with other memory may have said something before its card was known. The workers which have
// the pool then describe their caches again.
func (c *cacheIndex) separatePoolsLocked() {
	restarted, named := map[kv.PoolID]bool{}, map[kv.PoolID]bool{}
	for _, p := range c.mu.pools.AppendPools(nil) {
		named[p.ID] = true
	}
	for w, l := range c.mu.lives { // the order does not matter, here and below
		if l.pool == nil {
			continue
		}
		id := l.pool.ID
		named[id] = true
		switch is, known := c.mu.generations[id]; {
		case l.foreignPool:
			if s := c.mu.sources[w]; s != nil && s.hasMoved {
				s.hasMoved, restarted[id] = false, true
			}
		case is != l.pool.Generation:
			c.mu.generations[id] = l.pool.Generation
			restarted[id] = restarted[id] || known
		}
	}
	maps.DeleteFunc(c.mu.generations, func(id kv.PoolID, _ string) bool { return !named[id] })
	for id := range restarted {
		c.mu.effects = c.mu.pools.DropPool(id, c.mu.effects[:0])
		c.applyEffectsLocked()
	}
	for w, l := range c.mu.lives {
		if s := c.mu.sources[w]; s != nil && s.hasMoved && l.pool != nil && !l.foreignPool && restarted[l.pool.ID] {
			c.dropWorkerLocked(w)
		}
	}
}

// generationsVersion is the version of the data of the section of pool generations.
const generationsVersion = 1

// appendGenerations appends which memory the pools are, ascending by ID.
func (k *cacheContent) appendGenerations(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, generationsVersion), uint32(len(k.generations)))
	for _, id := range slices.Sorted(maps.Keys(k.generations)) {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(id))
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(k.generations[id])))
		dst = append(dst, k.generations[id]...)
	}
	return dst
}

// loadGenerations reads what appendGenerations writes.
func (k *cacheContent) loadGenerations(data []byte) error {
	bad := errors.New("the section of pool generations is damaged")
	if len(data) < 5 || data[0] != generationsVersion {
		return bad
	}
	n, data := binary.LittleEndian.Uint32(data[1:]), data[5:]
	for last := kv.PoolID(0); n > 0; n-- {
		if len(data) < 6 {
			return bad
		}
		id, size := kv.PoolID(binary.LittleEndian.Uint32(data)), int(binary.LittleEndian.Uint16(data[4:]))
		if data = data[6:]; size == 0 || size > len(data) || id <= last && len(k.generations) > 0 {
			return bad
		}
		k.generations[id], last = string(data[:size]), id
		data = data[size:]
	}
	if len(data) > 0 {
		return bad
	}
	return nil
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
