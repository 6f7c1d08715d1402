package kvfeed

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Config is the policy of a Tracker.
type Config struct {
	// MinBackoff is the wait between the first and the second request to a worker, for missing events or for
	// its whole cache. Each further wait is twice as long, up to MaxBackoff. After MaxBackoff without a
	// request the waits start again.
	MinBackoff, MaxBackoff time.Duration
	// MaxRequests is how many requests may be sent within MinBackoff, to all workers: when many feeds lack
	// events at once, as after the event plane lost what it kept, this spreads their answers.
	MaxRequests int
	// RepairTimeout is how long a repair may make no progress before it is given up: the worker's entries are
	// then dropped, and its whole cache is requested. During a repair the entries are kept but hidden, so a
	// long timeout costs only memory. The time starts with the first request.
	RepairTimeout time.Duration
	// CanReach says whether requests can be sent to a worker now; nil means all. An unreachable worker costs
	// no request, starts no wait and is not given up: [Tracker.DueRequests] returns it once it can be
	// reached. It is called within the methods of Tracker.
	CanReach func(kv.Worker) bool
	// StuckAfter is how long a feed may be behind or ahead of what its worker reports to have published, see
	// [Tracker.CompareReport].
	StuckAfter time.Duration
}

// EnsureDefaults fills in the fields which are not set: 200 ms, 30 s, 64, 5 s and 5 s.
func (c *Config) EnsureDefaults() {
	c.MinBackoff = cmp.Or(c.MinBackoff, 200*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
	c.MaxRequests = cmp.Or(c.MaxRequests, 64)
	c.RepairTimeout = cmp.Or(c.RepairTimeout, 5*time.Second)
	c.StuckAfter = cmp.Or(c.StuckAfter, 5*time.Second)
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.MinBackoff < 0 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: min backoff must be positive"))
	}
	if c.MaxBackoff < c.MinBackoff {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: max backoff must not be less than min backoff"))
	}
	if c.MaxRequests < 1 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: at least 1 request must be possible at a time, not %d", c.MaxRequests))
	}
	if c.RepairTimeout < 0 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: the time after which a repair is given up must be positive"))
	}
	if c.StuckAfter < 0 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: the time after which a feed is stuck must be positive"))
	}
	return errors.Join(errs...)
}

// Outcome is how a Tracker judges a record.
type Outcome uint8

// The outcomes. The zero value is none of them.
const (
	Apply     Outcome = iota + 1 // apply Events[Skip:] to the index
	Duplicate                    // it has no new events
	Gap                          // events before it are missing; the worker is repaired or resynchronized
	Ignored                      // the feed has a gap, and this record does not close it
	Stale                        // from an earlier epoch of the worker
)

var outcomeNames = [...]string{"outcome?", "apply", "duplicate", "gap", "ignored", "stale"}

// String returns the outcome's name as metrics and logs print it.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return outcomeNames[0]
}

// FeedVerdict says what to do with a record. The caller executes the set parts in this order: Drop, Hide,
// Lost, Apply, Show, Resync. Dropping a worker also ends hiding it.
//
// The tracker's state of a worker holds for its entries in the index: while the feed is live they are exactly
// what the worker had published up to the last event applied; while it is repairing they are that too, but
// hidden; while resyncing there are none.
type FeedVerdict struct {
	Outcome Outcome
	// Skip is the number of leading events which must not be applied; it is valid for Apply only.
	Skip int
	// Drop says to remove all entries of the worker from the index.
	Drop bool
	// Hide says to exclude the worker from answers, whether or not it has entries, until Show: its present
	// holdings are unknown, but its entries are kept and updated.
	Hide, Show bool
	// Partial says that events after the applied ones are known to be missing: state outside the index, which
	// is not hidden with the worker, may be outdated too.
	Partial bool
	// Lost says that missing events will not arrive: the worker describes its cache instead, or started
	// another epoch. State which only those events would have reported, and which is not part of a
	// description, is unknown.
	Lost bool
	// Resync says to send Request to the worker.
	Resync  bool
	Request ResyncRequest
}

// Tracker follows the feeds of all workers. It does not decide which workers exist: the caller passes records
// of existing workers, and calls RemoveWorker when one is removed. A Tracker has one owner: its methods must
// not run concurrently.
//
//	state      event                                      next       verdict
//	any        record of an earlier epoch                 as before  Stale
//	any        later epoch, record with a Cleared event   Live       Apply, Drop
//	any        later epoch, record without one            Repairing  Gap, Drop, Hide, Resync
//	any        later epoch, ExpectWorker                  Repairing  Drop, Hide
//	Live       the next events                            Live       Apply
//	Live       events which were applied before           Live       Duplicate
//	Live       later events, or SuspectLoss               Repairing  Gap, Hide, Resync
//	Repairing  all missing events                         Live       Apply, Show
//	Repairing  the first missing events                   Repairing  Apply, Partial
//	Repairing  a Cleared event among later ones           Live       Apply, Lost, Show
//	Repairing  other later events                         Repairing  Ignored, Resync if due
//	Repairing  no progress for RepairTimeout              Resyncing  GiveUpRepairs returns the worker
//	Resyncing  a Cleared event after all known events     Live       Apply
//	Resyncing  other events                               Resyncing  Ignored, Resync if due
//	any        RejectForeign                              Resyncing  Gap, Drop, Resync
//
// A Resync which is not due yet, or was lost, comes from DueRequests at Deadline.
type Tracker struct {
	cfg    Config
	feeds  []workerFeed // ascending by worker
	totals Totals
	// sent counts the requests since opened; it restarts after MinBackoff.
	sent   int
	opened kv.Mono
	// held says that no requests are sent.
	held bool
}

// workerFeed is the state of one worker's feed.
type workerFeed struct {
	worker kv.Worker
	epoch  uint64
	state  FeedState
	// next is the number after the last event applied: the first wanted event. seen is the number after the
	// last known event; it equals next in a live feed. While resyncing both are the least number of a Cleared
	// event which ends it.
	next, seen uint64
	// lastProgress is when the repair started, was first requested or last received events; requested says
	// that it was requested.
	lastProgress kv.Mono
	requested    bool
	// hidden says that Hide was returned and Show not yet; lost says that a loss was counted and not yet
	// repaired.
	hidden, lost  bool
	repairBackoff requestBackoff // for missing events
	resyncBackoff requestBackoff // for the whole cache

	reports reportState
	health  Health // the counters and LastEvent only
}

// NewTracker returns a Tracker without workers.
func NewTracker(cfg Config) (*Tracker, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Tracker{cfg: cfg}, nil
}

// AcceptRecord judges a record which arrived at now. Time must not go backwards between calls.
func (t *Tracker) AcceptRecord(now kv.Mono, r Numbered) FeedVerdict {
	return t.acceptArrival(now, &arrival{r.Span(), r})
}

func (t *Tracker) acceptArrival(now kv.Mono, r *arrival) FeedVerdict {
	at, known := t.findFeed(r.Worker)
	if !known {
		t.feeds = slices.Insert(t.feeds, at, newWorkerFeed(now, r.Worker))
	}
	f := &t.feeds[at]
	switch {
	case r.Epoch < f.epoch:
		f.health.Stale++
		return FeedVerdict{Outcome: Stale}
	case !known || r.Epoch > f.epoch:
		lost := f.lost
		f.startEpoch(now, r.Epoch)
		v := t.acceptFirst(now, f, r, known)
		v.Lost = v.Lost || lost
		return v
	case f.state == Resyncing:
		return t.acceptResyncing(now, f, r)
	case r.First > f.next || f.next == 1 && !r.isEpochStart():
		return t.acceptAhead(now, f, r)
	case r.nextSeq() <= f.next && (r.Count > 0 || r.First < f.next):
		f.health.Duplicates++
		return FeedVerdict{Outcome: Duplicate}
	case r.Count == 0 && f.next < f.seen:
		f.health.Ignored++ // sent before the events which are known to be missing
		return FeedVerdict{Outcome: Ignored}
	}
	lost := f.lost
	v := t.applyFrom(now, f, r, int(f.next-r.First))
	if lost && !f.lost {
		f.health.Repaired++
		t.totals.Repaired++
	}
	return v
}

// acceptFirst judges the first record of an epoch. drop says whether the index may have entries of an earlier
// one.
func (t *Tracker) acceptFirst(now kv.Mono, f *workerFeed, r *arrival, drop bool) FeedVerdict {
	if from, ok := r.findCleared(f.next); ok {
		v := t.applyFrom(now, f, r, from)
		v.Drop, v.Lost = drop, r.First+uint64(from) > 1
		return v
	}
	t.countLoss(f)
	f.seen = max(f.seen, r.nextSeq())
	f.hidden = true
	v := t.withRequest(now, f, Gap)
	v.Drop, v.Hide = true, true
	return v
}

// acceptAhead judges a record which does not continue the applied events: it is applied from its Cleared
// event, or else the missing events are requested.
func (t *Tracker) acceptAhead(now kv.Mono, f *workerFeed, r *arrival) FeedVerdict {
	if from, ok := r.findCleared(f.next); ok {
		if !f.lost { // also if it was only suspected
			t.countLoss(f)
		}
		return t.applyDescription(now, f, r, from)
	}
	f.seen = max(f.seen, r.nextSeq())
	if f.state == Repairing {
		f.health.Ignored++
		return t.withRequest(now, f, Ignored)
	}
	t.countLoss(f)
	return t.startRepair(now, f, Gap)
}

// acceptResyncing judges a record while the index has no entries of the worker. A Cleared event older than an
// event already seen does not count: later events were skipped, so it would only start the next repair.
func (t *Tracker) acceptResyncing(now kv.Mono, f *workerFeed, r *arrival) FeedVerdict {
	if from, ok := r.findCleared(f.seen); ok {
		return t.applyDescription(now, f, r, from)
	}
	f.seen = max(f.seen, r.nextSeq())
	f.next = f.seen
	f.health.Ignored++
	return t.withRequest(now, f, Ignored)
}

// applyDescription applies a record from its Cleared event.
func (t *Tracker) applyDescription(now kv.Mono, f *workerFeed, r *arrival, from int) FeedVerdict {
	lost := f.lost
	v := t.applyFrom(now, f, r, from)
	v.Lost = lost
	if f.state == Live {
		f.health.Described++
		t.totals.Described++
	}
	return v
}

// applyFrom applies a record from one of its events on; nothing is then missing up to its end. Events after
// it may still be missing.
func (t *Tracker) applyFrom(now kv.Mono, f *workerFeed, r *arrival, from int) FeedVerdict {
	f.next = r.nextSeq()
	f.seen = max(f.seen, f.next)
	f.health.Applied += uint64(r.Count - from)
	f.health.LastEvent = now
	f.lastProgress = now
	if f.state == Repairing {
		f.repairBackoff.resetWait(now, &t.cfg)
	}
	v := FeedVerdict{Outcome: Apply, Skip: from}
	if v.Partial = f.next < f.seen; v.Partial {
		return v
	}
	f.state, f.lost = Live, false
	v.Show, f.hidden = f.hidden, false
	return v
}

// countLoss counts a loss.
func (t *Tracker) countLoss(f *workerFeed) {
	f.health.Gaps++
	t.totals.Gaps++
	f.lost = true
}

// startEpoch starts following a new epoch of the worker: all of its events are wanted.
func (f *workerFeed) startEpoch(now kv.Mono, epoch uint64) {
	f.requested = false
	f.epoch, f.state, f.lost, f.next, f.seen, f.lastProgress, f.reports = epoch, Repairing, false, 1, 1, now, reportState{}
}

func newWorkerFeed(now kv.Mono, w kv.Worker) workerFeed {
	return workerFeed{worker: w, repairBackoff: requestBackoff{asked: now}, resyncBackoff: requestBackoff{asked: now}}
}

func (t *Tracker) findFeed(w kv.Worker) (at int, found bool) {
	return slices.BinarySearchFunc(t.feeds, w, func(f workerFeed, w kv.Worker) int { return f.worker.Compare(w) })
}
