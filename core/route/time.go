package route

import (
	"errors"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/rates"
)

// TimeCost has the terms of the cost in mode Time, in ms. Each is what the decision costs the request, or other
// requests, if it is sent to the worker.
type TimeCost struct {
	// Wait is the time until the worker's queued prefills are done.
	Wait float64 `json:"wait"`
	// Unheard is between 0 and twice the time of the prefills which other routers probably sent to the worker at the
	// same time, and of which this router has not heard. Where is drawn by what the prompt adds to the caches, so
	// that routers of one view send different prompts to different workers, and prompts which share a prefix that
	// no worker holds to one.
	Unheard float64 `json:"unheard"`
	// Own is the request's prefill, of what is not reused, the encoding of its media there, and the fetching of
	// reuse from slower tiers.
	Own float64 `json:"own"`
	// Evict is the prefill which later requests will repeat, the larger of two. The request's blocks replace blocks of
	// others: the share of Own which [rates.WorkerRates.EvictedShare] says, on a worker which evicted blocks lately, and on
	// one which fills up if the prompt begins with what is cached somewhere:
	// where all is new, room is used best where it is free soonest. And the history which one other worker alone holds
	// beyond a prefix which several hold would be in vain, because the conversation continues here: its prefill, at
	// most 5 steps.
	Evict float64 `json:"evict"`
	// Backlog is the time by which the prefill delays later requests: for each prefill in the shortest queue, by the
	// share of workers which have a longer one, and for each request which other routers probably sent and did not yet
	// report, divided by the number of workers. Where prompts queue, more will follow, and saved work is saved for them
	// too. The rest of longer queues does not count: requests would wait for ever at the one worker which has their
	// histories. What running requests use already, at some worker, is left out of the prefill: once it is computed here
	// too, it serves later requests.
	Backlog float64 `json:"backlog"`
	// Step is the time of one step: until the first token, once the prefill is done.
	Step float64 `json:"step"`
	// Decode is the weighted time of the request's answer, Stall the weighted time for which its prefill stalls
	// the answers which run there, and Slow the weighted time by which its blocks slow them down.
	Decode float64 `json:"decode"`
	Stall  float64 `json:"stall"`
	Slow   float64 `json:"slow"`
	// Interrupt is the weighted time for which the prefills of later requests will interrupt the answer.
	Interrupt float64 `json:"interrupt"`
	// Affinity is the time for which preferences count. It is subtracted.
	Affinity float64 `json:"affinity"`
	// Copy is a quarter of the time which requests have lost because they went to a holder of a prefix which many use,
	// if the prefix would be copied to the worker. It is subtracted.
	Copy float64 `json:"copy"`
}

// Sum returns the cost, in ms.
func (c *TimeCost) Sum() float64 {
	return c.Wait + c.Unheard + c.Own + c.Evict + c.Step + c.Decode + c.Stall + c.Slow + c.Interrupt - c.Affinity + c.Backlog - c.Copy
}

// TimeWeights say how much a ms of delay of answers costs, relative to a ms before a first token.
type TimeWeights struct {
	// Decode weighs the time of the answer, and the delay of the answers of others. Interrupt weighs the time for
	// which later prefills interrupt the answer.
	Decode, Interrupt float64
}

// DefaultTimeWeights returns 0.1 and 0.25: the same for all workloads, engines and fleet sizes.
func DefaultTimeWeights() TimeWeights { return TimeWeights{Decode: 0.1, Interrupt: 0.25} }

func (w *TimeWeights) validate() error {
	if isInRange(w.Decode, maxWeight) && isInRange(w.Interrupt, maxWeight) {
		return nil
	}
	return errors.New("route: the weights of mode time must be between 0 and 1e+09")
}

// historySteps bounds what a moved conversation costs, in steps of decoding: a history of thousands of tokens must not
// keep it on a busy worker.
const historySteps = 5

// holding says how much of a prompt the two workers hold which hold most of it, in blocks.
type holding struct{ most, second int }

func (q *Query) measureHolding() (h holding) {
	for i := range q.Overlaps {
		switch d := q.Overlaps[i].Depth(); {
		case d > h.most:
			h.most, h.second = d, h.most
		case d > h.second:
			h.second = d
		}
	}
	return h
}

// setTimeCost sets the cost in mode Time of the candidate which is being scored: the predicted time to the request's
// first token, what its prefill makes others repeat, and, with small weights, what it costs answers. tokens are left of
// its prompt to be computed after reuse, in blocks.
func (r *Router) setTimeCost(p *requestPolicy, t *Target, refs *targetRefs, tokens, reuse int) {
	w, load := refs.rates, refs.load
	c, now, queue := &r.scoring.candidate, &r.scoring.projection.Now, &r.scoring.projection.Prefills
	at, answer := r.active.Now(), r.scoring.answer
	blockMs := r.blockMsOf(w)
	step, later := w.StepMs(shareOf(now.Blocks, t)), w.StepMs(shareOf(c.DecodeBlocks, t))
	decoding := float64(now.Requests - queue.Requests)

	tc := &c.Time
	encode := w.EncodeMs(c.MediaTokens)
	if queue.Requests > 0 {
		tc.Wait = waitMs(w, queue, at)
	}
	if n := &p.unheard; n.Requests > 0 {
		tc.Unheard = float64(n.Mirrored * toMs(r.active.BurstPrefillAt(load)))
		if n.Next > 0 {
			share := n.Next / float64(len(r.targets))
			tc.Unheard += float64(2 * share * w.PrefillMs(int(n.Tokens/n.Next)) * uniformAt(uint64(t.Worker.ID)<<16^uint64(t.Worker.Rank), p.mark))
		}
	}
	tc.Own = w.PrefillMs(max(tokens, 1)) + encode + float64(c.FetchBlocks*blockMs)
	if r.scoring.held.most > 0 || w.HasEvicted(at) {
		tc.Evict = float64(tc.Own * w.EvictedShare(at, t.Blocks))
	}
	if history := r.scoring.held.most - max(reuse, r.scoring.held.second); history > 0 && r.scoring.held.second > 0 {
		tc.Evict = max(tc.Evict, min(float64(float64(history)*blockMs), historySteps*step))
	}
	tc.Step = step
	weights := r.cfg.Time
	tc.Decode = float64(weights.Decode * answer * later)
	tc.Stall = float64(weights.Decode * decoding * tc.Own)
	tc.Slow = float64(weights.Decode * decoding * answer / 2 * (later - step))
	rho := w.InterruptedShare(at)
	tc.Interrupt = float64(weights.Interrupt * answer * later * rho / (1 - rho))
	if !t.Router {
		c.TTFT, c.ITL = tc.Wait+tc.Own, later/(1-rho)
	}
	tc.Affinity = float64((c.Affinity-c.EmbeddingAffinity)*blockMs) + r.scoring.savedMs
	c.Cost = tc.Sum()
}

// unheardAt returns what other routers probably sent unheard.
func (r *Router) unheardAt(now kv.Mono) activeseq.Unheard {
	if r.turns.routers < 2 || len(r.targets) == 0 {
		return activeseq.Unheard{}
	}
	share := 1.0
	if r.active.IsBurst(now, r.turns.burst) {
		share = r.turns.shareOfOthers()
	}
	return r.active.UnheardAt(now, share)
}

// addBacklog adds to the costs in mode Time what depends on all candidates. details are the same candidates; nil if
// they are not needed.
func (r *Router) addBacklog(p *requestPolicy, cands []scoredCandidate, details []Candidate) {
	shortest, used := cands[0].prefills, int32(0)
	for i := range cands {
		shortest, used = min(shortest, cands[i].prefills), max(used, cands[i].used)
	}
	longer := 0
	for i := range cands {
		if cands[i].prefills > shortest {
			longer++
		}
	}
	queued := float64(shortest) + float64(longer)/float64(len(cands)) + p.unheard.Requests/float64(len(r.targets))
	if queued == 0 {
		return
	}
	for i := range cands {
		c := &cands[i]
		shared := float64(max(used-c.reuse, 0)) * r.blockMsOf(r.refs[c.target].rates)
		backlog := float64(queued * max(c.own-float64(shared), 0))
		c.Cost += backlog
		if details != nil {
			details[i].Time.Backlog = backlog
		}
	}
}

// blockMsOf returns the time which a worker takes to compute one more block of a prompt, in ms.
func (r *Router) blockMsOf(w *rates.WorkerRates) float64 {
	return float64(w.TokenMs() * float64(r.active.BlockSize()))
}

// shareOf returns the share of a worker's blocks; 0 if their number is unknown.
func shareOf(blocks int, t *Target) float64 {
	if t.Blocks < 1 {
		return 0
	}
	return float64(blocks) / float64(t.Blocks)
}

// UnknownCached is the number of cached tokens which a worker has not reported.
const UnknownCached = -1

// RecordFirstToken records the first token of an attempt: its worker has computed the prompt, of which cached
// tokens were in its cache; UnknownCached if it did not say. It reports whether the attempt is reserved. A second
// call changes nothing.
func (r *Router) RecordFirstToken(now kv.Mono, key activeseq.AttemptKey, cached int) bool {
	r.active.AdvanceTime(now)
	p, ok := r.active.PrefillOf(key)
	if !ok {
		return false
	}
	if s, _, _ := r.active.AnswerStartOf(key); s != (activeseq.AnswerStart{}) {
		return true
	}
	r.learnFromOthers()
	if p.Tokens > 0 {
		if cached >= 0 {
			p.Tokens = p.PromptTokens - cached
		}
		placed, _ := r.active.PlacementOf(key)
		r.rates.WorkerOf(p.Worker).RecordMedia(min(r.active.MediaTokensOf(key)-placed.HeldMedia, p.Tokens))
		r.recordPrefill(now, &p)
	}
	w := r.rates.WorkerOf(p.Worker)
	r.active.MarkPrefilled(key)
	r.active.SetAnswerStart(key, activeseq.AnswerStart{At: now, Blocks: r.active.LoadOf(p.Worker).Blocks, PrefilledMs: r.prefilledMs(w, p.Worker, now)})
	return true
}

// prefilledMs returns the time which a worker has spent on prefills until now, with the one in progress.
func (r *Router) prefilledMs(w *rates.WorkerRates, id kv.Worker, now kv.Mono) float64 {
	ms := w.PrefilledMs()
	if q := r.active.PrefillQueueOf(id); q.Requests > 0 {
		ms += toMs(max(now.Sub(q.Since), 0))
	}
	return ms
}

// recordPrefill records a prefill which ended at now.
func (r *Router) recordPrefill(now kv.Mono, p *activeseq.Prefill) {
	if w := r.rates.WorkerOf(p.Worker); p.IsFirst {
		took := now.Sub(p.Since)
		w.RecordPrefill(now, p.Tokens, took)
		if r.active.LoadOf(p.Worker).Requests > r.active.PrefillQueueOf(p.Worker).Requests {
			w.RecordInterruption(now, took)
		}
	} else {
		w.RecordEarlyPrefill(p.Tokens)
	}
}

// learnFromOthers records the prefills which other routers sent and reported as done.
func (r *Router) learnFromOthers() {
	finished := r.active.TakeFinished()
	for i := range finished {
		r.recordPrefill(finished[i].At, &finished[i].Prefill)
	}
}

// RecordAnswer records the end of an answer of so many tokens which an attempt generated from its first token to
// its last one. The caller frees the reservation, also of attempts which failed; those are not passed here.
func (r *Router) RecordAnswer(now kv.Mono, key activeseq.AttemptKey, tokens int) {
	s, id, ok := r.active.AnswerStartOf(key)
	if !ok || s == (activeseq.AnswerStart{}) {
		return
	}
	w := r.rates.WorkerOf(id)
	blocks := (s.Blocks + r.active.LoadOf(id).Blocks) / 2
	share := 0.0
	if at, found := findTarget(r.targets, id); found {
		share = shareOf(blocks, &r.targets[at])
	}
	w.RecordAnswer(rates.AnswerSample{Tokens: tokens, Took: now.Sub(s.At), Prefilled: r.prefilledMs(w, id, now) - s.PrefilledMs, Share: share})
}

// RecordEviction records that a worker evicted so many blocks.
func (r *Router) RecordEviction(now kv.Mono, w kv.Worker, blocks int) {
	if at, found := findTarget(r.targets, w); found {
		r.refs[at].rates.RecordEviction(now, blocks)
	}
}

// RecordCached records how many blocks a worker has cached.
func (r *Router) RecordCached(w kv.Worker, blocks int) {
	if at, found := findTarget(r.targets, w); found {
		r.refs[at].rates.RecordCached(blocks)
	}
}

// Rates returns the learned rates, for reading.
func (r *Router) Rates() *rates.Learner { return r.rates }

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func toDuration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
