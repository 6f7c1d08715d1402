package simcluster

import (
	"hash/fnv"
	"slices"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// queuedTask is a task which waits in its router until a worker has less to do.
type queuedTask struct {
	task    uint32
	exclude []kv.WorkerID
}

// newQuery returns the query of a task's next attempt, without the look-up.
func (c *cluster) newQuery(t *requestTask, exclude []kv.WorkerID) route.Query {
	q := route.Query{
		Key: activeseq.AttemptKey{ID: t.key, Attempt: t.number}, PromptTokens: t.prompt, Exclude: exclude, Moving: t.number > 1,
	}
	for i := range t.parts {
		q.Media = append(q.Media, kv.Media{Start: t.parts[i].Start, End: t.parts[i].End})
	}
	if c.cfg.Sessions {
		q.Session.ID = t.request.Session
	}
	return q
}

// clientOf returns the number of a request's client for its share.
func clientOf(t *requestTask) uint64 {
	if t.request.Client == "" {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.request.Client))
	return max(h.Sum64(), 1)
}

// chooseWorker asks the task's router for a worker which is not in exclude, and reserves the task's load there, or
// makes the task wait there, as a router process does.
func (c *cluster) chooseWorker(at uint32, exclude []kv.WorkerID) (d route.Decision, waits bool, err error) {
	t := &c.tasks.all[at]
	r := &c.routers[t.router]
	q := c.newQuery(t, exclude)
	if err := r.lookUpRequest(c, &q, t); err != nil {
		return d, false, err
	}
	defer r.scheduleSync(c)
	check := route.TargetCheck{}
	if !q.Moving {
		check = r.router.CheckTargets(c.now, &q)
	}
	if err := check.Refusal(); err != nil {
		return d, false, err
	}
	held := !q.Moving && r.shouldHold(c, c.now, &q)
	mustWait := !q.Moving && (check.ShouldWait() || r.router.ShouldQueue(c.now, &q))
	if q.Moving || !held && !mustWait && !r.queue.MustFollow(r.router.QueueLane(&q)) {
		d, err = r.pickUnqueued(c, t, &q)
		return d, false, err
	}
	depths := make([]int, 0, len(q.Overlaps))
	for i := range q.Overlaps {
		depths = append(depths, q.Overlaps[i].Depth())
	}
	_, err = r.queue.Push(c.now, queue.QueuedRequest{
		Lane: r.router.QueueLane(&q), Client: clientOf(t), LatestStart: check.LatestStart, Missed: check.Late,
		Tokens: q.PromptTokens, Cached: queue.TypicalDepth(depths) * c.cfg.BlockSize,
	}, &queuedTask{at, slices.Clone(exclude)})
	if err != nil && held && !mustWait { // it was only held
		d, err = r.pickUnqueued(c, t, &q)
		return d, false, err
	}
	r.scheduleAdmission(c)
	return d, err == nil, err
}

// pickUnqueued picks a worker for a request which does not wait.
func (r *simRouter) pickUnqueued(c *cluster, t *requestTask, q *route.Query) (route.Decision, error) {
	d, err := r.pickWorker(c, q)
	if err == nil {
		r.queue.ChargeClient(clientOf(t), d.Work)
		c.tellDecision(t, q, d)
	}
	return d, err
}

// shouldHold reports whether a request waits for what other routers place at this instant.
func (r *simRouter) shouldHold(c *cluster, arrived kv.Mono, q *route.Query) bool {
	until := r.router.HoldUntil(c.now, arrived, q)
	if until > c.now && until != r.heldUntil {
		r.heldUntil = until
		c.queue.push(until, eventAdmit, r.number, 0)
	}
	return until > c.now
}

func (c *cluster) tellDecision(t *requestTask, q *route.Query, d route.Decision) {
	if c.onDecision != nil {
		c.onDecision(t, q, d)
	}
}

// scheduleAdmission schedules admitWaiting for now, if anything waits.
func (r *simRouter) scheduleAdmission(c *cluster) {
	if r.queue.Len() > 0 && !r.admitScheduled {
		r.admitScheduled = true
		c.queue.push(c.now, eventAdmit, r.number, 0)
	}
}

// admission is a task which waits no more.
type admission struct {
	task     uint32
	decision route.Decision
	err      error
}

// admitWaiting places the waiting tasks which can be placed.
func (c *cluster) admitWaiting(r *simRouter) {
	r.admitScheduled = false
	var admitted []admission
	r.queue.OfferHeads(c.now, func(e *queue.Entry) (float64, bool) {
		w := e.Value.(*queuedTask)
		t := &c.tasks.all[w.task]
		q := c.newQuery(t, w.exclude)
		if r.router.ShouldQueue(c.now, &q) || r.shouldHold(c, e.Arrival, &q) {
			return 0, false
		}
		q.Waited = c.now.Sub(e.Arrival)
		a := admission{task: w.task, err: r.lookUpRequest(c, &q, t)}
		if a.err == nil {
			check := r.router.CheckTargets(c.now, &q)
			if check.ShouldWait() && !e.IsOverdue(c.now) {
				return 0, false
			}
			a.err = check.Refusal()
		}
		if a.err == nil {
			if a.decision, a.err = r.pickWorker(c, &q); a.err != nil && fault.CodeOf(a.err) == fault.Overloaded {
				return 0, false
			}
		}
		if a.err == nil {
			c.tellDecision(t, &q, a.decision)
		}
		admitted = append(admitted, a)
		return a.decision.Work, true
	})
	r.scheduleSync(c)
	for _, a := range admitted {
		if a.err == nil {
			c.startCall(a.task, a.decision)
			continue
		}
		t := &c.tasks.all[a.task]
		t.lastRefusal = a.err
		c.driveTask(a.task, t.machine.HandleNoWorker(c.now, fault.CodeOf(a.err)))
	}
}
