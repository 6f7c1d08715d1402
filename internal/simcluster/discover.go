package simcluster

import (
	"slices"

	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
)

// updateMembers updates a router's set of registered workers.
func (c *cluster) updateMembers(number int) {
	r := &c.routers[number]
	r.watched, r.targets = r.watched[:0], r.targets[:0]
	for i := range r.members {
		w, m := &c.workers[i], &r.members[i]
		switch {
		case !w.registered && !m.known: // events of unregistered workers are kept for the grace period
			continue
		case !w.registered:
			r.removeWorker(c.now, w.id)
			*m = memberState{}
			continue
		case !m.known:
			if h, fed := r.tracker.HealthOf(w.id); fed && h.Epoch < w.registeredEpoch { // a late event of an earlier epoch
				r.forgetEarlierEpochs(c.now, w.id, w.registeredEpoch)
			}
			m.known, m.epoch, m.since = true, w.registeredEpoch, c.now
		case m.epoch != w.registeredEpoch: // a new epoch: nothing of the old one is valid
			r.forgetEarlierEpochs(c.now, w.id, w.registeredEpoch)
			source, epoch, since := m.hasRecords, m.sourceEpoch, m.sourceSince
			*m = memberState{known: true, epoch: w.registeredEpoch, since: c.now, hasRecords: source, sourceEpoch: epoch, sourceSince: since}
		}
		r.watched = append(r.watched, health.Worker{ID: w.id.ID, Epoch: m.epoch, Confirmed: true})
	}
	r.health.SetWorkers(c.now, r.watched)
	for _, w := range r.watched {
		state, since := r.workerState(c, w.ID)
		r.targets = append(r.targets, route.Target{
			Worker: kv.Worker{ID: w.ID}, BlockSize: c.cfg.BlockSize, Blocks: c.cfg.Blocks, State: state, Since: since, BatchTokens: c.cfg.TokenBudget,
			ReusesQueued: c.predictedTTL() > 0,
		})
	}
	r.advanceReplica(c.now)
	if err := r.router.SetWorkers(r.targets); err != nil {
		c.internalError = err
	}
	if r.replica != nil {
		r.replica.RequestUnplaced(c.now)
		r.scheduleSync(c)
	}
	r.schedulePings(c)
	r.scheduleAdmission(c)
	waiting := slices.Clone(r.waiting)
	for _, at := range waiting {
		t := &c.tasks.all[at]
		t.machine.WorkersChanged()
		c.wakeTask(at, t.wakeSeq)
	}
}

// forgetEarlierEpochs drops the state of w before epoch. What the new epoch has already published stays.
func (r *simRouter) forgetEarlierEpochs(now kv.Mono, w kv.Worker, epoch uint64) {
	if h, ok := r.tracker.HealthOf(w); ok && h.Epoch >= epoch {
		return
	}
	r.removeWorker(now, w)
	r.members[w.ID-1].hasRecords = false
}

// removeWorker drops the state of a removed worker. Its last pool events may not have arrived.
func (r *simRouter) removeWorker(now kv.Mono, w kv.Worker) {
	if h, _ := r.tracker.HealthOf(w); h.Lagging {
		r.pools.ApplyEffects(r.index, r.pools.SuspectWorker(now, w, nil))
	}
	r.tracker.RemoveWorker(w)
	r.dropCached(w)
}

// runUpkeep does the periodic work.
func (r *simRouter) runUpkeep(c *cluster) {
	r.advanceReplica(c.now)
	r.active.ExpireOld(c.now)
	r.scheduleAdmission(c)
	r.scheduleSync(c)
	for i := range r.members {
		if r.members[i].known {
			r.updateState(c, uint32(i)) // a worker's load report expires
			w := kv.Worker{ID: kv.WorkerID(i + 1)}
			if r.active.LoadOf(w).Requests > 0 {
				r.health.ExpectReports(c.now, w.ID)
			}
		}
	}
	r.schedulePings(c)
	if r.predictions != nil {
		r.predictions.ExpireBlocks(c.now)
	}
	if !c.usesEvents {
		return
	}
	r.pools.ApplyEffects(r.index, r.pools.Tick(c.now, nil))
	r.dropUnregistered(c)
	for i := range r.members {
		m := &r.members[i]
		if !m.known || !hasElapsed(m.since, c.now, settle) {
			continue
		}
		w := kv.Worker{ID: kv.WorkerID(i + 1)}
		r.applyVerdict(c.now, w, nil, r.tracker.ExpectWorker(c.now, w, m.epoch))
		r.checkClaim(c, w, m)
	}
	r.requestResyncs(c)
}

// dropUnregistered drops workers and newer epochs whose events arrived but which did not register within the
// grace period.
func (r *simRouter) dropUnregistered(c *cluster) {
	for i := range r.members {
		m := &r.members[i]
		if m.hasRecords && (!m.known || m.epoch < m.sourceEpoch) && hasElapsed(m.sourceSince, c.now, unregisteredGrace) {
			w := kv.Worker{ID: kv.WorkerID(i + 1)}
			r.removeWorker(c.now, w)
			m.hasRecords = false
		}
	}
}

// checkClaim compares what a worker claims to have published with what has arrived.
func (r *simRouter) checkClaim(c *cluster, w kv.Worker, m *memberState) {
	var claim kvfeed.PublishReport
	if m.reported {
		claim = kvfeed.PublishReport{Epoch: m.load.epoch, Next: m.load.next, At: m.loadAt}
	}
	if finding, v := r.tracker.CompareReport(c.now, w, claim); finding != kvfeed.Agrees {
		r.applyVerdict(c.now, w, nil, v)
	}
}
