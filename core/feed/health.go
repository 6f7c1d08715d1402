package feed

import (
	"fmt"

	"penstock/core/kv"
)

// State says whether a worker's entries can be trusted.
type State uint8

// The states. The zero value is the careful one.
const (
	// Doubt: events are missing; the worker has no entries in the index, and a
	// resync is asked for until a Cleared event arrives.
	Doubt State = iota
	// Live: all that the worker said since its last Cleared event is applied.
	Live
)

// String returns the state's name as tables print it.
func (s State) String() string {
	if s == Live {
		return "live"
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
	LastSeq    uint64
	Applied    uint64 // events
	Gaps       uint64
	Duplicates uint64
	Ignored    uint64
	Stale      uint64
	Resyncs    uint64 // requests
	// LastEvent is when a record was applied last; it means something only if
	// Applied is not 0.
	LastEvent kv.Mono
	// Lagging says that by the last [Tracker.Compare] the worker has published more
	// than has arrived, Behind since when.
	Lagging bool
	Behind  kv.Mono
}

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
	return h
}

// Check reports the first violated invariant: feeds ascend, sequence numbers
// start at 1, and waits stay within the configured bounds.
func (t *Tracker) Check() error {
	for i := range t.feeds {
		f := &t.feeds[i]
		switch {
		case i > 0 && t.feeds[i-1].worker.Compare(f.worker) >= 0:
			return fmt.Errorf("feed: check: worker %v is out of order", f.worker)
		case f.next == 0:
			return fmt.Errorf("feed: check: worker %v expects sequence number 0", f.worker)
		case f.state == Live && f.health.Applied == 0:
			return fmt.Errorf("feed: check: worker %v is live though nothing was applied", f.worker)
		case f.wait != 0 && (f.wait < t.cfg.MinBackoff || f.wait > t.cfg.MaxBackoff):
			return fmt.Errorf("feed: check: worker %v waits %v, out of bounds", f.worker, f.wait)
		case (f.wait == 0) != (f.health.Resyncs == 0):
			return fmt.Errorf("feed: check: worker %v was asked %d times and waits %v", f.worker, f.health.Resyncs, f.wait)
		}
	}
	return nil
}
