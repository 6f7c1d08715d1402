package batch

import (
	"context"
	"fmt"

	"penstock/core/fault"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// Run computes batches until ctx ends, then releases every request with an Unavailable error and returns nil.
// An engine runs once: a second Run returns a Conflict error.
func (e *Engine) Run(ctx context.Context) error {
	l, err := e.newLoop()
	if err != nil {
		return err
	}
	defer l.shutDown()
	defer e.pool.start(ctx)()
	for ctx.Err() == nil {
		if l.runOnce(ctx) {
			continue
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// runOnce handles the inputs of the loop, computes one batch and reports the results. It reports whether
// there was a batch.
func (l *loop) runOnce(ctx context.Context) bool {
	l.takeAborts()
	l.takeInbox()
	l.takeCalls()
	l.takeEncoded()
	l.failUnencoded()
	busy := l.stepBatch(ctx)
	if busy {
		l.batches.Add(1)
	}
	l.publishReport()
	return busy
}

// loop is the state owned by the goroutine of Run.
type loop struct {
	*Engine
	media     MediaComputer      // the computer; nil if it is none
	discards  DiscardingComputer // the same
	sched     *paged.Scheduler
	scheduled map[paged.SeqID]*choiceSequence // choices in the scheduler
	taken     []*request                      // from the inbox and not released, oldest first
	lastID    paged.SeqID

	// Of one step; the memory is reused.
	plan    paged.Step
	batch   Batch
	choices []*choiceSequence // the owners of batch.States
	sampled []paged.SampledToken

	// For the next report.
	results []tokenResult
	ranges  []paged.RangeID // scratch of takeEncoded, as failed
	failed  []FailedSequence
	ended   []finishedRequest
	freed   int // choices that ended
}

// tokenResult is a token that a step gave a choice, or the end of a prefill.
type tokenResult struct {
	choice         *choiceSequence
	token          engine.Logprob
	finish         engine.Finish
	separateFinish bool  // the finish is not caused by the token
	err            error // no token could be drawn
}

// finishedRequest is a request that the loop released, and why; nil if it is complete.
type finishedRequest struct {
	request *request
	err     error
}

func (e *Engine) newLoop() (*loop, error) {
	card := &e.cfg.Card
	pc := e.cfg.schedulerConfig()
	if e.pool != nil {
		pc.Observer = e.pool
	}
	sched, err := paged.New(pc)
	if err != nil {
		return nil, fmt.Errorf("%s model %s: %w", card.Engine, card.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.phase != phaseFresh {
		return nil, fault.New(fault.Conflict, "%s model %s: the engine ran already; make a new one", card.Engine, card.Name)
	}
	e.mu.phase = phaseRunning
	l := &loop{Engine: e, sched: sched, scheduled: map[paged.SeqID]*choiceSequence{}}
	l.media, _ = e.computer.(MediaComputer)
	l.discards, _ = e.computer.(DiscardingComputer)
	return l, nil
}

// shutDown releases all requests and makes later ones fail.
func (l *loop) shutDown() {
	l.mu.Lock()
	l.mu.phase = phaseStopped
	waiting := l.mu.inbox
	l.mu.inbox = nil
	calls := l.mu.calls
	l.mu.calls = nil
	l.mu.Unlock()
	for _, c := range calls {
		c.done <- stoppedError()
	}
	l.watchers.StopWatches()

	l.taken = append(l.taken, waiting...)
	for len(l.taken) > 0 {
		l.failRequest(l.taken[0], stoppedError())
	}
	l.publishReport()
}
