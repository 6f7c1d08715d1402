package remote

import "sync/atomic"

// callCounters are the counters of a Base.
type callCounters struct {
	calls, scrapes, scrapeFailures atomic.Uint64
}

// Stats are an adapter's counters of its engine since it was opened.
type Stats struct {
	Calls, Scrapes, ScrapeFailures, Downs uint64
	// Predicted and Reported are cached tokens, summed over the Compared requests for which both are known;
	// in Mismatched of them they differ by more than a block.
	Predicted, Reported, Compared, Mismatched uint64
	// Of the feed of cache events: batches applied, batches repeated, gaps, gaps that could not be repaired,
	// restarts of the engine, and unreadable batches.
	Batches, Repeated, Gaps, Unrepaired, Restarts, Unreadable uint64
	// Orphans counts blocks stored with an unknown parent. Waiting of them still wait for it. Inferred are
	// the blocks assumed to be cached because of requests, not events.
	Orphans           uint64
	Waiting, Inferred int
	// Blocks is the number of blocks that the engine is known to have.
	Blocks int
	// Connected says that the event subscription is connected.
	Connected bool
}

// Stats returns the counters.
func (b *Base) Stats() Stats {
	s := Stats{Calls: b.counters.calls.Load(), Scrapes: b.counters.scrapes.Load(), ScrapeFailures: b.counters.scrapeFailures.Load()}
	b.health.mu.Lock()
	s.Downs = b.health.mu.downs
	b.health.mu.Unlock()
	b.predictions.fillStats(&s)
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	s.Blocks = len(b.cache.mu.held)
	b.cache.src.fillStats(&s)
	return s
}
