package batch

import (
	"sync"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// outbox carries one request's output from the loop to the caller of Generate. The loop never waits for it:
// pending output is merged into one delta per choice, so that its size is bounded by the request's own token
// limits.
type outbox struct {
	attempt uint32
	// ready has capacity 1: it signals that there is something to take.
	ready chan struct{}

	mu struct {
		sync.Mutex
		accepted bool
		pending  []pendingDelta // by choice
		closed   bool
		err      error
	}

	// Used only by the caller of Generate.
	announced bool
	deltas    []engine.Delta
	spare     []pendingDelta // memory of the deltas returned before
}

// pendingDelta is the pending output of one choice.
type pendingDelta struct {
	pos            int
	tokens         []kv.Token
	logprobs       []engine.Logprob
	cached         int
	computed       int
	finish         engine.Finish
	separateFinish bool // the finish is a delta of its own
}

func (p *pendingDelta) isEmpty() bool { return len(p.tokens) == 0 && p.finish == engine.NotFinished }

// newOutbox returns the outbox of a request with choices choices; generated is nil or their earlier output.
func newOutbox(attempt uint32, choices int, generated [][]kv.Token) *outbox {
	o := &outbox{attempt: attempt, ready: make(chan struct{}, 1), spare: make([]pendingDelta, choices)}
	o.mu.pending = make([]pendingDelta, choices)
	for i := range generated {
		o.mu.pending[i].pos = len(generated[i])
	}
	return o
}

// markAccepted records that the engine took the request.
func (o *outbox) markAccepted() {
	o.mu.Lock()
	o.mu.accepted = true
	o.mu.Unlock()
	o.signalReady()
}

// appendToken appends one token of a choice. cached and computed count if it is the choice's first token; the
// log-probability is kept unless it is nil.
func (o *outbox) appendToken(choice int, token kv.Token, logprob *engine.Logprob, cached, computed int, finish engine.Finish) {
	o.mu.Lock()
	p := &o.mu.pending[choice]
	p.tokens = append(p.tokens, token)
	if logprob != nil {
		p.logprobs = append(p.logprobs, *logprob)
	}
	p.cached += cached
	p.computed += computed
	p.finish = finish
	o.mu.Unlock()
	o.signalReady()
}

// finishChoice ends a choice with a delta that has no tokens.
func (o *outbox) finishChoice(choice int, finish engine.Finish) {
	o.mu.Lock()
	p := &o.mu.pending[choice]
	p.finish, p.separateFinish = finish, true
	o.mu.Unlock()
	o.signalReady()
}

// close records that no more output comes, because all choices ended or because of err. Only the first call
// has an effect.
func (o *outbox) close(err error) {
	o.mu.Lock()
	if !o.mu.closed {
		o.mu.closed, o.mu.err = true, err
	}
	o.mu.Unlock()
	o.signalReady()
}

func (o *outbox) signalReady() {
	select {
	case o.ready <- struct{}{}:
	default: // already signalled
	}
}

// takeDeltas returns the pending deltas, in order of choice, and whether they are the last. They are valid
// until the next call.
func (o *outbox) takeDeltas() (deltas []engine.Delta, last bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deltas = o.deltas[:0]
	if !o.mu.accepted {
		return nil, o.mu.closed, o.mu.err // choices that finished at once also wait for the acceptance
	}
	if !o.announced {
		o.announced = true
		o.deltas = append(o.deltas, engine.Delta{Attempt: o.attempt, Accepted: true})
	}
	for i := range o.mu.pending {
		p := &o.mu.pending[i]
		if p.isEmpty() {
			continue
		}
		d := engine.Delta{Attempt: o.attempt, Choice: i, Pos: p.pos, Tokens: p.tokens, Logprobs: p.logprobs, Cached: p.cached, Computed: p.computed, Finish: p.finish}
		if p.separateFinish && len(p.tokens) > 0 {
			d.Finish = engine.NotFinished
			o.deltas = append(o.deltas, d)
			d = engine.Delta{Attempt: o.attempt, Choice: i, Pos: p.pos + len(p.tokens), Finish: p.finish}
		}
		o.deltas = append(o.deltas, d)
		next := pendingDelta{pos: p.pos + len(p.tokens), tokens: o.spare[i].tokens[:0], logprobs: o.spare[i].logprobs[:0]}
		o.spare[i] = *p
		*p = next
	}
	return o.deltas, o.mu.closed, o.mu.err
}
