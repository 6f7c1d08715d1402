package batch

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"penstock/core/fault"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// stepBatch computes one batch and reports whether there was one.
func (l *loop) stepBatch(ctx context.Context) bool {
	l.planBatch()
	if len(l.plan.Work) == 0 {
		l.dropReferences()
		return false
	}
	l.reportLoad() // a batch may take long, and its requests are no longer in the inbox
	err := l.computeBatch(ctx)
	l.batch.BackToBack = true
	switch {
	case err == nil:
		l.collectResults()
		l.sched.Commit(l.sampled)
		l.applyResults()
		l.deliverHeld()
	case ctx.Err() == nil: // else all requests get the error of a stopped engine
		l.failBatch(err)
	}
	return true
}

// planBatch plans a batch and prepares it. Ranges which are encoded already may make work for an empty plan, and so may
// blocks of sequences which it has preempted. After one which reserves blocks the next plan says what is passed over.
func (l *loop) planBatch() {
	for again := true; again; {
		l.sched.Step(&l.plan)
		l.pool.cancelEvicted(l.sched)
		for _, id := range l.plan.Failed {
			// Impossible: a choice ends when it reaches the context length.
			if c := l.scheduled[id]; c != nil {
				l.failRequest(c.request, fault.New(fault.Internal, "the sequence outgrew the context; report this"))
			}
		}
		l.reportReclaimed()
		l.reportPreempted()
		l.restartEncoding()
		l.startReserved()
		again = (l.takeEncoded() || len(l.plan.Preempted)+len(l.plan.Reserved) > 0) && len(l.plan.Work) == 0
	}
	l.prepareBatch()
}

// dropReferences releases the memory of the last requests, which can be large, before the loop waits.
func (l *loop) dropReferences() {
	l.batch.BackToBack = false
	clear(l.choices[:cap(l.choices)])
	clear(l.batch.States[:cap(l.batch.States)])
	clear(l.results[:cap(l.results)]) // all delivered
}

// prepareBatch turns the plan into a batch.
func (l *loop) prepareBatch() {
	n := len(l.plan.Work)
	l.choices, l.batch.States = l.choices[:0], l.batch.States[:0]
	for i := range l.plan.Work {
		c := l.scheduled[l.plan.Work[i].ID]
		l.choices = append(l.choices, c)
		l.batch.States = append(l.batch.States, c.state)
	}
	l.batch.Drawn = slices.Grow(l.batch.Drawn[:0], n)[:n]
	clear(l.batch.Drawn)
	l.batch.Plan, l.batch.Stats = &l.plan, l.sched.Stats()
}

// computeBatch calls the computer. It turns a panic into an error of this batch: nothing counts until Commit,
// so the scheduler drops the step.
func (l *loop) computeBatch(ctx context.Context) (err error) {
	const message = "the engine failed to compute the batch that the request was in; report this with the worker's log"
	defer func() {
		if v := recover(); v != nil {
			err = &fault.Error{Code: fault.Internal, Message: message, Err: fmt.Errorf("compute: panic: %v\n%s", v, debug.Stack())}
		}
	}()
	if err := l.computer.ComputeBatch(ctx, &l.batch); err != nil {
		return &fault.Error{Code: fault.Internal, Message: message, Err: err}
	}
	return nil
}

// failBatch fails every request of the plan: the request that caused the failure is unknown.
func (l *loop) failBatch(err error) {
	for _, c := range l.choices {
		if !c.request.finished {
			l.failRequest(c.request, err)
		}
	}
}

// collectResults reads the drawn tokens, and ends prefills. applyResults fails the requests without a token.
func (l *loop) collectResults() {
	l.sampled, l.results = l.sampled[:0], l.results[:0]
	for i, c := range l.choices {
		w := &l.plan.Work[i]
		if !c.cachedDelivered {
			c.computed += len(w.Tokens)
		}
		if !c.request.followersStarted {
			c.request.cached = max(c.request.cached, w.Cached)
		}
		switch {
		case !w.Sample:
			continue
		case c.request.reuse == paged.Off: // complete, without a token
			l.results = append(l.results, tokenResult{choice: c, finish: engine.FinishStop})
			continue
		}
		d := &l.batch.Drawn[i]
		r := tokenResult{choice: c, token: d.Logprob, err: d.Err}
		if r.err == nil {
			c.output++
			r.finish = c.finishAfter(r.token.Token)
			r.separateFinish = r.finish == engine.FinishStop && !slices.Contains(c.stops, r.token.Token)
			l.sampled = append(l.sampled, paged.SampledToken{ID: w.ID, Token: r.token.Token})
		}
		l.results = append(l.results, r)
	}
}

// applyResults acts on the drawn tokens: it ends choices and starts others of the same request.
func (l *loop) applyResults() {
	for i := range l.results {
		r := &l.results[i]
		request := r.choice.request
		switch {
		case request.finished: // another choice of it has just failed
		case r.err != nil:
			l.failRequest(request, r.err)
		case !request.followersStarted:
			l.startFollowers(request)
		}
		if !request.finished && r.finish != engine.NotFinished {
			l.completeChoice(r.choice)
		}
	}
}
