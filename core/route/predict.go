package route

import (
	"slices"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/rates"
)

// FirstToken compares the time to a first token with what was predicted.
type FirstToken struct {
	Worker              kv.Worker
	Predicted, Observed time.Duration
}

// CompareFirstToken compares the first token of an attempt, which is there now, with its prediction, and learns the
// margin of targets from it; call it before RecordFirstToken. ok is false if the attempt is not reserved, had its
// first token before, or had no prediction.
func (r *Router) CompareFirstToken(now kv.Mono, key activeseq.AttemptKey) (t FirstToken, ok bool) {
	p, ok := r.active.PlacementOf(key)
	if !ok || p.ExpectedFirst == 0 {
		return t, false
	}
	if s, _, _ := r.active.AnswerStartOf(key); s != (activeseq.AnswerStart{}) {
		return t, false
	}
	t = FirstToken{p.Worker, p.ExpectedFirst, max(now.Sub(p.At), 0)}
	r.margin.addTime(t.Predicted, t.Observed)
	return t, true
}

// ttftMargin learns by how much predictions must be increased for nine of ten first tokens to come in time: engines
// compute several prompts in one pass, whose first tokens then come at its end, and a target is met by most requests
// only if the prediction leaves room for that.
type ttftMargin struct{ share float64 }

const (
	marginQuantile = 0.9
	marginStep     = 0.05
	maxMargin      = 4.0
)

// addTime moves the share towards the quantile: up by nine steps for each first token which comes later than with
// the margin, down by one for each which does not.
func (m *ttftMargin) addTime(predicted, observed time.Duration) {
	late := float64(observed)/float64(predicted) - 1
	if late > m.share {
		m.share = min(m.share+marginQuantile*marginStep, maxMargin)
	} else {
		m.share = max(m.share-(1-marginQuantile)*marginStep, 0)
	}
}

// mediaTokens returns the tokens of media after the first reused tokens of the prompt, which are to be encoded.
func (q *Query) mediaTokens(reused int) (n int) {
	for i := range q.Media {
		n += max(q.Media[i].End-max(q.Media[i].Start, reused), 0)
	}
	return n
}

// heldTokens returns the part of mediaTokens whose embeddings a worker holds.
func (q *Query) heldTokens(w kv.Worker, reused int) (n int) {
	at, found := slices.BinarySearchFunc(q.Held, w, func(h HeldMedia, w kv.Worker) int { return h.Worker.Compare(w) })
	if !found {
		return 0
	}
	for i := range q.Media[:min(len(q.Media), MaxHeldMedia)] {
		if q.Held[at].Objects>>i&1 != 0 {
			n += max(q.Media[i].End-max(q.Media[i].Start, reused), 0)
		}
	}
	return n
}

// mediaTokens returns the tokens of q's media which are to be encoded at a candidate.
func (r *Router) mediaTokens(q *Query, c *scoredCandidate) int {
	return q.mediaTokens(int(c.reuse) * r.active.BlockSize())
}

// waitMs returns the time, in ms, until the prefills of a worker's queue are done.
func waitMs(w *rates.WorkerRates, queue *activeseq.PrefillQueue, at kv.Mono) float64 {
	if queue.Requests == 0 {
		return 0
	}
	done := min(toMs(at.Sub(queue.Since)), w.PrefillMs(queue.FirstTokens)+w.EncodeMs(queue.FirstMedia))
	return max(w.PrefillMs(queue.Tokens)+w.EncodeMs(queue.MediaTokens)-max(done, 0), 0)
}

// predictTimes sets the times which are predicted for a request at a candidate, in ms: its own prefill with what is
// fetched and encoded for it, and, unless it is a router process, TTFT and ITL. Mode Time has set them with the cost.
func (r *Router) predictTimes(p *requestPolicy, q *Query, c *scoredCandidate) {
	if p.mode == Time {
		return
	}
	t, w, at := &r.targets[c.target], r.refs[c.target].rates, r.active.Now()
	fetch := float64(c.fetch * float64(r.active.BlockSize()) * w.TokenMs())
	c.own = w.PrefillMs(max(r.prefillTokens(q, int(c.reuse)), 1)) + fetch + w.EncodeMs(r.mediaTokens(q, c))
	if t.Router {
		return
	}
	queue := r.active.PrefillQueueOf(t.Worker)
	c.ttft = waitMs(w, &queue, at) + c.own
	c.itl = w.StepMs(shareOf(int(c.decode), t)) / (1 - w.InterruptedShare(at))
}

// predictWork returns what a request uses of a worker's time, in ms: its own prefill, and its answer as far as that
// counts against one (see TimeWeights).
func (r *Router) predictWork(q *Query, c *scoredCandidate) float64 {
	answer := r.rates.AnswerTokens("")
	if q.ExpectedOutput > 0 {
		answer = float64(q.ExpectedOutput)
	}
	step := r.refs[c.target].rates.StepMs(shareOf(int(c.decode), &r.targets[c.target]))
	return c.own + float64(r.cfg.Time.Decode*answer*step)
}

// WorkerSpeed is what was learned of a worker's speed, in ms.
type WorkerSpeed struct {
	// PrefillFixed and PrefillThousand are the time of a prefill: its fixed part, and for each 1,000 prompt tokens.
	PrefillFixed, PrefillThousand float64
	// Step is the time between two tokens of an answer at the worker's load. Relative is its time for some work
	// relative to a typical worker.
	Step, Relative float64
}

// SpeedOf returns what was learned of a worker's speed.
func (r *Router) SpeedOf(id kv.Worker) (s WorkerSpeed, ok bool) {
	at, ok := findTarget(r.targets, id)
	if !ok {
		return s, false
	}
	w := r.rates.WorkerOf(id)
	each := w.TokenMs()
	return WorkerSpeed{
		PrefillFixed: w.PrefillMs(1) - each, PrefillThousand: 1000 * each,
		Step: w.StepMs(shareOf(r.active.LoadOf(id).Blocks, &r.targets[at])), Relative: w.Speed(),
	}, true
}
