package fetch

import "sync/atomic"

// Stats counts what a Fetcher has done since it was created, for metrics.
type Stats struct {
	// Sizes and Files count the requests for either, by URL; SizeHits and FileHits count those
	// answered from the cache.
	Sizes, SizeHits uint64
	Files, FileHits uint64
	// Bytes is the memory that files use now, including downloads in progress.
	Bytes int64
}

// hitCounter counts lookups and cache hits.
type hitCounter struct{ asked, hits atomic.Uint64 }

// record counts a lookup.
func (t *hitCounter) record(hit bool) {
	t.asked.Add(1)
	if hit {
		t.hits.Add(1)
	}
}

// Stats returns the counters so far.
func (f *Fetcher) Stats() Stats {
	return Stats{
		Sizes: f.sizeCounter.asked.Load(), SizeHits: f.sizeCounter.hits.Load(),
		Files: f.fileCounter.asked.Load(), FileHits: f.fileCounter.hits.Load(), Bytes: f.Memory(),
	}
}
