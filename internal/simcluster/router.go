package simcluster

import (
	"time"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/poolindex"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// The times of a router process.
const (
	upkeepEvery       = time.Second
	settle            = 2 * time.Second  // after which missing events of a known worker count
	fresh             = 30 * time.Second // how long a load report is valid
	unregisteredGrace = 30 * time.Second // how long state of an unregistered worker is kept
	reservationTTL    = 10 * time.Minute
	approxTTL         = 2 * time.Minute // without events, how long a sent prompt is assumed to be cached
)

// simRouter is a router process with its frontend.
type simRouter struct {
	number          uint32
	tracker         *kvfeed.Tracker
	index           *prefix.Index
	pools           *poolindex.Table
	predictions     *prefix.Approx // nil without predictions
	active          *activeseq.ReservationTable
	router          *route.Router
	health          *health.Monitor
	members         []memberState // by worker number
	asked           []kvfeed.ResyncRequest
	givenUp         []kv.Worker // scratch of requestResyncs
	resyncScheduled bool        // requestResyncs is scheduled at resyncAt
	resyncAt        kv.Mono
	waiting         []uint32     // tasks which wait for a change of the worker set
	queue           *queue.Queue // of *queuedTask: the tasks which wait for a worker with less to do
	admitScheduled  bool
	heldUntil       kv.Mono // requests of the latest burst which was held
	pingScheduled   bool    // a check for due pings is scheduled at pingAt, with number pingSeq
	pingAt          kv.Mono
	pingSeq         uint32
	pings           []health.Ping
	watched         []health.Worker
	targets         []route.Target
	routerSync
	// lookupEpoch returns the registered epoch of a worker, for tasks.
	lookupEpoch func(kv.WorkerID) (epoch uint64, known bool)
}

// memberState is a router's state of a worker.
type memberState struct {
	known bool
	epoch uint64
	since kv.Mono // when this epoch was first seen

	hasRecords  bool // records arrived
	sourceEpoch uint64
	sourceSince kv.Mono

	drainingUntil kv.Mono // until when a Draining refusal counts
	reported      bool
	load          loadReport
	loadAt        kv.Mono
}

// openRouter makes a router which knows no worker.
func (c *cluster) openRouter(number int) (err error) {
	r := &c.routers[number]
	r.number = uint32(number)
	r.members = make([]memberState, c.cfg.Workers)
	if r.tracker, err = kvfeed.NewTracker(kvfeed.Config{}); err != nil {
		return err
	}
	if r.index, err = prefix.New(prefix.Config{}); err != nil {
		return err
	}
	if r.pools, err = poolindex.New(poolindex.Config{}); err != nil {
		return err
	}
	if ttl := c.predictedTTL(); ttl > 0 {
		if r.predictions, err = prefix.NewApprox(prefix.ApproxConfig{TTL: ttl}); err != nil {
			return err
		}
	}
	if c.cfg.Sync && c.cfg.Routers > 1 {
		if err = r.openSync(); err != nil {
			return err
		}
		r.scheduleSync(c)
	}
	if r.active, err = activeseq.New(activeseq.Config{BlockSize: c.cfg.BlockSize, TTL: reservationTTL, Journal: r.reservationJournal()}); err != nil {
		return err
	}
	cfg := c.cfg.Route
	if number > 0 {
		cfg.Seed = deriveSeed(cfg.Seed, uint64(number))
	}
	if r.router, err = route.New(cfg, r.active); err != nil {
		return err
	}
	if r.queue, err = queue.New(c.cfg.Queue); err != nil {
		return err
	}
	if r.health, err = health.New(health.Config{}); err != nil {
		return err
	}
	r.lookupEpoch = func(id kv.WorkerID) (uint64, bool) {
		m := &r.members[id-1]
		return m.epoch, m.known
	}
	return nil
}

// predictedTTL is how long prompts are assumed to be cached where they were sent; 0 disables predictions.
func (c *cluster) predictedTTL() time.Duration {
	switch {
	case !c.usesOverlaps:
		return 0
	case c.cfg.NoKVEvents:
		return approxTTL
	}
	return c.cfg.PredictedTTL
}

// lookUpRequest hashes a task's prompt and looks it up, and its media.
func (r *simRouter) lookUpRequest(c *cluster, q *route.Query, t *requestTask) error {
	hasher, err := kv.NewHasher(c.cfg.BlockSize, kv.Salt{})
	if err != nil {
		return err
	}
	c.blocks = hasher.AppendBlockHashes(c.blocks[:0], c.expandPrompt(t), nil)
	c.chain = kv.AppendChain(c.chain[:0], c.blocks)
	q.Chain = c.chain
	if c.usesOverlaps && r.router.NeedsOverlaps(&q.Override) {
		r.matchPrompt(c, q)
		q.Held = c.lookUpHeld(t.parts)
	}
	r.advanceReplica(c.now)
	if r.replica != nil {
		r.router.SetRouters(r.replica.CountRouters(), r.replica.PlaceOf())
	}
	return nil
}

// pickWorker picks a worker for a request which was looked up.
func (r *simRouter) pickWorker(c *cluster, q *route.Query) (route.Decision, error) {
	d, err := r.router.Pick(c.now, q)
	if err == nil && r.predictions != nil {
		r.predictions.RecordSent(c.now, d.Worker, q.Chain)
	}
	return d, err
}

// matchPrompt finds the overlap of each worker with the prompt, by events and by prediction.
func (r *simRouter) matchPrompt(c *cluster, q *route.Query) {
	r.index.Match(&c.match, q.Chain, nil)
	c.overlaps = c.match.AppendOverlaps(c.overlaps[:0])
	q.Overlaps = c.overlaps
	if r.predictions != nil {
		r.predictions.Match(&c.match, q.Chain, nil)
		c.guesses = c.match.AppendOverlaps(c.guesses[:0])
		c.merged = prefix.AppendLarger(c.merged[:0], c.overlaps, c.guesses)
		q.Overlaps = c.merged
	}
}

// dropCached drops the cached blocks of a worker.
func (r *simRouter) dropCached(w kv.Worker) {
	r.index.DropWorker(w)
	r.pools.ForgetLost(w)
	r.pools.ApplyEffects(r.index, r.pools.DetachWorker(w, nil))
	if r.predictions != nil {
		r.predictions.DropWorker(w)
	}
}

// recordFirstToken records the first token of an attempt, and how many tokens were cached. Events are more
// precise.
func (r *simRouter) recordFirstToken(c *cluster, t *requestTask, cached int) {
	r.advanceReplica(c.now)
	defer r.scheduleSync(c)
	key := activeseq.AttemptKey{ID: t.key, Attempt: t.number}
	if f, ok := r.router.CompareFirstToken(c.now, key); ok && t.generated == 0 {
		t.expected, t.placed = f.Predicted, c.now.Add(-f.Observed)
	}
	r.router.RecordFirstToken(c.now, key, cached)
	r.scheduleAdmission(c)
	if r.predictions == nil || c.usesEvents {
		return
	}
	hasher, err := kv.NewHasher(c.cfg.BlockSize, kv.Salt{})
	if err != nil {
		c.internalError = err
		return
	}
	c.blocks = hasher.AppendBlockHashes(c.blocks[:0], c.expandPrompt(t), nil)
	c.chain = kv.AppendChain(c.chain[:0], c.blocks)
	predicted := min(t.predicted, (t.prompt-1)/c.cfg.BlockSize) // the last token is always computed
	w := kv.Worker{ID: kv.WorkerID(t.worker + 1)}
	r.predictions.RecordReport(c.now, w, c.chain, predicted, cached/c.cfg.BlockSize)
}

// recordOutput records response tokens of an attempt in whole blocks.
func (r *simRouter) recordOutput(c *cluster, t *requestTask) {
	if t.unreported++; !c.cfg.TrackOutput || t.unreported < c.cfg.BlockSize {
		return
	}
	r.advanceReplica(c.now)
	defer r.scheduleSync(c)
	r.active.AddOutput(activeseq.AttemptKey{ID: t.key, Attempt: t.number}, t.unreported)
	t.unreported = 0
}

// recordAnswer records the end of an answer.
func (r *simRouter) recordAnswer(c *cluster, t *requestTask) {
	r.advanceReplica(c.now)
	r.router.RecordAnswer(c.now, activeseq.AttemptKey{ID: t.key, Attempt: t.number}, t.generated-t.startedWith)
}

// freeReservation ends the reservation of an attempt.
func (r *simRouter) freeReservation(c *cluster, t *requestTask) {
	r.advanceReplica(c.now)
	defer r.scheduleSync(c)
	r.active.AdvanceTime(c.now)
	r.active.Free(activeseq.AttemptKey{ID: t.key, Attempt: t.number})
	r.scheduleAdmission(c)
}

// recordFailure records a failed call to a worker. A worker which did not respond gets no more requests,
// while there is another, until it answers a ping.
func (r *simRouter) recordFailure(c *cluster, worker uint32, code fault.Code) {
	m := &r.members[worker]
	switch {
	case !m.known:
	case code == fault.Draining:
		m.drainingUntil = c.now.Add(fresh)
		r.updateState(c, worker)
	case code != fault.Unavailable && code != fault.Deadline:
	case r.health.RecordFailedCall(c.now, kv.WorkerID(worker+1), m.epoch):
		r.updateState(c, worker)
		r.schedulePings(c)
	}
}

// updateState passes a worker's state to the route decisions.
func (r *simRouter) updateState(c *cluster, worker uint32) {
	w := kv.Worker{ID: kv.WorkerID(worker + 1)}
	state, since := r.workerState(c, w.ID)
	r.router.SetState(w, state, since)
}

// workerState is a worker's state for requests.
func (r *simRouter) workerState(c *cluster, id kv.WorkerID) (route.WorkerState, kv.Mono) {
	st, _ := r.health.StatusOf(id)
	m := &r.members[id-1]
	switch {
	case c.now < m.drainingUntil || m.reported && m.load.drain && !hasElapsed(m.loadAt, c.now, fresh):
		return route.Draining, c.now
	case st.Quarantined && st.Cause == health.CallFailed:
		return route.Suspected, st.Since
	case st.Quarantined:
		return route.NotAnswering, st.Since
	}
	return route.Ready, c.now
}

// acceptRecord accepts or rejects a record and updates the index.
func (r *simRouter) acceptRecord(c *cluster, rec *kvfeed.Record) {
	m := &r.members[rec.Worker.ID-1]
	if m.known && rec.Epoch < m.epoch {
		return // of an epoch which discovery has ended
	}
	if !m.hasRecords {
		m.hasRecords, m.sourceEpoch, m.sourceSince = true, rec.Epoch, c.now
	}
	if rec.Epoch > m.sourceEpoch {
		m.sourceEpoch, m.sourceSince = rec.Epoch, c.now
	}
	v := r.tracker.AcceptRecord(c.now, rec)
	r.applyVerdict(c.now, rec.Worker, rec.Events, v)
	if v.Resync {
		r.requestResyncs(c)
	}
}

// applyVerdict applies the tracker's verdict.
func (r *simRouter) applyVerdict(now kv.Mono, w kv.Worker, events []kv.Event, v kvfeed.FeedVerdict) {
	if v.Drop {
		r.index.DropWorker(w)
	}
	if v.Hide {
		r.index.HideWorker(w)
	}
	if r.predictions != nil && (v.Drop || v.Hide) {
		r.predictions.DropWorker(w)
	}
	r.doubtMoves(now, w, v)
	if v.Outcome == kvfeed.Apply {
		for i := range events[v.Skip:] {
			if ev := &events[v.Skip+i]; ev.Kind == kv.Removed && ev.Tier == kv.TierDevice {
				r.router.RecordEviction(now, w, len(ev.Seqs))
			}
			r.applyEvent(now, w, &events[v.Skip+i])
			if r.predictions != nil {
				r.predictions.RetractEvent(w, &events[v.Skip+i])
			}
		}
	}
	if v.Outcome == kvfeed.Apply || v.Drop {
		r.router.RecordCached(w, r.index.HeldBlocks(w))
	}
	if v.Partial {
		r.pools.ApplyEffects(r.index, r.pools.SuspectWorker(now, w, nil))
	}
	if v.Show {
		r.index.ShowWorker(w)
		r.pools.ApplyEffects(r.index, r.pools.TrustWorker(w, nil))
	}
	if v.Resync {
		r.asked = append(r.asked, v.Request)
	}
}

// requestResyncs sends the due resync requests, for missing events or whole caches.
func (r *simRouter) requestResyncs(c *cluster) {
	r.givenUp = r.tracker.GiveUpRepairs(c.now, r.givenUp[:0])
	for _, w := range r.givenUp {
		r.index.DropWorker(w)
	}
	r.asked = r.tracker.DueRequests(c.now, r.asked)
	for _, q := range r.asked {
		number := uint32(q.Worker.ID - 1)
		if r.members[number].known && !c.faults.losesResync(c.now) {
			c.sendResync(c.now.Add(c.cfg.EventDelay), number, q)
		}
	}
	r.asked = r.asked[:0]
	r.scheduleResyncs(c)
}

// scheduleResyncs schedules requestResyncs when further requests may be due.
func (r *simRouter) scheduleResyncs(c *cluster) {
	at, ok := r.tracker.Deadline()
	if !ok || r.resyncScheduled && c.now < r.resyncAt && r.resyncAt <= at {
		return
	}
	r.resyncScheduled, r.resyncAt = true, max(at, c.now.Add(time.Millisecond))
	c.queue.push(r.resyncAt, eventResyncDue, r.number, 0)
}

// runResyncs is the scheduled call of requestResyncs.
func (r *simRouter) runResyncs(c *cluster) {
	if r.resyncScheduled && c.now >= r.resyncAt {
		r.resyncScheduled = false
		r.requestResyncs(c)
	}
}
