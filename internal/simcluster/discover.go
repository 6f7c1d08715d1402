package simcluster

import (
	"slices"

	"penstock/core/feed"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/route"
)

// updateMembers updates a router's set of registered workers.
func (c *cluster) discover(number int) {
	r := &c.routers[number]
	r.watched, r.targets = r.watched[:0], r.targets[:0]
	for i := range c.workers {
		w, m := &c.workers[i], &r.members[i]
		switch {
		case !w.registered && !m.known: // events of unregistered workers are kept for the grace period
			continue
		case !w.registered:
			r.lose(c.now, w.id)
			*m = member{}
			continue
		case !m.known:
			if h, fed := r.tracker.Health(w.id); fed && h.Epoch < w.registeredEpoch { // a late event of an earlier epoch
				r.forget(c.now, w.id, w.registeredEpoch)
			}
			m.known, m.epoch, m.since = true, w.registeredEpoch, c.now
		case m.epoch != w.registeredEpoch: // a new epoch: nothing of the old one is valid
			r.forget(c.now, w.id, w.registeredEpoch)
			source, epoch, since := m.source, m.sourceEpoch, m.sourceSince
			*m = member{known: true, epoch: w.registeredEpoch, since: c.now, source: source, sourceEpoch: epoch, sourceSince: since}
		}
		r.watched = append(r.watched, health.Worker{ID: w.id.ID, Epoch: m.epoch, Confirmed: true})
	}
	r.health.Set(c.now, r.watched)
	for _, w := range r.watched {
		state, since := r.state(c, w.ID)
		r.targets = append(r.targets, route.Target{
			Worker: kv.Worker{ID: w.ID}, BlockSize: c.cfg.BlockSize, Blocks: c.cfg.Blocks, State: state, Since: since,
		})
	}
	r.ticks(c.now)
	if err := r.router.SetWorkers(r.targets); err != nil {
		c.defect = err
	}
	if r.replica != nil {
		r.replica.Revisit(c.now)
		r.tell(c)
	}
	r.watch(c)
	waiting := slices.Clone(r.waiting)
	for _, at := range waiting {
		t := &c.tasks.all[at]
		t.machine.News()
		c.wake(at, t.wakes)
	}
}

// forgetEarlierEpochs drops the state of w before epoch. What the new epoch has already published stays.
func (r *router) forget(now kv.Mono, w kv.Worker, epoch uint64) {
	if h, ok := r.tracker.Health(w); ok && h.Epoch >= epoch {
		return
	}
	r.lose(now, w)
	r.members[w.ID-1].source = false
}

// removeWorker drops the state of a removed worker. Its last pool events may not have arrived.
func (r *router) lose(now kv.Mono, w kv.Worker) {
	if h, _ := r.tracker.Health(w); h.Lagging {
		r.pools.Settle(r.index, r.pools.Doubt(now, w, nil))
	}
	r.tracker.Forget(w)
	r.drop(w)
}

// runUpkeep does the periodic work.
func (r *router) tidy(c *cluster) {
	r.ticks(c.now)
	r.active.Expire(c.now)
	r.tell(c)
	for i := range r.members {
		if r.members[i].known {
			r.settle(c, uint32(i)) // a worker's load report expires
			w := kv.Worker{ID: kv.WorkerID(i + 1)}
			if r.active.Load(w).Requests > 0 {
				r.health.Expect(c.now, w.ID)
			}
		}
	}
	r.watch(c)
	if r.predict != nil {
		r.predict.Expire(c.now)
	}
	if !c.follow {
		return
	}
	r.pools.Settle(r.index, r.pools.Tick(c.now, nil))
	r.dropStrangers(c)
	for i := range r.members {
		m := &r.members[i]
		if !m.known || !elapsed(m.since, c.now, settle) {
			continue
		}
		w := kv.Worker{ID: kv.WorkerID(i + 1)}
		r.obey(c.now, w, nil, r.tracker.Expect(c.now, w, m.epoch))
		r.compare(c, w, m)
	}
	r.ask(c)
}

// dropUnregistered drops workers and newer epochs whose events arrived but which did not register within the
// grace period.
func (r *router) dropStrangers(c *cluster) {
	for i := range r.members {
		m := &r.members[i]
		if m.source && (!m.known || m.epoch < m.sourceEpoch) && elapsed(m.sourceSince, c.now, grace) {
			w := kv.Worker{ID: kv.WorkerID(i + 1)}
			r.lose(c.now, w)
			m.source = false
		}
	}
}

// checkClaim compares what a worker claims to have published with what has arrived.
func (r *router) compare(c *cluster, w kv.Worker, m *member) {
	var claim feed.Claim
	if m.reported {
		claim = feed.Claim{Epoch: m.load.epoch, Next: m.load.next, At: m.loadAt}
	}
	if finding, v := r.tracker.Compare(c.now, w, claim); finding != feed.Agrees {
		r.obey(c.now, w, nil, v)
	}
}
