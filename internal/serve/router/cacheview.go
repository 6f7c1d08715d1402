package router

import (
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/prefix"
)

// feedSummary is the state of all feeds.
type feedSummary struct {
	lag     time.Duration // for how long the feed furthest behind has been lagging
	states  [kvfeed.Live + 1]int
	waiting int // feeds without any record
	missing uint64
	totals  kvfeed.Totals
	counts  prefix.Counts
}

// summarizeFeeds reads the feeds of the workers that exist. Workers whose events cannot be used are not
// counted.
func (c *cacheIndex) summarizeFeeds() feedSummary {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, sum := c.now(), feedSummary{totals: c.mu.tracker.Totals(), counts: c.mu.index.Counts()}
	for w, l := range c.mu.lives {
		h, known := c.mu.tracker.HealthOf(w)
		switch {
		case !l.publishes || c.mismatchedSizeLocked(w) != 0:
		case !known:
			sum.waiting++
		default:
			sum.states[h.State]++
			sum.missing += h.Missing
			if h.Lagging {
				sum.lag = max(sum.lag, now.Sub(h.Behind))
			}
		}
	}
	return sum
}

// workerCache is the state of one worker's cache.
type workerCache struct {
	feed           kvfeed.Health
	hasFeed        bool // feed is valid
	mismatchedSize int  // see cacheIndex.mismatchedSizeLocked
	blocks         int  // in the index
	anomalies      eventAnomalies
}

// heldBlocks returns how many blocks a worker has in the index.
func (c *cacheIndex) heldBlocks(w kv.Worker) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.HeldBlocks(w)
}

// workerCacheLocked returns the state of a worker's cache.
func (c *cacheIndex) workerCacheLocked(w kv.Worker) workerCache {
	h := workerCache{mismatchedSize: c.mismatchedSizeLocked(w), blocks: c.mu.index.HeldBlocks(w)}
	h.feed, h.hasFeed = c.mu.tracker.HealthOf(w)
	if s := c.mu.sources[w]; s != nil {
		h.anomalies = s.anomalies
	}
	return h
}

// workerCaches returns the cache states of the workers that exist, and their time.
func (c *cacheIndex) workerCaches() (map[kv.Worker]workerCache, kv.Mono) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[kv.Worker]workerCache, len(c.mu.lives))
	for w := range c.mu.lives {
		all[w] = c.workerCacheLocked(w)
	}
	return all, c.now()
}

// feedStates returns the state of the index and of all feeds ordered by worker, including workers that
// discovery does not list, and their time.
func (c *cacheIndex) feedStates() (prefix.Stats, []workerCache, kv.Mono) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []workerCache
	for _, h := range c.mu.tracker.AppendHealth(nil) {
		all = append(all, c.workerCacheLocked(h.Worker))
	}
	return c.mu.index.Stats(), all, c.now()
}

func (c *cacheIndex) indexStats() prefix.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.Stats()
}

// listHolders returns the workers in the index, in order.
func (c *cacheIndex) listHolders() []kv.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendWorkers(nil)
}

// appendHeld appends to dst the blocks of w. A dump calls it once per worker, so that records do not
// wait long.
func (c *cacheIndex) appendHeld(dst []prefix.Block, w kv.Worker) []prefix.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendBlocks(dst, w)
}
