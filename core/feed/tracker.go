package feed

import (
	"errors"
	"slices"
	"time"

	"penstock/core/kv"
)

// Config is a Tracker's policy.
type Config struct {
	// MinBackoff is the wait between the first and the second request to a
	// worker to describe its cache again. Each further wait is twice as long, up
	// to MaxBackoff. A worker that was left alone for MaxBackoff starts over.
	MinBackoff, MaxBackoff time.Duration
	// Stuck is how long a feed may stand still behind what its worker says it has
	// published, or be ahead of that, see [Tracker.Compare].
	Stuck time.Duration
}

// EnsureDefaults fills in what is not set: 200 ms, 30 s and 5 s.
func (c *Config) EnsureDefaults() {
	if c.MinBackoff == 0 {
		c.MinBackoff = 200 * time.Millisecond
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 30 * time.Second
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
// order: Drop, then Apply, then Resync.
type Verdict struct {
	Outcome Outcome
	// Skip is the number of leading events that must not be applied; it means
	// something for Apply only.
	Skip int
	// Drop asks for all entries of the worker to leave the index.
	Drop bool
	// Resync asks for the worker to be told to describe its cache again: to send
	// a Cleared event and Stored events for all that it holds, in its numbering.
	Resync bool
}

// Tracker follows the feeds of all workers. Who is a worker is not its affair:
// the caller passes records of workers that it believes to exist, and calls
// Forget when one is gone. A Tracker has one owner: no method may run beside
// another one.
type Tracker struct {
	cfg   Config
	feeds []follower // ascending by worker
}

// follower is what is known of one worker's feed.
type follower struct {
	worker kv.Worker
	epoch  uint64
	state  State
	// next is, when live, the sequence number that comes next; in doubt, the
	// least one that a Cleared event must have to end it.
	next uint64
	// asked is when a resync was asked for last, wait how long the next request
	// waits from then; before the first, the present and 0.
	asked kv.Mono
	wait  time.Duration

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
		t.feeds = slices.Insert(t.feeds, at, follower{worker: r.Worker, epoch: r.Epoch, asked: now})
	}
	f := &t.feeds[at]
	switch {
	case r.Epoch < f.epoch:
		f.health.Stale++
		return Verdict{Outcome: Stale}
	case !known || r.Epoch > f.epoch:
		f.begin(r.Epoch)
		return t.orGap(now, f, r, known)
	case f.state == Doubt:
		return t.inDoubt(now, f, r)
	case r.First > f.next:
		return t.orGap(now, f, r, false)
	case r.next() <= f.next && (len(r.Events) > 0 || r.First < f.next):
		f.health.Duplicates++
		return Verdict{Outcome: Duplicate}
	}
	return f.apply(now, r, int(f.next-r.First), false)
}

// orGap judges a record that does not continue what was applied: it is applied
// from its Cleared event, or else the worker is in doubt. drop says whether
// entries of an earlier life may be left in the index.
func (t *Tracker) orGap(now kv.Mono, f *follower, r *Record, drop bool) Verdict {
	if from, ok := barrier(r, f.next); ok {
		if f.state == Live {
			f.health.Gaps++
		}
		return f.apply(now, r, from, drop)
	}
	f.health.Gaps++
	f.state = Doubt
	f.next = r.next()
	return Verdict{Outcome: Gap, Drop: true, Resync: t.ask(now, f)}
}

// inDoubt judges a record while the worker's entries are out of the index. A
// Cleared event older than something seen already would only lead to the next
// gap, so it does not count.
func (t *Tracker) inDoubt(now kv.Mono, f *follower, r *Record) Verdict {
	if from, ok := barrier(r, f.next); ok {
		return f.apply(now, r, from, false)
	}
	f.health.Ignored++
	f.next = max(f.next, r.next())
	return Verdict{Outcome: Ignored, Resync: t.ask(now, f)}
}

func (f *follower) apply(now kv.Mono, r *Record, from int, drop bool) Verdict {
	f.state = Live
	f.next = r.next()
	f.health.Applied += uint64(len(r.Events) - from)
	f.health.LastEvent = now
	return Verdict{Outcome: Apply, Skip: from, Drop: drop}
}

// begin starts following a life of the worker of which nothing was heard.
func (f *follower) begin(epoch uint64) {
	f.epoch, f.state, f.next, f.pace = epoch, Doubt, 1, pace{}
}

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

func (t *Tracker) find(w kv.Worker) (at int, found bool) {
	return slices.BinarySearchFunc(t.feeds, w, func(f follower, w kv.Worker) int { return f.worker.Compare(w) })
}
