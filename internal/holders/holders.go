// Package holders knows which workers hold which embeddings: it follows the events of their embedding caches on the
// event plane, and asks workers for events that it lacks.
package holders

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/embindex"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
)

// Config is the policy of a Directory.
type Config struct {
	// Namespace and Component are the workers'.
	Namespace, Component string
	Index                embindex.Config
	Feed                 kvfeed.Config
	// FollowReports makes Run take the workers' load reports from the event plane, for an owner which does not pass
	// them on.
	FollowReports bool
	// Grace is how long the entries of a worker are kept which SetWorkers did not name: its events may arrive before
	// its registration.
	Grace time.Duration
}

// maxUnlisted bounds the workers whose events are followed although SetWorkers did not name them.
const maxUnlisted = 4096

const (
	// upkeep is the interval of the periodic work.
	upkeep = time.Second
	// settle is how long after a worker's registration its events may be missing.
	settle = 2 * time.Second
)

// Worker is a worker which publishes the events of its embedding cache.
type Worker struct {
	kv.Worker
	Epoch uint64
}

// Directory is what one process knows of all embedding caches. It is safe for concurrent use.
type Directory struct {
	cfg      Config
	bus      bus.Bus
	log      *slog.Logger
	throttle *obs.Throttle
	started  time.Time // of its monotonic time
	wake     chan struct{}

	mu struct {
		sync.RWMutex
		index   *embindex.Index
		tracker *kvfeed.Tracker
		// listed are the workers of SetWorkers, unlisted others whose events arrived, and since when.
		listed   map[kv.Worker]*listedWorker
		unlisted map[kv.Worker]kv.Mono
		// caughtUp says that the event plane has delivered its backlog.
		caughtUp  bool
		asked     []kvfeed.ResyncRequest // to be sent
		givenUp   []kv.Worker            // scratch
		records   uint64
		malformed uint64
	}
}

// listedWorker is a worker of SetWorkers.
type listedWorker struct {
	epoch uint64
	since kv.Mono // when it was first listed in this epoch
	// report is the position of its feed by its last load report.
	report kvfeed.PublishReport
}

// New returns an index which knows nothing until Run.
func New(cfg Config, b bus.Bus, log *slog.Logger) (*Directory, error) {
	cfg.Namespace, cfg.Component = cmp.Or(cfg.Namespace, "penstock"), cmp.Or(cfg.Component, "backend")
	cfg.Grace = cmp.Or(cfg.Grace, 30*time.Second)
	log = obs.Component(log, "holders")
	x := &Directory{cfg: cfg, bus: b, log: log, throttle: obs.NewThrottle(log, 10*time.Second), started: time.Now(), wake: make(chan struct{}, 1)}
	var err error
	if x.mu.index, err = embindex.New(cfg.Index); err != nil {
		return nil, err
	}
	policy := cfg.Feed
	policy.CanReach = func(w kv.Worker) bool { return x.mu.listed[w] != nil } // with mu held
	if x.mu.tracker, err = kvfeed.NewTracker(policy); err != nil {
		return nil, err
	}
	x.mu.tracker.HoldRequests()
	x.mu.listed, x.mu.unlisted = map[kv.Worker]*listedWorker{}, map[kv.Worker]kv.Mono{}
	return x, nil
}

// AppendHolders appends the workers which hold an entry, see embcache.EventKey, to dst, ascending.
func (x *Directory) AppendHolders(dst []kv.Worker, key *kv.Digest) []kv.Worker {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.mu.index.AppendHolders(dst, key)
}

// Holders returns the workers which hold the rows of a key, ascending.
func (x *Directory) Holders(key *embcache.RowKey) (ids []kv.WorkerID) {
	digest := key.EventKey()
	for _, w := range x.AppendHolders(nil, &digest) {
		ids = append(ids, w.ID) // its rank is 0: a worker has one embedding cache
	}
	return ids
}

// Stats are figures of a Directory.
type Stats struct {
	embindex.Stats
	// States counts the feeds by state.
	States [kvfeed.Live + 1]int
	kvfeed.Totals
	// Records counts the records that arrived, Malformed the unreadable ones.
	Records, Malformed uint64
}

// Stats returns the figures of now.
func (x *Directory) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := Stats{Stats: x.mu.index.Stats(), Totals: x.mu.tracker.Totals(), Records: x.mu.records, Malformed: x.mu.malformed}
	for w := range x.mu.listed {
		if h, known := x.mu.tracker.HealthOf(w); known {
			s.States[h.State]++
		}
	}
	return s
}

// Feed describes the feed of a worker.
type Feed struct {
	kvfeed.Health
	// Held is how many entries it is known to hold, though its feed may be under repair.
	Held int
}

// Feeds describes all feeds, by worker, and the time by which LastEvent and Behind of their Health count.
func (x *Directory) Feeds() (feeds []Feed, now kv.Mono) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, h := range x.mu.tracker.AppendHealth(nil) {
		feeds = append(feeds, Feed{h, x.mu.index.HeldBy(h.Worker)})
	}
	return feeds, x.now()
}

// SetWorkers replaces the set of workers which publish. What others held is forgotten at once.
func (x *Directory) SetWorkers(workers []Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now, old := x.now(), x.mu.listed
	x.mu.listed = make(map[kv.Worker]*listedWorker, len(workers))
	for _, w := range workers {
		was := old[w.Worker]
		if was != nil && was.epoch == w.Epoch {
			x.mu.listed[w.Worker] = was
			continue
		}
		x.mu.listed[w.Worker] = &listedWorker{epoch: w.Epoch, since: now}
		delete(x.mu.unlisted, w.Worker)
		// Records of this epoch may have come before the registration; nothing of an older one holds.
		if h, fed := x.mu.tracker.HealthOf(w.Worker); fed && h.Epoch < w.Epoch {
			x.forgetLocked(w.Worker)
		}
	}
	for w := range old { // the order does not matter
		if x.mu.listed[w] == nil {
			x.forgetLocked(w)
		}
	}
	x.wakeMaintainer()
}

// RecordReport takes a worker's load report, which says how far its feed is.
func (x *Directory) RecordReport(r *engine.LoadReport) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.mu.listed[kv.Worker{ID: r.WorkerID, Rank: r.Rank}]; l != nil && l.epoch == r.Epoch && r.EmbeddingNext > 0 {
		l.report = kvfeed.PublishReport{Epoch: r.Epoch, Next: r.EmbeddingNext, Attempted: r.EmbeddingAttempted, At: x.now()}
	}
}

// now is the time for the core; it is read with mu held, so that it does not go backwards.
func (x *Directory) now() kv.Mono { return kv.Mono(time.Since(x.started)) }

func (x *Directory) wakeMaintainer() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// forgetLocked drops all state of a worker.
func (x *Directory) forgetLocked(w kv.Worker) {
	x.mu.tracker.RemoveWorker(w)
	x.mu.index.DropWorker(w)
	delete(x.mu.unlisted, w)
}

// acceptRecord judges a record and applies the new part of it.
func (x *Directory) acceptRecord(rec *embfeed.EventRecord) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.records++
	now, w := x.now(), rec.Worker
	l := x.mu.listed[w]
	switch {
	case l != nil && rec.Epoch < l.epoch:
		return // the tracker may not know the newer epoch
	case l == nil && !x.admitUnlistedLocked(now, w):
		return
	}
	x.obeyLocked(w, rec.Events, x.mu.tracker.AcceptRecord(now, rec))
}

// admitUnlistedLocked reports whether the records of a worker which is not listed are followed.
func (x *Directory) admitUnlistedLocked(now kv.Mono, w kv.Worker) bool {
	if _, known := x.mu.unlisted[w]; known {
		return true
	}
	if len(x.mu.unlisted) >= maxUnlisted {
		return false
	}
	x.mu.unlisted[w] = now
	return true
}

// obeyLocked does what the tracker says about events.
func (x *Directory) obeyLocked(w kv.Worker, events []embfeed.Event, v kvfeed.FeedVerdict) {
	if v.Drop {
		x.mu.index.DropWorker(w)
	}
	if v.Hide {
		x.mu.index.HideWorker(w)
	}
	if v.Outcome == kvfeed.Apply {
		for i := range events[v.Skip:] {
			switch ev := &events[v.Skip+i]; ev.Kind {
			case embfeed.Added:
				x.mu.index.Add(w, ev.Key)
			case embfeed.Cleared:
				x.mu.index.ClearWorker(w)
			default:
				x.mu.index.Remove(w, ev.Key)
			}
		}
	}
	if v.Show {
		x.mu.index.ShowWorker(w)
	}
	if v.Resync {
		x.mu.asked = append(x.mu.asked, v.Request)
		x.wakeMaintainer()
	}
}

// suspectAll hides the entries of all workers until each has said that nothing is missing, or sent what is.
func (x *Directory) suspectAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now()
	for _, h := range x.mu.tracker.AppendHealth(nil) {
		x.obeyLocked(h.Worker, nil, x.mu.tracker.SuspectLoss(now, h.Worker))
	}
	x.wakeMaintainer()
}

// markCaughtUp records that the event plane has delivered its backlog: what is missing is asked for from now on.
func (x *Directory) markCaughtUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.tracker.ReleaseRequests()
	x.mu.caughtUp = true
	x.wakeMaintainer()
}

// checkFeeds does the periodic work: it forgets workers which were never listed, expects the events of the others, and
// compares their reports with what arrived.
func (x *Directory) checkFeeds() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now()
	for w, since := range x.mu.unlisted { // the order does not matter
		if now.Sub(since) >= x.cfg.Grace {
			x.forgetLocked(w)
		}
	}
	if !x.mu.caughtUp {
		return
	}
	for w, l := range x.mu.listed { // the order does not matter
		if now.Sub(l.since) < settle {
			continue
		}
		if h, fed := x.mu.tracker.HealthOf(w); fed && h.Epoch > l.epoch && now.Sub(l.since) >= x.cfg.Grace {
			x.forgetLocked(w) // the later epoch is the older one, from before its clock was set back
		}
		x.obeyLocked(w, nil, x.mu.tracker.ExpectWorker(now, w, l.epoch))
		finding, v := x.mu.tracker.CompareReport(now, w, l.report)
		x.obeyLocked(w, nil, v)
		if finding == kvfeed.ForeignEvents {
			x.log.Warn("events of an embedding cache are ahead of what their worker has published; does another process publish in its name?", "worker", uint64(w.ID))
		}
	}
}

// dueRequests appends the requests to send now to dst. wait is the time until more may be due.
func (x *Directory) dueRequests(dst []kvfeed.ResyncRequest) (requests []kvfeed.ResyncRequest, wait time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now()
	x.mu.givenUp = x.mu.tracker.GiveUpRepairs(now, x.mu.givenUp[:0])
	for _, w := range x.mu.givenUp {
		x.mu.index.DropWorker(w)
	}
	all := x.mu.tracker.DueRequests(now, x.mu.asked)
	for _, q := range all {
		if x.mu.listed[q.Worker] != nil { // it may have gone since
			dst = append(dst, q)
		}
	}
	x.mu.asked = all[:0]
	wait = upkeep
	if next, ok := x.mu.tracker.Deadline(); ok {
		wait = min(max(next.Sub(now), time.Millisecond), upkeep)
	}
	return dst, wait
}

// Check returns the first invariant that does not hold.
func (x *Directory) Check() error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if err := x.mu.tracker.Check(); err != nil {
		return err
	}
	return x.mu.index.Check()
}
