package plan

import (
	"math"
	"time"

	"penstock/core/exact"
)

// workload is what a role has to do. Times are in ms.
type workload struct {
	rate     float64              // requests a ms
	lengths  [lengthParts]float64 // prompt tokens which are not cached, equally likely
	mean     float64              // of them
	squared  float64              // coefficient of variation of the time of a prefill, squared
	answers  [lengthParts]float64 // tokens of answers, equally likely
	output   float64              // tokens of an answer
	context  float64              // mean length of a sequence while it is decoded
	ttft     float64              // target
	itl      float64              // target
	ttftLess float64              // the target for requests with media, whose encoding takes the rest
	media    float64              // share of requests with media, if encode workers encode them
	tokens   float64              // of media
	spread   float64              // of the tokens of media
	transfer float64
}

// sizing says how many workers a role needs.
type sizing struct {
	workers int
	// attainment is the share of requests which keep the target, and most what it would be with any number of workers.
	attainment, most float64
	// bound is what decides: one of the words below.
	bound string
}

// What decides a size.
const (
	boundByTTFT = "TTFT"
	boundByITL  = "ITL"
	boundByLoad = "load"
	// boundByRunning is the number of answers which run.
	boundByRunning = "running answers"
)

const (
	// leastAttainable is the share of requests which must be able to keep the targets at all. If fewer can, targets say
	// nothing, and loadWithoutTargets gives the size.
	leastAttainable    = 0.05
	loadWithoutTargets = 0.8
	// maxRounds bounds the iterations of a fixed point, whose error falls by the load in each.
	maxRounds = 300
)

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// makeWorkload describes the requests of u at a rate in requests a second.
func (c *Config) makeWorkload(u *usage, rate float64) workload {
	w := workload{
		rate: rate / 1000, output: max(u.output, 1), transfer: c.TransferMs,
		ttft: toMs(c.Targets.TTFT), itl: toMs(c.Targets.ITL),
		mean: max(u.input*(1-u.cached), 1), tokens: u.mediaTokens, spread: u.mediaSpread,
	}
	w.lengths = spreadLengths(w.mean, u.inputSpread)
	w.answers = spreadLengths(w.output, u.outputSpread)
	w.squared = float64(u.inputSpread * u.inputSpread)
	w.context = max(u.input, 1) + float64(w.output/2)
	if c.encodes() {
		w.media, w.ttftLess = u.mediaShare, w.ttft*(1-c.EncodeShare)
	}
	return w
}

func (c *Config) encodes() bool {
	for i := range c.Roles {
		if c.Roles[i].Role == Encode {
			return true
		}
	}
	return false
}

// station is the workers of a role with their model.
type station struct {
	role   WorkerRole
	model  EngineModel
	coder  EncoderModel
	seqs   float64
	budget float64
	cache  float64
	load   *workload
	// first is the time of the first decode step of a prompt which other workers computed.
	first float64
	// encodeTarget is what encoding may take.
	encodeTarget float64
}

func (s *station) prefills() bool { return s.role == Aggregated || s.role == Prefill }
func (s *station) decodes() bool  { return s.role == Aggregated || s.role == Decode }

func (s *station) stepMs(running float64) float64 {
	if !s.decodes() {
		return 0
	}
	return s.model.StepMs(max(running, 1), s.load.context)
}

// prefillPerPass returns the mean time which prompts add to a pass of a worker, of so many ms, with arrivals of rate a
// ms: the chance that the pass has prompt tokens, times the time of what it then has. A prompt which does not fit a
// pass is spread over several. Prompts arrive by a Poisson process.
func (s *station) prefillPerPass(rate, pass float64) float64 {
	if !s.prefills() {
		return 0
	}
	chunk := min(s.load.mean, s.budget)
	chunks := float64(rate * pass * s.load.mean / chunk)
	if chunks <= 0 {
		return 0
	}
	chance := 1 - exact.Exp(-chunks)
	if chunks < 1e-9 {
		chance = chunks
	}
	return float64(chance * s.model.PrefillMs(min(float64(chunks*chunk)/chance, s.budget)))
}

// passMs returns the mean pass of a worker with so many running sequences: the least solution of
//
//	pass = prefillPerPass(rate, pass) + step(running)
func (s *station) passMs(rate, running float64) float64 {
	step := s.stepMs(running)
	pass := step
	for range maxRounds {
		next := step + s.prefillPerPass(rate, pass)
		if next-pass <= float64(1e-9*next) {
			return next
		}
		pass = next
	}
	return pass
}

// meanRunning returns the mean number of running sequences of a worker: with Little's law the least solution of
//
//	pass = prefillPerPass(rate, pass) + step(running)    running = rate·output·pass
//
// It stops above the most which a worker can have, to which no stationary state belongs.
func (s *station) meanRunning(rate float64) float64 {
	running, most := 0.0, s.mostRunning()
	pass := s.stepMs(0)
	for range maxRounds {
		next := s.stepMs(running) + s.prefillPerPass(rate, pass)
		running = float64(rate * s.load.output * next)
		if running > most || next-pass <= float64(1e-6*next) {
			break
		}
		pass = next
	}
	return running
}

// mostRunning returns how many sequences a worker can have.
func (s *station) mostRunning() float64 { return max(min(s.seqs, s.cache/s.load.context), 1) }

// runningWithin returns the largest number of running sequences of a worker with which passes keep the target of ITL; 0
// if not even one keeps it.
func (s *station) runningWithin(rate float64) int {
	low, high := 0, int(s.mostRunning())
	for low < high {
		middle := (low + high + 1) / 2
		if s.passMs(rate, float64(middle)) <= s.load.itl {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// ownMs returns the time of a prompt's passes, at a worker with so many running sequences.
func (s *station) ownMs(tokens, running float64) float64 {
	step, ms := s.stepMs(running), s.first
	for left := tokens; left > 0; left -= s.budget {
		ms += s.model.PrefillMs(min(left, s.budget)) + step
	}
	return ms
}

// serviceMs returns the time for which a prompt occupies a busy worker: its part of a pass with a full budget, or of
// one with itself alone if that is less. Prompts which wait share passes.
func (s *station) serviceMs(running float64) float64 {
	step := s.stepMs(running)
	prompts := max(s.budget/s.load.mean, 1)
	full := (s.model.PrefillMs(s.budget) + step) * s.load.mean / s.budget
	if prompts < 2 {
		return max(full, s.ownMs(s.load.mean, running)-s.first)
	}
	return min(full, s.model.PrefillMs(s.load.mean)+step)
}

// attainTTFT returns the share of requests whose first token comes within the target, with n workers.
func (s *station) attainTTFT(n int, running float64) float64 {
	if !s.prefills() {
		return 1
	}
	wait, ok := newWaitTail(n, s.load.rate, s.serviceMs(running), s.load.squared)
	if !ok {
		return 0
	}
	text := s.shareWithin(wait, s.load.ttft, running)
	if s.load.media == 0 {
		return text
	}
	return text + float64(s.load.media*(s.shareWithin(wait, s.load.ttftLess, running)-text))
}

// shareWithin returns the share of prompts with wait, rest of the pass which runs, transfer and own passes within a
// target. The rest is taken to be a whole step.
func (s *station) shareWithin(wait waitTail, target, running float64) float64 {
	rest, share := s.stepMs(running), 0.0
	if s.role == Prefill {
		rest = s.load.transfer
	}
	for _, tokens := range s.load.lengths {
		share += 1 - wait.beyond(target-rest-s.ownMs(tokens, running))
	}
	return share / lengthParts
}

// attainITL returns the share of requests whose mean time between tokens is within the target, with n workers: the
// chance that no more sequences run than keep it,
//
//	P(N <= n·R)    N Poisson with mean rate·output·target    R = runningWithin
//
// A fleet is an M/G/∞ system. The number of its sequences is Poisson for any distribution of lengths (Tijms, A
// First Course in Stochastic Models, 2003, section 1.1.3). Below R a pass is shorter than the target, so that the true
// number is less in the stochastic order: the chance is a lower bound. Routers keep workers equally full.
func (s *station) attainITL(n int) float64 {
	if !s.decodes() {
		return 1
	}
	rate := s.load.rate / float64(n)
	within := s.runningWithin(rate)
	if within == 0 {
		return 0
	}
	return 1 - poissonTail(float64(s.load.rate*s.load.output)*min(s.passMs(rate, float64(within)), s.load.itl), n*within)
}

// attainInterrupted returns the share of requests whose own time between tokens is within the target, though prompts of
// others interrupt them, with n workers. An answer of o tokens has o·target ms. Of these prefills leave enough for o
// steps if the prompts which come meanwhile take no longer than the rest:
//
//	P(W <= o·target - o·step(running))    W compound Poisson with mean number rate/n·o·target, of times of prefills
//
// It is a lower bound: prompts may not be computed before the answer ends. Short answers are the ones which miss: to
// them one long prompt is an interruption which their few tokens do not outweigh. Steps are as of a worker with a
// standard deviation more sequences than the mean.
func (s *station) attainInterrupted(n int, running float64) float64 {
	if s.role != Aggregated {
		return 1
	}
	step := s.stepMs(running + sqrt(running))
	var times [lengthParts]float64
	for i, tokens := range s.load.lengths {
		times[i] = s.model.PrefillMs(tokens)
	}
	share := 0.0
	for _, tokens := range s.load.answers {
		gaps := max(tokens-1, 1)
		within := float64(gaps * s.load.itl)
		share += compoundWithin(s.load.rate/float64(n)*within, &times, within-float64(gaps*step))
	}
	return share / lengthParts
}

// attain returns the share of requests which keep the targets with n workers: at least one less the shares which miss
// either. It is 0 if workers cannot hold what runs.
func (s *station) attain(n int) (share float64, bound string) {
	if s.role == Encode {
		return s.attainEncoding(n), boundByTTFT
	}
	running := 0.0
	if s.decodes() {
		running = s.meanRunning(s.load.rate / float64(n))
		if running > s.mostRunning() {
			return 0, boundByLoad
		}
	}
	ttft, itl := s.attainTTFT(n, running), s.attainITL(n)+s.attainInterrupted(n, running)-1
	if itl < ttft {
		bound = boundByITL
	} else {
		bound = boundByTTFT
	}
	return max(ttft+itl-1, 0), bound
}

// attainEncoding returns the share of requests with media whose encoding takes no longer than its part of TTFT.
func (s *station) attainEncoding(n int) float64 {
	if s.load.media == 0 || s.load.tokens == 0 {
		return 1
	}
	wait, ok := newWaitTail(n, float64(s.load.rate*s.load.media), s.coder.EncodeMs(s.load.tokens),
		float64(s.load.spread*s.load.spread))
	if !ok {
		return 0
	}
	share := 0.0
	lengths := spreadLengths(s.load.tokens, s.load.spread)
	for _, tokens := range lengths {
		share += 1 - wait.beyond(s.encodeTarget-s.coder.EncodeMs(tokens))
	}
	return share / float64(len(lengths))
}

// isWithinLoad reports whether n workers do the work at loadWithoutTargets.
func (s *station) isWithinLoad(n int) bool {
	rate := s.load.rate / float64(n)
	if s.role == Encode {
		return float64(rate*s.load.media*s.coder.EncodeMs(s.load.tokens)) <= loadWithoutTargets
	}
	running := 0.0
	if s.decodes() {
		if running = s.meanRunning(rate); running > loadWithoutTargets*s.mostRunning() {
			return false
		}
	}
	return !s.prefills() || float64(rate*s.serviceMs(running)) <= loadWithoutTargets
}

// findSize returns the least number of workers which keeps the targets at chance times the share of requests which
// could keep them with any number.
func (s *station) findSize(chance float64) sizing {
	if s.load.rate <= 0 {
		return sizing{attainment: 1, most: 1, bound: boundByLoad}
	}
	alone := *s
	few := *s.load
	few.rate = 1e-12
	alone.load = &few
	most, _ := alone.attain(1)
	if most < leastAttainable {
		n := leastNumber(s.isWithinLoad)
		return sizing{workers: n, most: most, bound: boundByLoad}
	}
	n := leastNumber(func(n int) bool {
		share, _ := s.attain(n)
		return share >= float64(chance*most)
	})
	out := sizing{workers: n, most: most}
	out.attainment, _ = s.attain(n)
	out.bound = boundByLoad
	if n > 1 {
		_, out.bound = s.attain(n - 1)
	}
	return out
}

// leastNumber returns the least n from 1 to maxWorkers which is enough, maxWorkers if none is. What is enough stays
// enough with more.
func leastNumber(isEnough func(n int) bool) int {
	high := 1
	for high < maxWorkers && !isEnough(high) {
		high *= 2
	}
	low := high/2 + 1
	for low < high {
		middle := (low + high) / 2
		if isEnough(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return min(high, maxWorkers)
}

// runningFloor returns how many workers the sequences need which run now, whatever arrives: long answers outlive the
// traffic which began them.
func (s *station) runningFloor(running float64) int {
	if !s.decodes() || running <= 0 {
		return 0
	}
	within := float64(max(s.runningWithin(0), 1))
	if s.passMs(0, 1) > s.load.itl { // no number keeps the target
		within = s.mostRunning()
	}
	return min(int(math.Ceil(running/within)), maxWorkers)
}
