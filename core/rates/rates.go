// Package rates learns how fast workers are, from what their requests showed: how long a prefill takes, how long
// a step of decoding takes, how much of its time a worker spends on prefill, and how long answers are. Its
// quantities are tokens, shares of a worker's blocks and milliseconds. It knows neither routers nor requests, so
// that everything which plans work can use one Learner.
//
// A Learner has the rates of one model: two lines, for a worker of average speed, and a speed for
// each worker:
//
//	prefill(w, tokens) = speed(w) * (fixed + tokens*each)
//	step(w, share)     = speed(w) * (fixed + share*each)     share: active blocks / blocks of the worker
//
// A Learner has one owner: its methods must not run concurrently. Equal calls give equal results on all
// architectures.
package rates

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"penstock/core/exact"
	"penstock/core/kv"
)

// Config holds the priors of a Learner: what is assumed before anything is learned.
type Config struct {
	// PrefillFixed and PrefillToken are the time of a prefill: a part for each pass, and a part for each token.
	PrefillFixed, PrefillToken time.Duration
	// Step is the time between two tokens of an answer.
	Step time.Duration
	// AnswerTokens is the length of an answer.
	AnswerTokens int
}

// EnsureDefaults fills in the fields which are not set: 10 ms and 20 µs, 8 ms, 200 tokens. A model of 8 billion
// parameters on one accelerator of 2024 is about that fast. Rates which are too low cost more than rates which
// are too high: waits seem to be over before they are.
func (c *Config) EnsureDefaults() {
	if c.PrefillFixed == 0 {
		c.PrefillFixed = 10 * time.Millisecond
	}
	if c.PrefillToken == 0 {
		c.PrefillToken = 20 * time.Microsecond
	}
	if c.Step == 0 {
		c.Step = 8 * time.Millisecond
	}
	if c.AnswerTokens == 0 {
		c.AnswerTokens = 200
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"fixed prefill time", c.PrefillFixed}, {"prefill time of a token", c.PrefillToken}, {"step time", c.Step}} {
		if d.value <= 0 || d.value > time.Minute {
			errs = append(errs, fmt.Errorf("rates: the %s must be above 0 and at most a minute, not %v", d.name, d.value))
		}
	}
	if c.AnswerTokens < 1 || c.AnswerTokens > maxTokens {
		errs = append(errs, fmt.Errorf("rates: the length of an answer must be between 1 and %d tokens, not %d", maxTokens, c.AnswerTokens))
	}
	return errors.Join(errs...)
}

const (
	// maxTokens and maxSample bound what one sample can say.
	maxTokens = 1 << 26
	maxSample = time.Hour
	// speedForget is the weight of a worker's earlier samples relative to the next one. lineError is by how much
	// workers differ which are equally fast, because their prompts differ and times are no line.
	speedForget = 0.95
	lineError   = 0.25
	// shareTime is the time over which the share of prefill is averaged: shorter is noisy, and longer does not
	// see a burst. Above maxShare workers are as good as saturated, and which one a little less so is chance.
	shareTime = 5 * time.Second
	maxShare  = 0.5
	// evictionTime is how long an eviction shows that the cache is full, and the time over which evictions are counted.
	// maxPressure bounds how much more a block costs where blocks are evicted faster than elsewhere.
	evictionTime = time.Minute
	maxPressure  = 2
	// maxRun bounds the passes of a run.
	maxRun = 8
	// alikeShares is the difference of two shares of a worker's blocks below which its steps are alike.
	alikeShares = 0.1
	// passWindow is the time within which first tokens of one worker come from the same pass of its engine.
	passWindow = time.Millisecond
)

// Learner holds the rates of one model.
type Learner struct {
	prefill, step lineFit
	encode        lineFit // of media, by their tokens
	answers       lengthTable
	workers       map[kv.Worker]*WorkerRates
	sampled       int        // workers with samples of prefills
	speeds        float64    // sum over them
	typical       int        // of them, whose speed is 1
	interruptions decayClock // of WorkerRates.interrupted
	evictions     decayClock // of evictedBlocks
	evictedBlocks float64    // sum over the workers
}

// decayClock has sums of many workers decay together: a sum is kept as it would be at epoch, and one factor, which is
// computed once for each moment, makes it that of now.
type decayClock struct {
	time      time.Duration // in which sums fall by e
	epoch, at kv.Mono
	factor    float64 // at at
}

// factorAt returns the factor from the epoch to now.
func (d *decayClock) factorAt(now kv.Mono) float64 {
	if now != d.at || d.factor == 0 {
		d.at, d.factor = now, exact.Exp(-float64(now.Sub(d.epoch))/float64(d.time))
	}
	return d.factor
}

// advanceEpoch moves the epoch to now if it is so long ago that what samples are divided by comes near 0. It returns what
// the sums are to be multiplied with.
func (d *decayClock) advanceEpoch(now kv.Mono) float64 {
	if now.Sub(d.epoch) < 60*d.time {
		return 1
	}
	factor := d.factorAt(now)
	*d = decayClock{time: d.time, epoch: now}
	return factor
}

// New returns a table which has learned nothing.
func New(cfg Config) (*Learner, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	fixed, each, step := toMs(cfg.PrefillFixed), toMs(cfg.PrefillToken), toMs(cfg.Step)
	t := &Learner{
		workers: map[kv.Worker]*WorkerRates{}, interruptions: decayClock{time: shareTime}, evictions: decayClock{time: evictionTime},
	}
	t.prefill.setPrior(line{fixed, each}, 4096, fixed/each)
	t.step.setPrior(line{step, 0}, 1, alikeShares)
	t.encode.setPrior(line{encodeFixed, encodeEach}, 4096, encodeFixed/encodeEach)
	t.answers.setPrior(cfg.AnswerTokens)
	return t, nil
}

// WorkerRates holds the rates of one worker.
type WorkerRates struct {
	table *Learner
	// took and expected are the decayed sums of the times of prefills and of what the line gives for them;
	// samples is the decayed number of them, and spread the decayed sum of the squares by which they were off.
	took, expected, samples, spread float64
	speed                           float64 // 1 without samples
	sampled                         bool

	pass        prefillRun
	mediaTokens int // for the next prefill, see RecordMedia
	earlyTokens int // of prompts which were computed before the head of the queue

	// interrupted is the time of prefills which interrupted answers, in ms, decaying with shareTime, by
	// Learner.interruptions.
	interrupted float64
	prefilled   float64 // ms of prefill in total

	cached    int // blocks
	evicted   bool
	evictedAt kv.Mono
	// evictedBlocks decays with evictionTime, by Learner.evictions.
	evictedBlocks float64
}

// prefillRun is a run of passes without a pause: a sample, once later first tokens cannot belong to it. A pass also
// computes the beginnings of the next prompts, so that the times of single prompts say too much of the fixed part and
// too little of the tokens.
type prefillRun struct {
	at     kv.Mono // of the last first token
	tokens int
	took   float64 // ms; 0 if there is none
	passes int     // with first tokens
	media  int     // tokens of media which were encoded
}

// WorkerOf returns the rates of w, which start with the speed of an average worker. The pointer is valid until
// DropWorker.
func (t *Learner) WorkerOf(w kv.Worker) *WorkerRates {
	r := t.workers[w]
	if r == nil {
		r = &WorkerRates{table: t, speed: 1}
		t.workers[w] = r
	}
	return r
}

// DropWorker forgets w. What was learned of it about the model stays.
func (t *Learner) DropWorker(w kv.Worker) {
	if r := t.workers[w]; r != nil {
		t.countSpeed(r, -1)
		delete(t.workers, w)
		// Summed anew and in a fixed order: a difference would keep the rounding errors of a large sum.
		t.evictedBlocks = 0
		for _, id := range slices.SortedFunc(maps.Keys(t.workers), kv.Worker.Compare) {
			t.evictedBlocks += t.workers[id].evictedBlocks
		}
	}
}

// RecordPrefill records the first token of a request which was the head of its worker's queue of prefills: the
// engine computed so many tokens of its prompt, and took so long since the prompt became the head. First tokens
// which arrive together are of one pass of the engine, and one sample. The caller passes no failed or cancelled
// attempts.
func (r *WorkerRates) RecordPrefill(now kv.Mono, tokens int, took time.Duration) {
	tokens = min(max(tokens, 1), maxTokens)
	switch {
	case took <= passWindow && r.pass.took > 0 && now.Sub(r.pass.at) <= passWindow:
		r.pass.tokens = min(r.pass.tokens+tokens, maxTokens)
		r.pass.media, r.mediaTokens = min(r.pass.media+r.mediaTokens, maxTokens), 0
		return
	case took <= 0:
		return
	}
	ms := toMs(min(took, maxSample))
	if p := &r.pass; p.took > 0 && p.passes < maxRun && now.Sub(p.at)-took <= passWindow {
		p.at, p.tokens, p.took, p.passes = now, min(p.tokens+tokens+r.earlyTokens, maxTokens), p.took+ms, p.passes+1
	} else {
		r.learnRun()
		r.pass = prefillRun{at: now, tokens: min(tokens+r.earlyTokens, maxTokens), took: ms, passes: 1}
	}
	r.pass.media = min(r.pass.media+r.mediaTokens, maxTokens)
	r.earlyTokens, r.mediaTokens = 0, 0
	r.prefilled += ms
}

// RecordInterruption records that a prefill took so long while the worker computed answers, which it interrupted.
func (r *WorkerRates) RecordInterruption(now kv.Mono, took time.Duration) {
	if took <= 0 {
		return
	}
	t := r.table
	if factor := t.interruptions.advanceEpoch(now); factor < 1 {
		for _, o := range t.workers {
			o.interrupted = float64(o.interrupted * factor)
		}
	}
	r.interrupted += toMs(min(took, maxSample)) / t.interruptions.factorAt(now)
}

// RecordEarlyPrefill records the first token of a request which was not the head of the queue: its tokens belong
// to the sample of the head.
func (r *WorkerRates) RecordEarlyPrefill(tokens int) {
	r.earlyTokens = min(r.earlyTokens+min(max(tokens, 1), maxTokens), maxTokens)
}

// RecordEviction records that the worker evicted so many cached blocks.
func (r *WorkerRates) RecordEviction(now kv.Mono, blocks int) {
	r.evicted, r.evictedAt = true, max(now, r.evictedAt)
	t := r.table
	if factor := t.evictions.advanceEpoch(now); factor < 1 {
		for _, o := range t.workers {
			o.evictedBlocks = float64(o.evictedBlocks * factor)
		}
		t.evictedBlocks = float64(t.evictedBlocks * factor)
	}
	n := float64(min(max(blocks, 0), maxTokens)) / t.evictions.factorAt(now)
	r.evictedBlocks += n
	t.evictedBlocks += n
}

// HasEvicted reports whether the worker evicted cached blocks in the last minute: new blocks then replace others.
func (r *WorkerRates) HasEvicted(now kv.Mono) bool {
	return r.evicted && now.Sub(r.evictedAt) < evictionTime
}

// RecordCached records how many blocks the worker has cached.
func (r *WorkerRates) RecordCached(blocks int) { r.cached = max(blocks, 0) }

// EvictedShare returns the share of a new block which the block will cost others, of a worker with so many blocks; 0 if
// their number is unknown. If the worker evicted lately it is 1, and less or more, at most 2, where blocks are evicted
// slower or faster than in the mean of all workers: what is evicted faster was used more lately. Before, it rises with
// the share of its blocks which are cached, by the mean of that share and its square: of two caches the one with more
// room is better, and the more so the fuller they are.
func (r *WorkerRates) EvictedShare(now kv.Mono, blocks int) float64 {
	if r.HasEvicted(now) {
		t := r.table
		if t.evictedBlocks == 0 {
			return 1
		}
		return min(float64(r.evictedBlocks*float64(len(t.workers)))/t.evictedBlocks, maxPressure)
	}
	if blocks < 1 {
		return 0
	}
	full := min(float64(r.cached)/float64(blocks), 1)
	return float64(full*(1+full)) / 2
}

// learnRun takes the mean of the last run as a sample.
func (r *WorkerRates) learnRun() {
	p := r.pass
	r.pass = prefillRun{}
	if p.took == 0 {
		return
	}
	if p.media > 0 {
		r.learnEncoding(&p)
		return
	}
	t := r.table
	n := float64(p.passes)
	tokens := float64(p.tokens) / n
	expected := t.prefill.at(tokens)
	took := t.prefill.boundSample(p.took/n, expected*r.relativeSpeed())
	t.prefill.addSample(tokens, took/r.relativeSpeed())

	r.took = float64(r.took*speedForget) + took
	r.expected = float64(r.expected*speedForget) + expected
	r.samples = float64(r.samples*speedForget) + 1
	ratio := r.took / r.expected
	off := took/expected - ratio
	r.spread = float64(r.spread*speedForget) + float64(off*off)
	t.countSpeed(r, -1)
	r.speed, r.sampled = 1+float64((ratio-1)*r.trustOf(ratio)), true
	t.countSpeed(r, 1)
}

// countSpeed adds n times a worker to the sums over those with samples.
func (t *Learner) countSpeed(r *WorkerRates, n int) {
	if !r.sampled {
		return
	}
	t.sampled += n
	t.speeds += float64(float64(n) * r.speed)
	if r.speed == 1 {
		t.typical += n
	}
}

// trustOf returns how much of a worker's difference from the others is believed: none if it may be chance, nearly
// all if it is several times its standard error.
func (r *WorkerRates) trustOf(ratio float64) float64 {
	d := ratio - 1
	if d == 0 || r.samples < 2 {
		return 0
	}
	variance := r.spread / float64(r.samples*r.samples) // of the mean of the samples
	return max(0, 1-(float64(4*variance)+float64(lineError*lineError))/float64(d*d))
}

// relativeSpeed returns the worker's time for some work relative to a typical worker, for which the lines are: of the
// workers with samples one which does not differ, if at least half do not, else the mean. One without samples is taken
// to be typical: that the lines' prior is wrong must not make the only worker with samples a fast one.
func (r *WorkerRates) relativeSpeed() float64 {
	t := r.table
	if !r.sampled || 2*t.typical >= t.sampled {
		return r.speed
	}
	return r.speed * float64(t.sampled) / t.speeds
}

// AnswerSample describes an answer which ended well.
type AnswerSample struct {
	Client string
	Tokens int
	// Took is the time from the first token to the last one. Prefilled is the part of it which the worker spent
	// on prefills, in ms: the difference of [WorkerRates.PrefilledMs].
	Took      time.Duration
	Prefilled float64
	// Share is the share of the worker's blocks which were active, in the mean; 0 if unknown.
	Share float64
}

// RecordAnswer learns the time of a step and the length of an answer.
func (r *WorkerRates) RecordAnswer(a AnswerSample) {
	if a.Tokens < 1 || a.Tokens > maxTokens {
		return
	}
	t := r.table
	t.answers.addLength(a.Client, a.Tokens)
	ms, prefilled := toMs(min(a.Took, maxSample)), max(a.Prefilled, 0)
	if a.Tokens < 2 || ms <= 0 || prefilled > ms/2 {
		return // too little of it is steps
	}
	ms -= prefilled
	share, relative := min(max(a.Share, 0), 1), r.relativeSpeed()
	step := ms / float64(a.Tokens-1) / relative
	t.step.addSample(share, t.step.boundSample(step, t.step.at(share)))
}

// PrefillMs returns the expected time of a prefill, in ms; 0 for no tokens.
func (r *WorkerRates) PrefillMs(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	return float64(r.relativeSpeed() * r.table.prefill.at(float64(tokens)))
}

// TokenMs returns the part of PrefillMs which each token adds, in ms.
func (r *WorkerRates) TokenMs() float64 { return float64(r.relativeSpeed() * r.table.prefill.each) }

// StepMs returns the expected time between two tokens of an answer, in ms, while a share of the worker's blocks
// is active.
func (r *WorkerRates) StepMs(share float64) float64 {
	return float64(r.relativeSpeed() * r.table.step.at(min(max(share, 0), 1)))
}

// InterruptedShare returns the share of its time, at most 0.5, for which prefills interrupted the worker's answers
// lately. Prefills beside which nothing ran do not count: the requests of one client, each sent after the answer to the
// one before, interrupt nothing. It is 0 until the times of prefills are known, because it is weighed against them:
// beside a prior which is far too low, the time which one prompt took would seem to be that of many.
func (r *WorkerRates) InterruptedShare(now kv.Mono) float64 {
	if r.interrupted == 0 || r.table.prefill.samples < trusted {
		return 0
	}
	return min(float64(r.interrupted*r.table.interruptions.factorAt(now))/toMs(shareTime), maxShare)
}

// PrefilledMs returns the time which the worker has spent on prefills in total, in ms.
func (r *WorkerRates) PrefilledMs() float64 { return r.prefilled }

// Speed returns the worker's time for some work relative to a typical worker: 2 is half as fast.
func (r *WorkerRates) Speed() float64 { return r.relativeSpeed() }

// AnswerTokens returns the mean length of the client's answers, of all answers while too few of the client's are
// known.
func (t *Learner) AnswerTokens(client string) float64 { return t.answers.mean(client) }

// AnswerQuantile returns the length which a share q of the client's answers does not exceed, within 10 %.
func (t *Learner) AnswerQuantile(client string, q float64) float64 {
	return t.answers.quantile(client, q)
}

// Check reports the first violated invariant: all rates are finite and positive, and the workers' speeds sum up.
func (t *Learner) Check() error {
	sum, evicted, typical, sampled := 0.0, 0.0, 0, 0
	for id, r := range t.workers {
		evicted += r.evictedBlocks
		switch {
		case !r.sampled && r.speed != 1:
			return fmt.Errorf("rates: check: worker %v without samples has the speed %g", id, r.speed)
		case r.sampled:
			sum, sampled = sum+r.speed, sampled+1
			if r.speed == 1 {
				typical++
			}
		}
		if !(r.speed > 0 && r.speed < 1e6) || r.took < 0 || r.expected < 0 || r.interrupted < 0 {
			return fmt.Errorf("rates: check: worker %v has the speed %g", id, r.speed)
		}
	}
	if d := evicted - t.evictedBlocks; !(d < 1e-6*(evicted+1) && d > -1e-6*(evicted+1)) {
		return fmt.Errorf("rates: check: the workers evicted %g blocks, %g are counted", evicted, t.evictedBlocks)
	}
	if d := sum - t.speeds; !(d < 1e-6*(sum+1) && d > -1e-6*(sum+1)) {
		return fmt.Errorf("rates: check: the speeds add up to %g, not %g", sum, t.speeds)
	}
	if typical != t.typical || sampled != t.sampled {
		return fmt.Errorf("rates: check: %d of %d workers with samples are typical, %d of %d are counted", typical, sampled, t.typical, t.sampled)
	}
	for _, l := range []line{t.prefill.line, t.step.line, t.encode.line} {
		if !(l.fixed >= 0 && l.each >= 0 && l.fixed+l.each > 0 && l.fixed+l.each < 1e12) {
			return fmt.Errorf("rates: check: a line of %g + %g x", l.fixed, l.each)
		}
	}
	return t.answers.check()
}

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// IsTrusted reports whether the times of prefills and of steps are learned from enough samples, and not assumed.
func (t *Learner) IsTrusted() bool { return t.prefill.samples >= trusted && t.step.samples >= trusted }
