package remote

import "sync/atomic"

// stats are the counters of a Base.
type stats struct {
	calls, scrapes, scrapeFailures atomic.Uint64
}

// Stats is what an adapter has counted of its engine since it was opened.
type Stats struct {
	Calls, Scrapes, ScrapeFailures, Downs uint64
	// Predicted and Reported are cached tokens over the requests of which both are known, of
	// which there are Compared; Apart are those where they differ by more than a block.
	Predicted, Reported, Compared, Apart uint64
	// Of the feed of cache events: batches applied and asked for again, gaps, those that could
	// not be repaired, restarts of the engine, and batches that could not be read.
	Batches, Repeated, Gaps, Unrepaired, Restarts, Unreadable uint64
	// Orphans counts blocks that the engine stored behind one that is not known. Waiting of them wait until that is,
	// and Inferred are the blocks that are believed to be cached by what requests showed, not by events.
	Orphans           uint64
	Waiting, Inferred int
	// Blocks are those that the engine is known to have.
	Blocks int
	// Connected says that events are subscribed to.
	Connected bool
}

// Stats returns the counters.
func (b *Base) Stats() Stats {
	s := Stats{Calls: b.stats.calls.Load(), Scrapes: b.stats.scrapes.Load(), ScrapeFailures: b.stats.scrapeFailures.Load()}
	b.health.mu.Lock()
	s.Downs = b.health.mu.downs
	b.health.mu.Unlock()
	b.ledger.stats(&s)
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	s.Blocks = len(b.cache.mu.held)
	b.cache.src.stats(&s)
	return s
}
