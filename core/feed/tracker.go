package feed

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// Config is a Tracker's policy.
type Config struct {
	// MinBackoff is the wait between the first and the second request to a
	// worker, for what is missing or for its whole cache. Each further wait is
	// twice as long, up to MaxBackoff. A worker that was left alone for MaxBackoff
	// starts over.
	MinBackoff, MaxBackoff time.Duration
	// Asks is how many requests may be sent within MinBackoff, to all workers: when many
	// feeds are in doubt at once, as after the event plane lost what it kept, their answers
	// come one after another and not in one storm.
	Asks int
	// Repair is how long a repair may stand still before it is given up: the worker's
	// entries are dropped then, and its whole cache is asked for. What waits for a
	// repair is kept but not shown, so patience costs memory only. It begins when the
	// worker is asked.
	Repair time.Duration
	// Reach says whether a worker can be asked now; nil says that all can. One that
	// cannot be costs no request, begins no wait and is not given up: [Tracker.Due] names
	// it once it can be. It is called within the methods of Tracker.
	Reach func(kv.Worker) bool
	// Stuck is how long a feed may stand still behind what its worker says it has
	// published, or be ahead of that, see [Tracker.Compare].
	Stuck time.Duration
}

// EnsureDefaults fills in what is not set: 200 ms, 30 s, 64, 5 s and 5 s.
func (c *Config) EnsureDefaults() {
	if c.MinBackoff == 0 {
		c.MinBackoff = 200 * time.Millisecond
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 30 * time.Second
	}
	if c.Asks == 0 {
		c.Asks = 64
	}
	if c.Repair == 0 {
		c.Repair = 5 * time.Second
	}
	if c.Stuck == 0 {
		c.Stuck = 5 * time.Second
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.MinBackoff < 0 {
		errs = append(errs, errors.New("feed: min backoff must be positive"))
	}
	if c.MaxBackoff < c.MinBackoff {
		errs = append(errs, errors.New("feed: max backoff must not be less than min backoff"))
	}
	if c.Asks < 1 {
		errs = append(errs, fmt.Errorf("feed: at least 1 request must be possible at a time, not %d", c.Asks))
	}
	if c.Repair < 0 {
		errs = append(errs, errors.New("feed: the time after which a repair is given up must be positive"))
	}
	if c.Stuck < 0 {
		errs = append(errs, errors.New("feed: the time after which a feed is stuck must be positive"))
	}
	return errors.Join(errs...)
}

// Outcome is what a Tracker makes of a record.
type Outcome uint8

// The outcomes. The zero value is none of them.
const (
	Apply     Outcome = iota + 1 // apply Events[Skip:] to the index
	Duplicate                    // nothing in it is new
	Gap                          // events before it are missing; the worker is in doubt from now on
	Ignored                      // the worker is in doubt, and this does not end it
	Stale                        // of an earlier life of the worker
)

var outcomeNames = [...]string{"outcome?", "apply", "duplicate", "gap", "ignored", "stale"}

// String returns the outcome's name as metrics and logs print it.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return outcomeNames[0]
}

// Verdict says what to do with a record. The parts that are set are done in this
// order: Drop, Hide, Lost, Apply, Show, Resync. A worker that is dropped is no longer hidden.
//
// What the tracker says of a worker holds for what the index has of it: while the
// feed is live the entries are exactly what the worker had told up to the last event
// applied; while it is repaired they are that too, but hidden; in doubt there are none.
type Verdict struct {
	Outcome Outcome
	// Skip is the number of leading events that must not be applied; it means
	// something for Apply only.
	Skip int
	// Drop asks for all entries of the worker to leave the index.
	Drop bool
	// Hide asks for the worker to be kept out of answers, whether or not it has
	// entries, until Show: what it holds is not known, though its entries are kept
	// and applied to.
	Hide, Show bool
	// Partial says that events are known to be missing behind those that are applied: what
	// they say may not hold any more, in what is not hidden with the worker either.
	Partial bool
	// Lost says that events which were missing will not come: the worker describes its
	// cache in their place, or began another life. What no description is about, and only those
	// events would have told, is not known any more.
	Lost bool
	// Resync asks for Request to be sent to the worker.
	Resync  bool
	Request Request
}

// Tracker follows the feeds of all workers. Who is a worker is not its affair:
// the caller passes records of workers that it believes to exist, and calls
// Forget when one is gone. A Tracker has one owner: no method may run beside
// another one.
type Tracker struct {
	cfg    Config
	feeds  []follower // ascending by worker
	totals Totals
	// sent counts the requests since opened, which begins anew after MinBackoff.
	sent   int
	opened kv.Mono
	// held says that nothing is asked for.
	held bool
}

// follower is what is known of one worker's feed.
type follower struct {
	worker kv.Worker
	epoch  uint64
	state  State
	// next is the number after the last event applied, from which on events are
	// wanted. seen is the number after the last event that is known of: equal in a live
	// feed. In doubt both are the least number that a Cleared event must have to end it.
	next, seen uint64
	// moved is when the repair began, was asked for first or brought something last; wanted
	// says that it was asked for.
	moved  kv.Mono
	wanted bool
	// hidden says that Hide was asked for and Show not yet, lost that a loss was counted
	// and is not made good.
	hidden, lost bool
	repair       pacing // of requests for what is missing
	whole        pacing // of requests for the whole cache

	pace   pace
	health Health // the counters and LastEvent only
}

// NewTracker returns a Tracker that knows no worker.
func NewTracker(cfg Config) (*Tracker, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Tracker{cfg: cfg}, nil
}

// Accept judges a record that arrived at now. Time must not go backwards
// between calls.
func (t *Tracker) Accept(now kv.Mono, r *Record) Verdict {
	at, known := t.find(r.Worker)
	if !known {
		t.feeds = slices.Insert(t.feeds, at, newFollower(now, r.Worker))
	}
	f := &t.feeds[at]
	switch {
	case r.Epoch < f.epoch:
		f.health.Stale++
		return Verdict{Outcome: Stale}
	case !known || r.Epoch > f.epoch:
		lost := f.lost
		f.begin(now, r.Epoch)
		v := t.first(now, f, r, known)
		v.Lost = v.Lost || lost
		return v
	case f.state == Doubt:
		return t.inDoubt(now, f, r)
	case r.First > f.next || f.next == 1 && !opens(r):
		return t.ahead(now, f, r)
	case r.next() <= f.next && (len(r.Events) > 0 || r.First < f.next):
		f.health.Duplicates++
		return Verdict{Outcome: Duplicate}
	case len(r.Events) == 0 && f.next < f.seen:
		f.health.Ignored++ // a sign of life from before what is known to be missing
		return Verdict{Outcome: Ignored}
	}
	lost := f.lost
	v := t.apply(now, f, r, int(f.next-r.First))
	if lost && !f.lost {
		f.health.Repaired++
		t.totals.Repaired++
	}
	return v
}

// first judges the first record of a life. drop says whether entries of an earlier
// one may be left in the index.
func (t *Tracker) first(now kv.Mono, f *follower, r *Record, drop bool) Verdict {
	if from, ok := barrier(r, f.next); ok {
		v := t.apply(now, f, r, from)
		v.Drop, v.Lost = drop, r.First+uint64(from) > 1
		return v
	}
	t.loss(f)
	f.seen = max(f.seen, r.next())
	f.hidden = true
	v := t.request(now, f, Gap)
	v.Drop, v.Hide = true, true
	return v
}

// ahead judges a record that does not continue what was applied: it is applied from its
// Cleared event, or else what is missing before it is wanted.
func (t *Tracker) ahead(now kv.Mono, f *follower, r *Record) Verdict {
	if from, ok := barrier(r, f.next); ok {
		if !f.lost { // also if it was only feared
			t.loss(f)
		}
		return t.described(now, f, r, from)
	}
	f.seen = max(f.seen, r.next())
	if f.state == Repair {
		f.health.Ignored++
		return t.request(now, f, Ignored)
	}
	t.loss(f)
	return t.doubt(now, f, Gap)
}

// inDoubt judges a record while the worker's entries are out of the index. A
// Cleared event older than something seen already does not count: what came after it was
// passed over, so that it would only begin the next repair.
func (t *Tracker) inDoubt(now kv.Mono, f *follower, r *Record) Verdict {
	if from, ok := barrier(r, f.seen); ok {
		return t.described(now, f, r, from)
	}
	f.seen = max(f.seen, r.next())
	f.next = f.seen
	f.health.Ignored++
	return t.request(now, f, Ignored)
}

// described applies a record from its Cleared event.
func (t *Tracker) described(now kv.Mono, f *follower, r *Record, from int) Verdict {
	lost := f.lost
	v := t.apply(now, f, r, from)
	v.Lost = lost
	if f.state == Live {
		f.health.Described++
		t.totals.Described++
	}
	return v
}

// apply has a record applied from one of its events on, after which nothing is missing
// before its end. What was seen beyond that may still be.
func (t *Tracker) apply(now kv.Mono, f *follower, r *Record, from int) Verdict {
	f.next = r.next()
	f.seen = max(f.seen, f.next)
	f.health.Applied += uint64(len(r.Events) - from)
	f.health.LastEvent = now
	f.moved = now
	if f.state == Repair {
		f.repair.progress(now, &t.cfg)
	}
	v := Verdict{Outcome: Apply, Skip: from}
	if v.Partial = f.next < f.seen; v.Partial {
		return v
	}
	f.state, f.lost = Live, false
	v.Show, f.hidden = f.hidden, false
	return v
}

// loss counts one.
func (t *Tracker) loss(f *follower) {
	f.health.Gaps++
	t.totals.Gaps++
	f.lost = true
}

// begin starts following a life of the worker of which nothing was heard: all of its
// events are wanted.
func (f *follower) begin(now kv.Mono, epoch uint64) {
	f.wanted = false
	f.epoch, f.state, f.lost, f.next, f.seen, f.moved, f.pace = epoch, Repair, false, 1, 1, now, pace{}
}

// opens reports whether r may be the first record of a life.
func opens(r *Record) bool { return len(r.Events) > 0 && r.Events[0].Kind == kv.Cleared }

// barrier returns the place of the first Cleared event of r whose sequence
// number is at least least.
func barrier(r *Record, least uint64) (from int, ok bool) {
	for i := range r.Events {
		if r.Events[i].Kind == kv.Cleared && r.First+uint64(i) >= least {
			return i, true
		}
	}
	return 0, false
}

func newFollower(now kv.Mono, w kv.Worker) follower {
	return follower{worker: w, repair: pacing{asked: now}, whole: pacing{asked: now}}
}

func (t *Tracker) find(w kv.Worker) (at int, found bool) {
	return slices.BinarySearchFunc(t.feeds, w, func(f follower, w kv.Worker) int { return f.worker.Compare(w) })
}
