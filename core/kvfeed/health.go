package kvfeed

import (
	"fmt"

	"penstock/core/kv"
)

// FeedState says whether a worker's entries can be trusted.
//
//	state      entries in the index            requested
//	Resyncing  none                            a description of the whole cache
//	Repairing  right up to LastSeq, hidden     the events after LastSeq
//	Live       right, shown                    nothing
type FeedState uint8

// The states. The zero value is the most cautious one.
const (
	// Resyncing: events are missing and did not arrive. The worker has no entries in the index. A description
	// of its cache is requested until a Cleared event arrives.
	Resyncing FeedState = iota
	// Repairing: events are missing. The entries, which are right up to the last event applied, are hidden,
	// and the events after it are requested.
	Repairing
	// Live: all events since the worker's last Cleared event are applied.
	Live
)

// String returns the state's name as tables print it.
func (s FeedState) String() string {
	switch s {
	case Live:
		return "live"
	case Repairing:
		return "repairing"
	}
	return "resync"
}

// Health describes one worker's feed. Counts are over all of its epochs, in records except where noted.
type Health struct {
	Worker kv.Worker
	Epoch  uint64
	State  FeedState
	// LastSeq is the number of the last event applied or, while resyncing, skipped; 0 if there was none.
	LastSeq uint64
	// Missing counts the events which the worker is known to have published and which are not applied.
	Missing    uint64
	Applied    uint64 // events
	Gaps       uint64 // detected losses
	Repaired   uint64 // losses repaired by the missing events
	Described  uint64 // losses repaired by a Cleared event and the description after it
	GivenUp    uint64 // repairs which ended in a request for the whole cache
	Duplicates uint64
	Ignored    uint64
	Stale      uint64
	Resyncs    uint64 // requests, for missing events or for the whole cache
	// LastEvent is when a record was last applied; it is valid only if Applied is not 0.
	LastEvent kv.Mono
	// Lagging says that the worker has published more than has arrived, by the last [Tracker.CompareReport];
	// Behind says since when.
	Lagging bool
	Behind  kv.Mono
}

// Totals counts what happened to all feeds since the tracker was created, including removed ones. Health
// counts the same for one feed.
type Totals struct{ Gaps, Repaired, Described, GivenUp uint64 }

// Totals returns the counts over all feeds.
func (t *Tracker) Totals() Totals { return t.totals }

// HealthOf describes w's feed; ok is false if w is not known.
func (t *Tracker) HealthOf(w kv.Worker) (h Health, ok bool) {
	at, known := t.findFeed(w)
	if !known {
		return Health{}, false
	}
	return t.feeds[at].newHealth(), true
}

// AppendHealth appends the descriptions of all feeds to dst, ordered by worker.
func (t *Tracker) AppendHealth(dst []Health) []Health {
	for i := range t.feeds {
		dst = append(dst, t.feeds[i].newHealth())
	}
	return dst
}

func (f *workerFeed) newHealth() Health {
	h := f.health
	h.Worker, h.Epoch, h.State, h.LastSeq = f.worker, f.epoch, f.state, f.next-1
	h.Lagging, h.Behind = f.reports.lagging, f.reports.lagSince
	h.Missing = f.seen - f.next
	if h.Lagging && f.reports.reportedNext > f.next {
		h.Missing = f.reports.reportedNext - f.next
	}
	return h
}

// Check reports the first violated invariant: feeds ascend, sequence numbers start at 1, live feeds miss
// nothing and are shown, and waits stay within the configured bounds.
func (t *Tracker) Check() error {
	for i := range t.feeds {
		f := &t.feeds[i]
		switch {
		case i > 0 && t.feeds[i-1].worker.Compare(f.worker) >= 0:
			return fmt.Errorf("kvfeed: check: worker %v is out of order", f.worker)
		case f.next == 0 || f.next > f.seen:
			return fmt.Errorf("kvfeed: check: worker %v expects sequence number %d, after %d was seen", f.worker, f.next, f.seen)
		case f.state == Live && (f.next == 1 || f.next != f.seen || f.hidden || f.lost):
			return fmt.Errorf("kvfeed: check: worker %v is live at %d of %d, hidden %t, with a loss %t", f.worker, f.next, f.seen, f.hidden, f.lost)
		case f.state == Repairing && !f.hidden:
			return fmt.Errorf("kvfeed: check: worker %v is repaired in the open", f.worker)
		case f.state == Resyncing && (f.next != f.seen || f.hidden):
			return fmt.Errorf("kvfeed: check: worker %v is in doubt, at %d of %d, hidden %t", f.worker, f.next, f.seen, f.hidden)
		case !f.repairBackoff.isWithin(&t.cfg) || !f.resyncBackoff.isWithin(&t.cfg):
			return fmt.Errorf("kvfeed: check: worker %v waits %v and %v, out of bounds", f.worker, f.repairBackoff.wait, f.resyncBackoff.wait)
		case (f.repairBackoff.wait+f.resyncBackoff.wait == 0) != (f.health.Resyncs == 0):
			return fmt.Errorf("kvfeed: check: worker %v was asked %d times and waits %v and %v", f.worker, f.health.Resyncs, f.repairBackoff.wait, f.resyncBackoff.wait)
		}
	}
	return nil
}

func (p *requestBackoff) isWithin(cfg *Config) bool {
	return p.wait == 0 || p.wait >= cfg.MinBackoff && p.wait <= cfg.MaxBackoff
}
