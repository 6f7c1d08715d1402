package router

import (
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/poolindex"
	"penstock/core/prefix"
	"penstock/internal/engine"
)

// maxSources bounds the workers whose events are followed although discovery does not list them.
// Workers that it lists are always followed: otherwise anything that can publish could keep them out.
const maxSources = 16384

// cacheIndex is the router's knowledge of the workers' caches, built from the event plane. It has its
// own lock, so that decisions do not wait for bursts of events: a record is judged and applied under
// it, without access to the router's other state. setWorkers tells it which workers exist.
//
// It reads now under the lock, so that its time does not go backwards.
type cacheIndex struct {
	cfg *Config
	now func() kv.Mono
	// liveIndex is the index of content, for readers that run concurrently with its writer. It is replaced
	// when all content is replaced, as by a snapshot.
	liveIndex atomic.Pointer[prefix.Index]

	mu struct {
		sync.Mutex
		cacheContent                    // its sources are the workers that records came from
		effects      []poolindex.Effect // of the last change of pools, reused
		// lives holds the workers that discovery lists.
		lives map[kv.Worker]incarnation
		asked []kvfeed.ResyncRequest // to be sent
		given []kv.Worker            // scratch of dueRequests
		// place is the position of the last message of the event stream that was judged.
		place streamPosition
	}
}

// incarnation is what discovery says about a worker's cache.
type incarnation struct {
	epoch       uint64
	blockSize   int              // of its card
	publishes   bool             // cache events
	noReuse     bool             // its engine recomputes every prompt
	pool        *engine.CardPool // of its card
	foreignPool bool             // pool is other memory than the pool with its ID
	since       kv.Mono          // when it was first known
}

// eventSource is a worker whose events arrived, whether discovery lists it or not.
type eventSource struct {
	epoch     uint64  // the latest epoch of its records
	since     kv.Mono // of that epoch's first record
	blockSize int     // of its last record
	hasMoved  bool    // moves of blocks in pools may have been applied
	// anomalies counts the anomalies of its events; a healthy feed has few.
	anomalies eventAnomalies
}

// eventAnomalies counts contents of records which do not fit the index: orphans in events, the others
// in blocks.
type eventAnomalies struct{ orphans, duplicates, unknown uint64 }

// addDifference adds what happened between two counts of the index.
func (o *eventAnomalies) addDifference(before, after prefix.Counts) {
	o.orphans += after.Orphans - before.Orphans
	o.duplicates += after.Duplicates - before.Duplicates
	o.unknown += after.Unknown - before.Unknown
}

// initialize initializes c without workers.
func (c *cacheIndex) initialize(cfg *Config, now func() kv.Mono) (err error) {
	c.cfg, c.now = cfg, now
	c.mu.lives = map[kv.Worker]incarnation{}
	c.mu.cacheContent, err = c.newContent()
	c.liveIndex.Store(c.mu.index)
	return err
}

// matchPrefix looks a prompt up. It takes no lock.
func (c *cacheIndex) matchPrefix(m *prefix.Match, chain []kv.SeqHash, moe *kv.MoEQuery) {
	c.liveIndex.Load().Match(m, chain, moe)
}

// acceptRecord judges a record which was at a position of the event stream, and applies the new part of
// it. Records change the index nowhere else. ok is false if the worker's events are not used at all.
func (c *cacheIndex) acceptRecord(at streamPosition, rec *kvfeed.Record) (v kvfeed.FeedVerdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.place = at
	now, w := c.now(), rec.Worker
	l, known := c.mu.lives[w]
	if known && rec.Epoch < l.epoch {
		// Discovery knows a newer epoch, which the tracker may not know.
		return kvfeed.FeedVerdict{Outcome: kvfeed.Stale}, true
	}
	s := c.mu.sources[w]
	if s == nil {
		if !known && len(c.mu.sources) >= maxSources+len(c.mu.lives) {
			return v, false
		}
		s = &eventSource{epoch: rec.Epoch, since: now}
		c.mu.sources[w] = s
	}
	if rec.Epoch > s.epoch {
		s.epoch, s.since = rec.Epoch, now
		c.detachPoolsLocked(w)
	}
	s.blockSize = int(rec.BlockSize)
	if known && c.mismatchedSizeLocked(w) != 0 {
		c.dropWorkerLocked(w)
		return v, false
	}
	v = c.mu.tracker.AcceptRecord(now, rec)
	before := c.mu.index.Counts()
	c.applyVerdictLocked(now, w, rec.Events, v)
	s.anomalies.addDifference(before, c.mu.index.Counts())
	return v, true
}

// applyVerdictLocked does what the tracker asks for.
func (c *cacheIndex) applyVerdictLocked(now kv.Mono, w kv.Worker, events []kv.Event, v kvfeed.FeedVerdict) {
	if v.Drop {
		c.mu.index.DropWorker(w)
	}
	if v.Hide {
		c.mu.index.HideWorker(w)
	}
	c.doubtPoolsLocked(now, w, v)
	if v.Outcome == kvfeed.Apply {
		for i := range events[v.Skip:] {
			c.applyEventLocked(now, w, &events[v.Skip+i])
		}
	}
	if v.Partial {
		c.hidePooledLocked(now, w)
	}
	if v.Show {
		c.mu.index.ShowWorker(w)
		c.showPooledLocked(w)
	}
	if v.Resync {
		c.mu.asked = append(c.mu.asked, v.Request)
	}
}

// releaseRequests lets the tracker request what is missing: the event plane has delivered its backlog.
func (c *cacheIndex) releaseRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.tracker.ReleaseRequests()
}

// suspectAll hides the entries of all workers until each has confirmed that nothing is missing, or has
// sent what is.
func (c *cacheIndex) suspectAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, h := range c.mu.tracker.AppendHealth(nil) {
		c.applyVerdictLocked(now, h.Worker, nil, c.mu.tracker.SuspectLoss(now, h.Worker))
	}
}

// applyEventLocked applies one event.
func (c *cacheIndex) applyEventLocked(now kv.Mono, w kv.Worker, ev *kv.Event) {
	if ev.Kind == kv.Moved {
		c.applyMovedLocked(now, w, ev)
		return
	}
	c.mu.index.ApplyEvent(w, *ev)
	if ev.Kind == kv.Stored {
		c.resolvePooledLocked(ev)
	}
}

// dropWorkerLocked drops w's entries and its feed state, but keeps it as a source of records.
func (c *cacheIndex) dropWorkerLocked(w kv.Worker) {
	if h, _ := c.mu.tracker.HealthOf(w); h.Lagging { // its last events will not arrive
		c.hidePooledLocked(c.now(), w)
	}
	c.mu.tracker.RemoveWorker(w)
	c.mu.index.DropWorker(w)
	c.mu.pools.ForgetLost(w)
}

// forgetWorkerLocked drops all state of w.
func (c *cacheIndex) forgetWorkerLocked(w kv.Worker) {
	c.dropWorkerLocked(w)
	c.detachPoolsLocked(w)
	delete(c.mu.sources, w)
}

// mismatchedSizeLocked returns the block size of w's events if it differs from its card's, else 0.
func (c *cacheIndex) mismatchedSizeLocked(w kv.Worker) int {
	s, l := c.mu.sources[w], c.mu.lives[w]
	if s != nil && l.blockSize != 0 && s.blockSize != l.blockSize {
		return s.blockSize
	}
	return 0
}

// setWorkers takes over the set of workers from discovery and sets their times: a worker already known
// by the same epoch keeps its own.
func (c *cacheIndex) setWorkers(lives map[kv.Worker]incarnation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, old := c.now(), c.mu.lives
	c.mu.lives = lives
	for w, l := range lives { // the order does not matter, here and below
		was, known := old[w]
		l.since = now
		if known && was.epoch == l.epoch {
			l.since = was.since
		}
		lives[w] = l
		switch {
		case was.epoch != l.epoch && c.mayBeOlderLocked(w, l.epoch, known): // nothing of an older epoch holds
			c.forgetWorkerLocked(w)
		case c.mismatchedSizeLocked(w) != 0: // its events came before its card
			c.dropWorkerLocked(w)
		}
	}
	for w := range old {
		if _, stays := lives[w]; !stays {
			c.forgetWorkerLocked(w)
		}
	}
	c.separatePoolsLocked()
}

// mayBeOlderLocked reports whether the state of w may be of a life before epoch. State from records of
// epoch itself does not count. If discovery did not list w, late records of an old life may have
// arrived after w was forgotten.
func (c *cacheIndex) mayBeOlderLocked(w kv.Worker, epoch uint64, known bool) bool {
	h, fed := c.mu.tracker.HealthOf(w)
	return fed && h.Epoch < epoch || known && !fed
}

// dueRequests appends to dst the requests to send to workers now, for missing events or for whole
// caches. wait is the time until more may be due.
func (c *cacheIndex) dueRequests(dst []kvfeed.ResyncRequest) (requests []kvfeed.ResyncRequest, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.mu.given = c.mu.tracker.GiveUpRepairs(now, c.mu.given[:0])
	for _, w := range c.mu.given {
		c.mu.index.DropWorker(w)
	}
	all := c.mu.tracker.DueRequests(now, c.mu.asked)
	for _, q := range all {
		if c.mu.lives[q.Worker].publishes { // it may have been removed since
			dst = append(dst, q)
		}
	}
	c.mu.asked = all[:0]
	wait = upkeep
	if next, ok := c.mu.tracker.Deadline(); ok {
		wait = min(max(next.Sub(now), time.Millisecond), upkeep)
	}
	return dst, wait
}

// feedClaim is what a worker reports about its feed.
type feedClaim struct {
	worker kv.Worker
	kvfeed.PublishReport
}

// feedFinding is a claim that the feed contradicts.
type feedFinding struct {
	feedClaim
	kvfeed.Finding
	last uint64 // the last event that arrived
}

// checkFeeds does the periodic work once the event plane has delivered its backlog. claims are of the
// workers that exist. It returns the contradicted ones.
func (c *cacheIndex) checkFeeds(claims []feedClaim) (found []feedFinding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.forgetUnknownLocked(now)
	for _, said := range claims {
		w := said.worker
		l, known := c.mu.lives[w]
		if !known || !l.publishes || c.mismatchedSizeLocked(w) != 0 || now.Sub(l.since) < settle {
			continue
		}
		c.applyVerdictLocked(now, w, nil, c.mu.tracker.ExpectWorker(now, w, l.epoch))
		h, _ := c.mu.tracker.HealthOf(w)
		what, v := c.mu.tracker.CompareReport(now, w, said.PublishReport)
		if what != kvfeed.Agrees {
			c.applyVerdictLocked(now, w, nil, v)
			found = append(found, feedFinding{said, what, h.LastSeq})
		}
	}
	return found
}

// forgetUnknownLocked forgets the workers, and the later epochs of workers, whose events arrived but
// which discovery did not list within Grace. If discovery lists an earlier epoch of such a worker, that
// one is then asked for its cache: the later epoch may be the older one, from before the clock was set
// back.
func (c *cacheIndex) forgetUnknownLocked(now kv.Mono) {
	for w, s := range c.mu.sources { // the order does not matter
		if l, known := c.mu.lives[w]; (!known || l.epoch < s.epoch) && now.Sub(s.since) >= c.cfg.Grace {
			c.forgetWorkerLocked(w)
		}
	}
}
