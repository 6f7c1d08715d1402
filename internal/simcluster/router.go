package simcluster

import (
	"time"

	"penstock/core/fault"
	"penstock/core/feed"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/residency"
	"penstock/core/route"
	"penstock/core/slots"
)

// The times of a router process.
const (
	upkeepEvery    = time.Second
	settle         = 2 * time.Second  // after which missing events of a known worker count
	fresh          = 30 * time.Second // how long a load report is valid
	grace          = 30 * time.Second // how long state of an unregistered worker is kept
	reservationTTL = 10 * time.Minute
	approxTTL      = 2 * time.Minute // without events, how long a sent prompt is assumed to be cached
)

// simRouter is a router process with its frontend.
type router struct {
	number  uint32
	tracker *feed.Tracker
	index   *prefix.Index
	pools   *residency.Table
	predict *prefix.Approx // nil without predictions
	active  *slots.Table
	router  *route.Router
	health  *health.Machine
	members []member // by worker number
	asked   []feed.Request
	given   []kv.Worker // scratch of requestResyncs
	asks    bool        // requestResyncs is scheduled at resyncAt
	askAt   kv.Mono
	waiting []uint32 // tasks which wait for a change of the worker set
	looks   bool     // a check for due pings is scheduled at pingAt, with number pingSeq
	look    kv.Mono
	probing uint32
	pings   []health.Ping
	watched []health.Worker
	targets []route.Target
	exchange
	// lookupEpoch returns the registered epoch of a worker, for tasks.
	life func(kv.WorkerID) (epoch uint64, known bool)
}

// memberState is a router's state of a worker.
type member struct {
	known bool
	epoch uint64
	since kv.Mono // when this epoch was first seen

	source      bool // records arrived
	sourceEpoch uint64
	sourceSince kv.Mono

	leaving  kv.Mono // until when a Draining refusal counts
	reported bool
	load     loadReport
	loadAt   kv.Mono
}

// openRouter makes a router which knows no worker.
func (c *cluster) openRouter(number int) (err error) {
	r := &c.routers[number]
	r.number = uint32(number)
	r.members = make([]member, c.cfg.Workers)
	if r.tracker, err = feed.NewTracker(feed.Config{}); err != nil {
		return err
	}
	if r.index, err = prefix.New(prefix.Config{}); err != nil {
		return err
	}
	if r.pools, err = residency.New(residency.Config{}); err != nil {
		return err
	}
	if ttl := c.predictedTTL(); ttl > 0 {
		if r.predict, err = prefix.NewApprox(prefix.ApproxConfig{TTL: ttl}); err != nil {
			return err
		}
	}
	if c.cfg.Sync && c.cfg.Routers > 1 {
		if err = r.openExchange(); err != nil {
			return err
		}
		r.tell(c)
	}
	if r.active, err = slots.New(slots.Config{BlockSize: c.cfg.BlockSize, TTL: reservationTTL, Journal: r.journal()}); err != nil {
		return err
	}
	cfg := c.cfg.Route
	if number > 0 {
		cfg.Seed = derive(cfg.Seed, uint64(number))
	}
	if r.router, err = route.New(cfg, r.active); err != nil {
		return err
	}
	if r.health, err = health.New(health.Config{}); err != nil {
		return err
	}
	r.life = func(id kv.WorkerID) (uint64, bool) {
		m := &r.members[id-1]
		return m.epoch, m.known
	}
	return nil
}

// predictedTTL is how long prompts are assumed to be cached where they were sent; 0 disables predictions.
func (c *cluster) predictedTTL() time.Duration {
	switch {
	case !c.matches:
		return 0
	case c.cfg.NoKVEvents:
		return approxTTL
	}
	return c.cfg.PredictedTTL
}

// routeRequest hashes a prompt, looks it up and picks a worker.
func (r *router) route(c *cluster, q *route.Query, prompt []kv.Token) (route.Decision, error) {
	hasher, err := kv.NewHasher(c.cfg.BlockSize, kv.Salt{})
	if err != nil {
		return route.Decision{}, err
	}
	c.blocks = hasher.Blocks(c.blocks[:0], prompt, nil)
	c.chain = kv.AppendChain(c.chain[:0], c.blocks)
	q.Chain = c.chain
	if c.matches && r.router.NeedsOverlaps(&q.Override) {
		r.match(c, q)
	}
	r.ticks(c.now)
	defer r.tell(c)
	d, err := r.router.Pick(c.now, q)
	if err == nil && r.predict != nil {
		r.predict.Insert(c.now, d.Worker, c.chain)
	}
	return d, err
}

// matchPrompt finds the overlap of each worker with the prompt, by events and by prediction.
func (r *router) match(c *cluster, q *route.Query) {
	r.index.Match(&c.match, q.Chain, nil)
	c.overlaps = c.match.AppendOverlaps(c.overlaps[:0])
	q.Overlaps = c.overlaps
	if r.predict != nil {
		r.predict.Match(&c.match, q.Chain, nil)
		c.guesses = c.match.AppendOverlaps(c.guesses[:0])
		c.merged = prefix.AppendLarger(c.merged[:0], c.overlaps, c.guesses)
		q.Overlaps = c.merged
	}
}

// dropCached drops the cached blocks of a worker.
func (r *router) drop(w kv.Worker) {
	r.index.Drop(w)
	r.pools.Lost(w)
	if r.predict != nil {
		r.predict.Drop(w)
	}
}

// recordFirstToken records the first token of an attempt, and how many tokens were cached. Events are more
// precise.
func (r *router) prefilled(c *cluster, t *task, cached int) {
	r.ticks(c.now)
	defer r.tell(c)
	r.active.Prefilled(slots.Key{ID: t.key, Attempt: t.number})
	if r.predict == nil || c.follow {
		return
	}
	hasher, err := kv.NewHasher(c.cfg.BlockSize, kv.Salt{})
	if err != nil {
		c.defect = err
		return
	}
	c.blocks = hasher.Blocks(c.blocks[:0], c.expand(t), nil)
	c.chain = kv.AppendChain(c.chain[:0], c.blocks)
	predicted := min(t.predicted, (t.prompt-1)/c.cfg.BlockSize) // the last token is always computed
	w := kv.Worker{ID: kv.WorkerID(t.worker + 1)}
	r.predict.Report(c.now, w, c.chain, predicted, cached/c.cfg.BlockSize)
}

// recordOutput records response tokens of an attempt in whole blocks.
func (r *router) grown(c *cluster, t *task) {
	if t.grown++; !c.cfg.TrackOutput || t.grown < c.cfg.BlockSize {
		return
	}
	r.ticks(c.now)
	defer r.tell(c)
	r.active.Grow(slots.Key{ID: t.key, Attempt: t.number}, t.grown)
	t.grown = 0
}

// freeReservation ends the reservation of an attempt.
func (r *router) free(c *cluster, t *task) {
	r.ticks(c.now)
	defer r.tell(c)
	r.active.Free(slots.Key{ID: t.key, Attempt: t.number})
}

// recordFailure records a failed call to a worker. A worker which did not respond gets no more requests,
// while there is another, until it answers a ping.
func (r *router) failed(c *cluster, worker uint32, code fault.Code) {
	m := &r.members[worker]
	switch {
	case !m.known:
	case code == fault.Draining:
		m.leaving = c.now.Add(fresh)
		r.settle(c, worker)
	case code != fault.Unavailable && code != fault.Deadline:
	case r.health.Failed(c.now, kv.WorkerID(worker+1), m.epoch):
		r.settle(c, worker)
		r.watch(c)
	}
}

// updateState passes a worker's state to the route decisions.
func (r *router) settle(c *cluster, worker uint32) {
	w := kv.Worker{ID: kv.WorkerID(worker + 1)}
	state, since := r.state(c, w.ID)
	r.router.SetState(w, state, since)
}

// workerState is a worker's state for requests.
func (r *router) state(c *cluster, id kv.WorkerID) (route.State, kv.Mono) {
	st, _ := r.health.Status(id)
	m := &r.members[id-1]
	switch {
	case c.now < m.leaving || m.reported && m.load.drain && !elapsed(m.loadAt, c.now, fresh):
		return route.Draining, c.now
	case st.Quarantined && st.Cause == health.CallFailed:
		return route.Suspected, st.Since
	case st.Quarantined:
		return route.NotAnswering, st.Since
	}
	return route.Ready, c.now
}

// acceptRecord accepts or rejects a record and updates the index.
func (r *router) accept(c *cluster, rec *feed.Record) {
	m := &r.members[rec.Worker.ID-1]
	if m.known && rec.Epoch < m.epoch {
		return // of an epoch which discovery has ended
	}
	if !m.source {
		m.source, m.sourceEpoch, m.sourceSince = true, rec.Epoch, c.now
	}
	if rec.Epoch > m.sourceEpoch {
		m.sourceEpoch, m.sourceSince = rec.Epoch, c.now
	}
	v := r.tracker.Accept(c.now, rec)
	r.obey(c.now, rec.Worker, rec.Events, v)
	if v.Resync {
		r.ask(c)
	}
}

// applyVerdict applies the tracker's verdict.
func (r *router) obey(now kv.Mono, w kv.Worker, events []kv.Event, v feed.Verdict) {
	if v.Drop {
		r.index.Drop(w)
	}
	if v.Hide {
		r.index.Hide(w)
	}
	if r.predict != nil && (v.Drop || v.Hide) {
		r.predict.Drop(w)
	}
	r.doubtMoves(now, w, v)
	if v.Outcome == feed.Apply {
		for i := range events[v.Skip:] {
			r.applyEvent(now, w, &events[v.Skip+i])
			if r.predict != nil {
				r.predict.Retract(w, &events[v.Skip+i])
			}
		}
	}
	if v.Partial {
		r.pools.Settle(r.index, r.pools.Doubt(now, w, nil))
	}
	if v.Show {
		r.index.Show(w)
		r.pools.Settle(r.index, r.pools.Trust(w, nil))
	}
	if v.Resync {
		r.asked = append(r.asked, v.Request)
	}
}

// requestResyncs sends the due resync requests, for missing events or whole caches.
func (r *router) ask(c *cluster) {
	r.given = r.tracker.GiveUp(c.now, r.given[:0])
	for _, w := range r.given {
		r.index.Drop(w)
	}
	r.asked = r.tracker.Due(c.now, r.asked)
	for _, q := range r.asked {
		number := uint32(q.Worker.ID - 1)
		if r.members[number].known && !c.chaos.losesResync(c.now) {
			c.post(c.now.Add(c.cfg.EventDelay), number, q)
		}
	}
	r.asked = r.asked[:0]
	r.askAgain(c)
}

// scheduleResyncs schedules requestResyncs when further requests may be due.
func (r *router) askAgain(c *cluster) {
	at, ok := r.tracker.NextDue()
	if !ok || r.asks && c.now < r.askAt && r.askAt <= at {
		return
	}
	r.asks, r.askAt = true, max(at, c.now.Add(time.Millisecond))
	c.queue.push(r.askAt, asking, r.number, 0)
}

// runResyncs is the scheduled call of requestResyncs.
func (r *router) asking(c *cluster) {
	if r.asks && c.now >= r.askAt {
		r.asks = false
		r.ask(c)
	}
}
