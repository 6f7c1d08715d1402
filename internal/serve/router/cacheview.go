package router

import (
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
)

// feedSummary is the state of all feeds.
type summary struct {
	lag     time.Duration // for how long the feed furthest behind has been lagging
	states  [feed.Live + 1]int
	waiting int // feeds without any record
	missing uint64
	totals  feed.Totals
	counts  prefix.Counts
}

// summarizeFeeds reads the feeds of the workers that exist. Workers whose events cannot be used are not
// counted.
func (c *cache) summary() summary {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, sum := c.now(), summary{totals: c.mu.tracker.Totals(), counts: c.mu.index.Counts()}
	for w, l := range c.mu.lives {
		h, known := c.mu.tracker.Health(w)
		switch {
		case !l.publishes || c.mismatch(w) != 0:
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
type holding struct {
	feed     feed.Health
	fed      bool // feed is valid
	mismatch int  // see cacheIndex.mismatchedSizeLocked
	blocks   int  // in the index
	odd      oddities
}

// workerCacheLocked returns the state of a worker's cache.
func (c *cache) holding(w kv.Worker) holding {
	h := holding{mismatch: c.mismatch(w), blocks: c.mu.index.Held(w)}
	h.feed, h.fed = c.mu.tracker.Health(w)
	if s := c.mu.sources[w]; s != nil {
		h.odd = s.odd
	}
	return h
}

// workerCaches returns the cache states of the workers that exist, and their time.
func (c *cache) holdings() (map[kv.Worker]holding, kv.Mono) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[kv.Worker]holding, len(c.mu.lives))
	for w := range c.mu.lives {
		all[w] = c.holding(w)
	}
	return all, c.now()
}

// feedStates returns the state of the index and of all feeds ordered by worker, including workers that
// discovery does not list, and their time.
func (c *cache) feeds() (prefix.Stats, []holding, kv.Mono) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []holding
	for _, h := range c.mu.tracker.AppendHealth(nil) {
		all = append(all, c.holding(h.Worker))
	}
	return c.mu.index.Stats(), all, c.now()
}

func (c *cache) stats() prefix.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.Stats()
}

// listHolders returns the workers in the index, in order.
func (c *cache) holders() []kv.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendWorkers(nil)
}

// appendHeld appends to dst the blocks of w. A dump calls it once per worker, so that records do not
// wait long.
func (c *cache) held(dst []prefix.Block, w kv.Worker) []prefix.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendBlocks(dst, w)
}
