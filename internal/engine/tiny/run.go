package tiny

import (
	"context"
	"fmt"

	"penstock/core/fault"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/sample"
)

// Run computes batches until ctx ends, then lets go of every request with an
// Unavailable error and returns nil. An engine runs once: after that, Run
// returns a Conflict error.
func (e *Engine) Run(ctx context.Context) error {
	l, err := e.begin()
	if err != nil {
		return err
	}
	defer l.end()
	for ctx.Err() == nil {
		if l.turn() {
			continue
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// turn looks at what was handed to the loop, computes one batch and tells what
// came of it. It reports whether there was a batch.
func (l *loop) turn() bool {
	l.takeAborts()
	l.takeInbox()
	busy := l.step()
	l.report()
	return busy
}

// loop is what the goroutine of Run owns.
type loop struct {
	*Engine
	sched   *paged.Scheduler
	sampler *sample.Sampler
	live    map[paged.SeqID]*choice // that the scheduler has
	taken   []*request              // from the inbox and not released, oldest first
	lastID  paged.SeqID

	// Of one step, reused by the next.
	plan    paged.Step
	work    []model.Work
	logits  [][]float32 // rows, one for each sequence that samples
	sampled []paged.Sampled
	allowed []uint64 // by a guide, as bits

	// What report is to tell.
	results []result
	ended   []ending
	freed   int // choices that ended
}

// result is a token that a step gave a choice, or the end of an embedding.
type result struct {
	choice *choice
	token  engine.Logprob
	finish engine.Finish
	bare   bool  // the end is not that of the token
	err    error // no token could be drawn
}

// ending is a request that the loop let go of, and why; nil if it is complete.
type ending struct {
	request *request
	err     error
}

func (e *Engine) begin() (*loop, error) {
	sched, err := paged.New(e.scheduler)
	if err != nil {
		return nil, fmt.Errorf("tiny model %s: %w", e.cfg.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.phase != fresh {
		return nil, fault.New(fault.Conflict, "tiny model %s: the engine ran already; make a new one", e.cfg.Name)
	}
	e.mu.phase = running
	return &loop{
		Engine:  e,
		sched:   sched,
		sampler: sample.New(e.card.VocabSize, e.mask),
		live:    map[paged.SeqID]*choice{},
	}, nil
}

// end releases everybody and refuses whoever comes later.
func (l *loop) end() {
	l.mu.Lock()
	l.mu.phase = stopped
	waiting := l.mu.inbox
	l.mu.inbox = nil
	l.mu.Unlock()
	l.watchers.stop()

	l.taken = append(l.taken, waiting...)
	for len(l.taken) > 0 {
		l.fail(l.taken[0], errStopped())
	}
	l.report()
}
