package tiny

import (
	"fmt"
	"runtime/debug"
	"slices"

	"penstock/core/fault"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/model"
)

// step computes one batch and reports whether there was one.
func (l *loop) step() bool {
	l.sched.Step(&l.plan)
	for _, id := range l.plan.Failed {
		// Cannot be: a choice ends when it reaches the context's length.
		if c := l.live[id]; c != nil {
			l.fail(c.request, fault.New(fault.Internal, "the sequence outgrew the context; report this"))
		}
	}
	if len(l.plan.Work) == 0 {
		return false
	}
	l.prepare()
	if err := l.compute(); err != nil {
		l.failBatch(err)
		return true
	}
	l.sampleAll()
	l.sched.Commit(l.sampled)
	l.settle()
	return true
}

// prepare turns the plan into work for the model, with a row of logits for each
// sequence that samples, and the sum for each that is embedded.
func (l *loop) prepare() {
	l.work = l.work[:0]
	rows := 0
	for i := range l.plan.Work {
		w := &l.plan.Work[i]
		work := model.Work{Tokens: w.Tokens, Start: w.Start, Blocks: w.Blocks}
		switch sum := l.live[w.ID].request.sum; {
		case sum != nil:
			if w.Start == 0 { // for the first time, or again after a preemption
				clear(sum)
			}
			work.Sum = sum
		case w.Sample:
			if rows == len(l.logits) {
				l.logits = append(l.logits, make([]float32, l.card.VocabSize))
			}
			work.Logits = l.logits[rows]
			rows++
		}
		l.work = append(l.work, work)
	}
}

// compute runs the model. A panic in it is an error of this batch: nothing that
// was computed counts until Commit, so the scheduler just forgets it.
func (l *loop) compute() (err error) {
	const message = "the engine failed to compute the batch that the request was in; report this with the worker's log"
	defer func() {
		if v := recover(); v != nil {
			err = &fault.Error{Code: fault.Internal, Message: message, Err: fmt.Errorf("forward: panic: %v\n%s", v, debug.Stack())}
		}
	}()
	if err := l.forward.Forward(l.cache, l.work); err != nil {
		return &fault.Error{Code: fault.Internal, Message: message, Err: err}
	}
	return nil
}

// failBatch fails every request of the plan: whose work it was that failed
// cannot be known.
func (l *loop) failBatch(err error) {
	for i := range l.plan.Work {
		if c := l.live[l.plan.Work[i].ID]; c != nil {
			l.fail(c.request, err)
		}
	}
}

// sampleAll draws the tokens that the plan asks for, and ends what is embedded. A request for which none
// can be drawn fails in settle.
func (l *loop) sampleAll() {
	l.sampled, l.results = l.sampled[:0], l.results[:0]
	for i := range l.plan.Work {
		w := &l.plan.Work[i]
		if !w.Sample {
			continue
		}
		c := l.live[w.ID]
		if c.request.sum != nil { // complete, without a token
			l.results = append(l.results, result{choice: c, finish: engine.FinishStop})
			continue
		}
		r := result{choice: c}
		r.token, r.err = l.draw(c, l.work[i].Logits)
		if r.err == nil {
			r.finish = c.finish(r.token.Token, c.sampler.Position())
			r.bare = r.finish == engine.FinishStop && !slices.Contains(c.stops, r.token.Token)
			l.sampled = append(l.sampled, paged.Sampled{ID: w.ID, Token: r.token.Token})
		}
		if !c.request.led {
			c.request.cached = w.Cached
		}
		l.results = append(l.results, r)
	}
}

// draw draws a choice's next token, one that its guide allows.
func (l *loop) draw(c *choice, logits []float32) (engine.Logprob, error) {
	if c.guide == nil {
		return l.sampler.Next(c.sampler, logits, nil)
	}
	allowed, err := c.guide.allowed(l.allowed, c.sampler.Position())
	if err != nil {
		return engine.Logprob{}, err
	}
	l.allowed = allowed
	token, err := l.sampler.Next(c.sampler, logits, allowed)
	if err == nil {
		err = c.guide.take(token.Token)
	}
	return token, err
}

// settle acts on the tokens that were drawn: choices end, others of the same
// request begin.
func (l *loop) settle() {
	for i := range l.results {
		r := &l.results[i]
		request := r.choice.request
		switch {
		case request.over: // another choice of it failed just now
		case r.err != nil:
			l.fail(request, r.err)
		case !request.led:
			l.follow(request)
		}
		if !request.over && r.finish != engine.NotFinished {
			l.complete(r.choice)
		}
	}
}
