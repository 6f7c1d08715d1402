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

// maxSources bounds the workers whose events are followed and are not known to discovery.
// Those that it knows are followed however many others there are: else whoever can
// publish could keep them out.
const maxSources = 16384

// cache is what the router knows of the workers' caches, which the event plane tells. It
// has a lock of its own, so that decisions do not wait for storms of events: a record is
// judged and applied under it, and nothing of the router's other state is looked at.
// What it must know of the workers that exist, it is told by know.
//
// Time in it is what now says under the lock, so that it does not go backwards.
type cache struct {
	cfg *Config
	now func() kv.Mono
	// live is the index of content, for those who read it beside its writer. It changes
	// when all that is known is replaced, as by a snapshot.
	live atomic.Pointer[prefix.Index]

	mu struct {
		sync.Mutex
		content                    // its sources are the workers that records came from
		effects []residency.Effect // of the last change of pools, reused
		// lives are those that discovery knows.
		lives map[kv.Worker]life
		asked []feed.Request // to be sent
		given []kv.Worker    // scratch of due
		// place is that of the last message of the event plane's stream that was
		// judged.
		place place
	}
}

// life is what discovery says of a worker, as far as its cache is concerned.
type life struct {
	epoch     uint64
	blockSize int     // of its card
	publishes bool    // cache events
	noReuse   bool    // its engine computes every prompt anew
	since     kv.Mono // when it was first known
}

// source is a worker whose events arrived, known to discovery or not.
type source struct {
	epoch     uint64  // the latest life that a record came from
	since     kv.Mono // of that life's first record
	blockSize int     // of its last record
	// odd is what its events had that a healthy feed has little of.
	odd oddities
}

// oddities counts what records say that does not fit what the index has, in blocks and, of
// orphans, events.
type oddities struct{ orphans, duplicates, unknown uint64 }

// since adds what happened between two counts of the index.
func (o *oddities) since(before, after prefix.Counts) {
	o.orphans += after.Orphans - before.Orphans
	o.duplicates += after.Duplicates - before.Duplicates
	o.unknown += after.Unknown - before.Unknown
}

// open makes c ready. It knows no worker.
func (c *cache) open(cfg *Config, now func() kv.Mono) (err error) {
	c.cfg, c.now = cfg, now
	c.mu.lives = map[kv.Worker]life{}
	c.mu.content, err = c.newContent()
	c.live.Store(c.mu.index)
	return err
}

// match looks a prompt up. It waits for nobody.
func (c *cache) match(m *prefix.Match, chain []kv.SeqHash, moe *kv.MoEQuery) {
	c.live.Load().Match(m, chain, moe)
}

// accept judges a record, which was at a place of the event plane's stream, and
// applies what is new in it. It is the one place where records change the index. ok is
// false if the worker's events are not used at all.
func (c *cache) accept(at place, rec *feed.Record) (v feed.Verdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.place = at
	now, w := c.now(), rec.Worker
	l, known := c.mu.lives[w]
	if known && rec.Epoch < l.epoch {
		// Discovery knows of a newer life, of which the tracker may not.
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

// obey does what the tracker asks for. The caller holds mu.
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

// release has what is missing asked for: the event plane has delivered what it kept.
func (c *cache) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.tracker.Release()
}

// suspect hides what is known of all workers until they have said that nothing is missing,
// or sent what is.
func (c *cache) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, h := range c.mu.tracker.AppendHealth(nil) {
		c.obey(now, h.Worker, nil, c.mu.tracker.Suspect(now, h.Worker))
	}
}

// applyEvent applies one event. The caller holds mu.
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

// drop forgets what w holds and where its feed is, but not that records came from it.
// The caller holds mu.
func (c *cache) drop(w kv.Worker) {
	if h, _ := c.mu.tracker.Health(w); h.Lagging { // what it said last will not come
		c.doubt(c.now(), w)
	}
	c.mu.tracker.Forget(w)
	c.mu.index.Drop(w)
	c.mu.pools.Lost(w)
}

// forget drops all that is known of w. The caller holds mu.
func (c *cache) forget(w kv.Worker) {
	c.drop(w)
	delete(c.mu.sources, w)
}

// mismatch is the block size of w's events if it is not that of its card, else 0. The
// caller holds mu.
func (c *cache) mismatch(w kv.Worker) int {
	s, l := c.mu.sources[w], c.mu.lives[w]
	if s != nil && l.blockSize != 0 && s.blockSize != l.blockSize {
		return s.blockSize
	}
	return 0
}

// know takes over the set of workers from discovery. Their times are set by it: a worker
// that was known by the same epoch keeps its own.
func (c *cache) know(lives map[kv.Worker]life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, old := c.now(), c.mu.lives
	c.mu.lives = lives
	for w, l := range lives { // each is its own affair, here and below
		was, known := old[w]
		l.since = now
		if known && was.epoch == l.epoch {
			l.since = was.since
		}
		lives[w] = l
		switch {
		case was.epoch != l.epoch && c.older(w, l.epoch, known): // nothing of an older life holds
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

// older reports whether what is known of w may be of a life before epoch. What that life has
// published already is not. Where discovery did not know w, records of an old life may
// have come late, after it was forgotten. The caller holds mu.
func (c *cache) older(w kv.Worker, epoch uint64, known bool) bool {
	h, fed := c.mu.tracker.Health(w)
	return fed && h.Epoch < epoch || known && !fed
}

// due appends to dst the requests that must be sent to workers now, for what is missing
// of their feeds or for their caches. wait is the time until there may be more to send.
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
		if c.mu.lives[q.Worker].publishes { // it may have gone since
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

// claim is what a worker says of its feed.
type claim struct {
	worker kv.Worker
	feed.Claim
}

// finding is a claim that the feed does not agree with.
type finding struct {
	claim
	feed.Finding
	last uint64 // event that came
}

// tend does what time alone brings about once the event plane has delivered what it
// kept. claims are those of the workers that exist. It returns what it finds.
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

// dropStrangers forgets the workers, and the later lives of workers, whose events
// came and whom discovery did not get to know within the grace. Of a worker that
// discovery knows by an earlier life, that life is then asked for its cache: the
// later one may be older, from before the clock was set back. The caller holds mu.
func (c *cache) dropStrangers(now kv.Mono) {
	for w, s := range c.mu.sources { // each is its own affair
		if l, known := c.mu.lives[w]; (!known || l.epoch < s.epoch) && now.Sub(s.since) >= c.cfg.Grace {
			c.forget(w)
		}
	}
}
