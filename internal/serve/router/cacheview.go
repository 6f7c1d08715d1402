package router

import (
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
)

// summary is how all feeds are.
type summary struct {
	lag     time.Duration // for how long the one furthest behind has been so
	states  [feed.Live + 1]int
	waiting int // of which no record has come
	missing uint64
	totals  feed.Totals
	counts  prefix.Counts
}

// summary looks at the feeds of the workers that exist. Those whose events cannot be used
// are in none of its counts.
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

// holding is what is known of one worker's cache.
type holding struct {
	feed     feed.Health
	fed      bool // whether feed means something
	mismatch int  // see cache.mismatch
	blocks   int  // in the index
	odd      oddities
}

// holding returns what is known of a worker's cache. The caller holds mu.
func (c *cache) holding(w kv.Worker) holding {
	h := holding{mismatch: c.mismatch(w), blocks: c.mu.index.Held(w)}
	h.feed, h.fed = c.mu.tracker.Health(w)
	if s := c.mu.sources[w]; s != nil {
		h.odd = s.odd
	}
	return h
}

// holdings returns what is known of the caches of the workers that exist, and when.
func (c *cache) holdings() (map[kv.Worker]holding, kv.Mono) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[kv.Worker]holding, len(c.mu.lives))
	for w := range c.mu.lives {
		all[w] = c.holding(w)
	}
	return all, c.now()
}

// feeds returns the state of the index and of all feeds, those of workers included that
// discovery does not know, ordered by worker, and when.
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

// holders returns the workers that the index knows, in order.
func (c *cache) holders() []kv.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendWorkers(nil)
}

// held appends to dst what w holds: a dump goes worker by worker, so that records do
// not wait for long.
func (c *cache) held(dst []prefix.Block, w kv.Worker) []prefix.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.index.AppendBlocks(dst, w)
}
