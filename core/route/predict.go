package route

import (
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

// mediaTokens returns the tokens of media after the first reused tokens of the prompt: those which are to be encoded.
func (q *Query) mediaTokens(reused int) (n int) {
	for i := range q.Media {
		n += max(q.Media[i].End-max(q.Media[i].Start, reused), 0)
	}
	return n
}

// encodeTimes returns the time of encoding a prompt's media, in ms, and that of the media in a worker's queue: of all
// prefills, and of the first one.
func (r *Router) encodeTimes(w *rates.WorkerRates, id kv.Worker, tokens int) (own, queued, first float64) {
	all, head := r.active.MediaQueued(id)
	return w.EncodeMs(tokens), w.EncodeMs(all), w.EncodeMs(head)
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
