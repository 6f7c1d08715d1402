package feed

import (
	"fmt"

	"penstock/core/kv"
)

// State says whether a worker's entries can be trusted.
type State uint8

// The states. The zero value is the careful one.
const (
	// Doubt: events are missing and were not brought; the worker has no entries in the
	// index, and a description of its cache is asked for until a Cleared event arrives.
	Doubt State = iota
	// Repair: events are missing; the entries, which are right up to the last event
	// applied, are hidden, and the events after it are asked for.
	Repair
	// Live: all that the worker said since its last Cleared event is applied.
	Live
)

// String returns the state's name as tables print it.
func (s State) String() string {
	switch s {
	case Live:
		return "live"
	case Repair:
		return "repairing"
	}
	return "resync"
}

// Health is the record of one worker's feed. Counts are over all of its lives,
// in records unless they say otherwise.
type Health struct {
	Worker kv.Worker
	Epoch  uint64
	State  State
	// LastSeq is the number of the last event applied or, in doubt, passed over;
	// 0 if there was none.
	LastSeq uint64
	// Missing counts the events that the worker is known to have published and that
	// are not applied.
	Missing    uint64
	Applied    uint64 // events
	Gaps       uint64 // losses that were noticed
	Repaired   uint64 // losses that were made good by the missing events
	Described  uint64 // losses that were made good by a Cleared event and what followed
	GivenUp    uint64 // repairs that ended in a request for the whole cache
	Duplicates uint64
	Ignored    uint64
	Stale      uint64
	Resyncs    uint64 // requests, for what was missing or for all
	// LastEvent is when a record was applied last; it means something only if
	// Applied is not 0.
	LastEvent kv.Mono
	// Lagging says that by the last [Tracker.Compare] the worker has published more
	// than has arrived, Behind since when.
	Lagging bool
	Behind  kv.Mono
}

// Totals counts what happened to all feeds since the tracker is, also to those that were
// forgotten since. The counts are those of Health.
type Totals struct{ Gaps, Repaired, Described, GivenUp uint64 }

// Totals returns the counts over all feeds.
func (t *Tracker) Totals() Totals { return t.totals }

// Health returns the record of w's feed; ok is false if w is not known.
func (t *Tracker) Health(w kv.Worker) (h Health, ok bool) {
	at, known := t.find(w)
	if !known {
		return Health{}, false
	}
	return t.feeds[at].report(), true
}

// AppendHealth appends the records of all feeds to dst, ordered by worker.
func (t *Tracker) AppendHealth(dst []Health) []Health {
	for i := range t.feeds {
		dst = append(dst, t.feeds[i].report())
	}
	return dst
}

func (f *follower) report() Health {
	h := f.health
	h.Worker, h.Epoch, h.State, h.LastSeq = f.worker, f.epoch, f.state, f.next-1
	h.Lagging, h.Behind = f.pace.lagging, f.pace.behind
	h.Missing = f.seen - f.next
	if h.Lagging && f.pace.claimed > f.next {
		h.Missing = f.pace.claimed - f.next
	}
	return h
}

// Check reports the first violated invariant: feeds ascend, sequence numbers
// start at 1, what is live misses nothing and is shown, and waits stay within the
// configured bounds.
func (t *Tracker) Check() error {
	for i := range t.feeds {
		f := &t.feeds[i]
		switch {
		case i > 0 && t.feeds[i-1].worker.Compare(f.worker) >= 0:
			return fmt.Errorf("feed: check: worker %v is out of order", f.worker)
		case f.next == 0 || f.next > f.seen:
			return fmt.Errorf("feed: check: worker %v expects sequence number %d, after %d was seen", f.worker, f.next, f.seen)
		case f.state == Live && (f.next == 1 || f.next != f.seen || f.hidden || f.lost):
			return fmt.Errorf("feed: check: worker %v is live at %d of %d, hidden %t, with a loss %t", f.worker, f.next, f.seen, f.hidden, f.lost)
		case f.state == Repair && !f.hidden:
			return fmt.Errorf("feed: check: worker %v is repaired in the open", f.worker)
		case f.state == Doubt && (f.next != f.seen || f.hidden):
			return fmt.Errorf("feed: check: worker %v is in doubt, at %d of %d, hidden %t", f.worker, f.next, f.seen, f.hidden)
		case !f.repair.within(&t.cfg) || !f.whole.within(&t.cfg):
			return fmt.Errorf("feed: check: worker %v waits %v and %v, out of bounds", f.worker, f.repair.wait, f.whole.wait)
		case (f.repair.wait+f.whole.wait == 0) != (f.health.Resyncs == 0):
			return fmt.Errorf("feed: check: worker %v was asked %d times and waits %v and %v", f.worker, f.health.Resyncs, f.repair.wait, f.whole.wait)
		}
	}
	return nil
}

func (p *pacing) within(cfg *Config) bool {
	return p.wait == 0 || p.wait >= cfg.MinBackoff && p.wait <= cfg.MaxBackoff
}
