package router

import (
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/residency"
)

// maxSources bounds the workers whose events are followed although discovery does not list them.
// Workers that it lists are always followed: otherwise anything that can publish could keep them out.
const maxSources = 16384

// cacheIndex is the router's knowledge of the workers' caches, built from the event plane. It has its
// own lock, so that decisions do not wait for bursts of events: a record is judged and applied under
// it, without access to the router's other state. setWorkers tells it which workers exist.
//
// It reads now under the lock, so that its time does not go backwards.
type cache struct {
	cfg *Config
	now func() kv.Mono
	// liveIndex is the index of content, for readers that run concurrently with its writer. It is replaced
	// when all content is replaced, as by a snapshot.
	live atomic.Pointer[prefix.Index]

	mu struct {
		sync.Mutex
		content                    // its sources are the workers that records came from
		effects []residency.Effect // of the last change of pools, reused
		// lives holds the workers that discovery lists.
		lives map[kv.Worker]life
		asked []feed.Request // to be sent
		given []kv.Worker    // scratch of dueRequests
		// place is the position of the last message of the event stream that was judged.
		place place
	}
}

// incarnation is what discovery says about a worker's cache.
type life struct {
	epoch     uint64
	blockSize int     // of its card
	publishes bool    // cache events
	noReuse   bool    // its engine recomputes every prompt
	since     kv.Mono // when it was first known
}

// eventSource is a worker whose events arrived, whether discovery lists it or not.
type source struct {
	epoch     uint64  // the latest epoch of its records
	since     kv.Mono // of that epoch's first record
	blockSize int     // of its last record
	// anomalies counts the anomalies of its events; a healthy feed has few.
	odd oddities
}

// eventAnomalies counts contents of records which do not fit the index: orphans in events, the others
// in blocks.
type oddities struct{ orphans, duplicates, unknown uint64 }

// addDifference adds what happened between two counts of the index.
func (o *oddities) since(before, after prefix.Counts) {
	o.orphans += after.Orphans - before.Orphans
	o.duplicates += after.Duplicates - before.Duplicates
	o.unknown += after.Unknown - before.Unknown
}

// initialize initializes c without workers.
func (c *cache) open(cfg *Config, now func() kv.Mono) (err error) {
	c.cfg, c.now = cfg, now
	c.mu.lives = map[kv.Worker]life{}
	c.mu.content, err = c.newContent()
	c.live.Store(c.mu.index)
	return err
}

// matchPrefix looks a prompt up. It takes no lock.
func (c *cache) match(m *prefix.Match, chain []kv.SeqHash, moe *kv.MoEQuery) {
	c.live.Load().Match(m, chain, moe)
}

// acceptRecord judges a record which was at a position of the event stream, and applies the new part of
// it. Records change the index nowhere else. ok is false if the worker's events are not used at all.
func (c *cache) accept(at place, rec *feed.Record) (v feed.Verdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.place = at
	now, w := c.now(), rec.Worker
	l, known := c.mu.lives[w]
	if known && rec.Epoch < l.epoch {
		// Discovery knows a newer epoch, which the tracker may not know.
		return feed.Verdict{Outcome: feed.Stale}, true
	}
	s := c.mu.sources[w]
	if s == nil {
		if !known && len(c.mu.sources) >= maxSources+len(c.mu.lives) {
			return v, false
		}
		s = &source{epoch: rec.Epoch, since: now}
		c.mu.sources[w] = s
	}
	if rec.Epoch > s.epoch {
		s.epoch, s.since = rec.Epoch, now
	}
	s.blockSize = int(rec.BlockSize)
	if known && c.mismatch(w) != 0 {
		c.drop(w)
		return v, false
	}
	v = c.mu.tracker.Accept(now, rec)
	before := c.mu.index.Counts()
	c.obey(now, w, rec.Events, v)
	s.odd.since(before, c.mu.index.Counts())
	return v, true
}

// applyVerdictLocked does what the tracker asks for.
func (c *cache) obey(now kv.Mono, w kv.Worker, events []kv.Event, v feed.Verdict) {
	if v.Drop {
		c.mu.index.Drop(w)
	}
	if v.Hide {
		c.mu.index.Hide(w)
	}
	c.doubtMoves(now, w, v)
	if v.Outcome == feed.Apply {
		for i := range events[v.Skip:] {
			c.applyEvent(now, w, &events[v.Skip+i])
		}
	}
	if v.Partial {
		c.doubt(now, w)
	}
	if v.Show {
		c.mu.index.Show(w)
		c.trustMoves(w)
	}
	if v.Resync {
		c.mu.asked = append(c.mu.asked, v.Request)
	}
}

// releaseRequests lets the tracker request what is missing: the event plane has delivered its backlog.
func (c *cache) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.tracker.Release()
}

// suspectAll hides the entries of all workers until each has confirmed that nothing is missing, or has
// sent what is.
func (c *cache) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, h := range c.mu.tracker.AppendHealth(nil) {
		c.obey(now, h.Worker, nil, c.mu.tracker.Suspect(now, h.Worker))
	}
}

// applyEventLocked applies one event.
func (c *cache) applyEvent(now kv.Mono, w kv.Worker, ev *kv.Event) {
	if ev.Kind == kv.Moved {
		c.moved(now, w, ev)
		return
	}
	c.mu.index.Apply(w, *ev)
	if ev.Kind == kv.Stored {
		c.stored(ev)
	}
}

// dropWorkerLocked drops w's entries and its feed state, but keeps it as a source of records.
func (c *cache) drop(w kv.Worker) {
	if h, _ := c.mu.tracker.Health(w); h.Lagging { // its last events will not arrive
		c.doubt(c.now(), w)
	}
	c.mu.tracker.Forget(w)
	c.mu.index.Drop(w)
	c.mu.pools.Lost(w)
}

// forgetWorkerLocked drops all state of w.
func (c *cache) forget(w kv.Worker) {
	c.drop(w)
	delete(c.mu.sources, w)
}

// mismatchedSizeLocked returns the block size of w's events if it differs from its card's, else 0.
func (c *cache) mismatch(w kv.Worker) int {
	s, l := c.mu.sources[w], c.mu.lives[w]
	if s != nil && l.blockSize != 0 && s.blockSize != l.blockSize {
		return s.blockSize
	}
	return 0
}

// setWorkers takes over the set of workers from discovery and sets their times: a worker already known
// by the same epoch keeps its own.
func (c *cache) know(lives map[kv.Worker]life) {
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
		case was.epoch != l.epoch && c.older(w, l.epoch, known): // nothing of an older epoch holds
			c.forget(w)
		case c.mismatch(w) != 0: // its events came before its card
			c.drop(w)
		}
	}
	for w := range old {
		if _, stays := lives[w]; !stays {
			c.forget(w)
		}
	}
}

// mayBeOlderLocked reports whether the state of w may be of a life before epoch. State from records of
// epoch itself does not count. If discovery did not list w, late records of an old life may have
// arrived after w was forgotten.
func (c *cache) older(w kv.Worker, epoch uint64, known bool) bool {
	h, fed := c.mu.tracker.Health(w)
	return fed && h.Epoch < epoch || known && !fed
}

// dueRequests appends to dst the requests to send to workers now, for missing events or for whole
// caches. wait is the time until more may be due.
func (c *cache) due(dst []feed.Request) (requests []feed.Request, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.mu.given = c.mu.tracker.GiveUp(now, c.mu.given[:0])
	for _, w := range c.mu.given {
		c.mu.index.Drop(w)
	}
	all := c.mu.tracker.Due(now, c.mu.asked)
	for _, q := range all {
		if c.mu.lives[q.Worker].publishes { // it may have been removed since
			dst = append(dst, q)
		}
	}
	c.mu.asked = all[:0]
	wait = upkeep
	if next, ok := c.mu.tracker.NextDue(); ok {
		wait = min(max(next.Sub(now), time.Millisecond), upkeep)
	}
	return dst, wait
}

// feedClaim is what a worker reports about its feed.
type claim struct {
	worker kv.Worker
	feed.Claim
}

// feedFinding is a claim that the feed contradicts.
type finding struct {
	claim
	feed.Finding
	last uint64 // the last event that arrived
}

// checkFeeds does the periodic work once the event plane has delivered its backlog. claims are of the
// workers that exist. It returns the contradicted ones.
func (c *cache) tend(claims []claim) (found []finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.dropStrangers(now)
	for _, said := range claims {
		w := said.worker
		l, known := c.mu.lives[w]
		if !known || !l.publishes || c.mismatch(w) != 0 || now.Sub(l.since) < settle {
			continue
		}
		c.obey(now, w, nil, c.mu.tracker.Expect(now, w, l.epoch))
		h, _ := c.mu.tracker.Health(w)
		what, v := c.mu.tracker.Compare(now, w, said.Claim)
		if what != feed.Agrees {
			c.obey(now, w, nil, v)
			found = append(found, finding{said, what, h.LastSeq})
		}
	}
	return found
}

// forgetUnknownLocked forgets the workers, and the later epochs of workers, whose events arrived but
// which discovery did not list within Grace. If discovery lists an earlier epoch of such a worker, that
// one is then asked for its cache: the later epoch may be the older one, from before the clock was set
// back.
func (c *cache) dropStrangers(now kv.Mono) {
	for w, s := range c.mu.sources { // the order does not matter
		if l, known := c.mu.lives[w]; (!known || l.epoch < s.epoch) && now.Sub(s.since) >= c.cfg.Grace {
			c.forget(w)
		}
	}
}
