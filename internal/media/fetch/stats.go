package fetch

import "sync/atomic"

// Stats are what a Fetcher has done since it was made, for metrics.
type Stats struct {
	// Sizes and Files are how many of either were asked for, by URL; of them SizeHits and FileHits
	// were known, or there, already.
	Sizes, SizeHits uint64
	Files, FileHits uint64
	// Bytes is what files take now, those under way included.
	Bytes int64
}

// tally counts what was asked for and what was there.
type tally struct{ asked, hits atomic.Uint64 }

// note counts a question.
func (t *tally) note(hit bool) {
	t.asked.Add(1)
	if hit {
		t.hits.Add(1)
	}
}

// Stats returns what f has done so far.
func (f *Fetcher) Stats() Stats {
	return Stats{
		Sizes: f.sizeTally.asked.Load(), SizeHits: f.sizeTally.hits.Load(),
		Files: f.fileTally.asked.Load(), FileHits: f.fileTally.hits.Load(), Bytes: f.Memory(),
	}
}
