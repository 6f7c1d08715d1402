package route

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// refusal is why a worker cannot be picked for a request.
type refusal uint8

const (
	eligible refusal = iota
	notPinned
	notAllowed
	lacksAdapter
	excluded
	unlabelled
	boundElsewhere
	unfit
	draining
	notReady
	notAnswering
	otherBlockSize
	busy
	suspected
	refusalCount
)

// checkEligible returns why the target at an index cannot be picked for q, or eligible. Conditions of the request come
// before the worker's own state.
func (r *Router) checkEligible(p *requestPolicy, at int, q *Query) refusal {
	t := &r.targets[at]
	switch {
	case q.Pin.ID != 0 && q.Pin != t.Worker:
		return notPinned
	case !t.Router && len(q.Allowed) > 0 && !slices.Contains(q.Allowed, t.Worker.ID):
		return notAllowed
	case q.Adapter != "" && !containsSorted(t.Adapters, q.Adapter):
		return lacksAdapter
	case !t.Router && p.requiresLabel && q.overlapOf(t.Worker).Labelled == 0:
		return unlabelled
	case slices.Contains(q.Exclude, t.Worker.ID):
		return excluded
	case p.mustUseBound && t.Worker != p.bound:
		return boundElsewhere
	case t.Unfit != "":
		return unfit
	case t.State == Draining:
		return draining
	case t.State == NotAnswering:
		return notAnswering
	case t.State != Ready && t.State != Suspected:
		return notReady
	case t.BlockSize != r.active.BlockSize():
		return otherBlockSize
	case r.cfg.Busy != BusyThresholds{} && r.cfg.Busy.areExceeded(r.active.LoadAt(r.refs[at].load), t.Blocks):
		return busy
	case t.State == Suspected:
		return suspected
	}
	return eligible
}

// containsSorted reports whether name is among names, which are ascending.
func containsSorted(names []string, name string) bool {
	_, found := slices.BinarySearch(names, name)
	return found
}

// overlapOf returns the overlap of q's chain with the cache of w.
func (q *Query) overlapOf(w kv.Worker) kv.Overlap {
	at, found := slices.BinarySearchFunc(q.Overlaps, w, func(o kv.Overlap, w kv.Worker) int { return o.Worker.Compare(w) })
	if !found {
		return kv.Overlap{Worker: w}
	}
	return q.Overlaps[at]
}

// describeRefusal says why t was refused, as of now.
func (r *Router) describeRefusal(now kv.Mono, why refusal, p *requestPolicy, t *Target, q *Query) string {
	switch why {
	case boundElsewhere:
		return fmt.Sprintf("the request's session is at worker %s", formatWorker(p.bound))
	case notReady:
		return "not ready: its engine does not answer"
	case notAnswering:
		return "not answering for " + roundDuration(now.Sub(t.Since)).String()
	case suspected:
		return fmt.Sprintf("a call to it failed %v ago, and others answer", roundDuration(now.Sub(t.Since)))
	case busy:
		return r.cfg.Busy.describeExcess(r.active.LoadOf(t.Worker), t.Blocks)
	case notPinned:
		return fmt.Sprintf("the request is pinned to worker %s", formatWorker(q.Pin))
	case unfit:
		return t.Unfit
	case lacksAdapter:
		return fmt.Sprintf("it does not serve the adapter %.100q", q.Adapter)
	case otherBlockSize:
		return fmt.Sprintf("its blocks are of %d tokens, the router's of %d", t.BlockSize, r.active.BlockSize())
	}
	return refusalNames[why]
}

// roundDuration rounds a duration for messages.
func roundDuration(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return max(d, 0).Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

var refusalNames = [refusalCount]string{
	notAllowed:     "not among those that the request allows",
	lacksAdapter:   "without the adapter",
	unlabelled:     "without a block of the prompt that is labelled as moe_query asks",
	boundElsewhere: "not the session's",
	excluded:       "excluded by the request",
	unfit:          "with another model card",
	draining:       "draining",
	notReady:       "not ready",
	notAnswering:   "not answering",
	otherBlockSize: "other block size",
}

// retrySoon is when a request which found no worker may be tried again: by then a suspected worker has
// answered or has been found dead, and a busy one has made progress.
const retrySoon = time.Second

// noWorkerError is the error when no worker is eligible for q: Ineligible if q itself rules out every worker,
// Overloaded if only load rules them out, NotFound for a pin to an unknown worker, else Unavailable.
func (r *Router) noWorkerError(now kv.Mono, p *requestPolicy, q *Query) error {
	f := r.explainNoWorker(now, p, q)
	if f.Code != fault.NotFound && f.Code != fault.Ineligible {
		f.RetryAfter = retrySoon
	}
	return f
}

func (r *Router) explainNoWorker(now kv.Mono, p *requestPolicy, q *Query) *fault.Error {
	if q.Pin.ID != 0 {
		return r.explainPinRefusal(now, p, q)
	}
	if len(r.targets) == 0 {
		return fault.New(fault.Unavailable, "no worker serves this model now; start one or try again")
	}
	var counts [refusalCount]int
	for i := range r.targets {
		counts[r.checkEligible(p, i, q)]++
	}
	if p.mustUseBound {
		return fault.New(fault.Overloaded, "worker %s, which has the request's session, is busy; try again", formatWorker(p.bound))
	}
	if n := counts[notAllowed] + counts[unlabelled]; n == len(r.targets) {
		return fault.New(fault.Ineligible, "no eligible worker: of %d, %s; %s", n, formatRefusalCounts(&counts), p.suggestRemedy())
	}
	switch n := counts[busy]; n {
	case 0:
	case len(r.targets):
		return fault.New(fault.Overloaded, "all %d workers are busy; try again", n)
	default:
		return fault.New(fault.Overloaded, "the %d of %d workers that could take the request are busy; try again", n, len(r.targets))
	}
	return fault.New(fault.Unavailable, "none of %d workers can take the request (%s); try again", len(r.targets), formatRefusalCounts(&counts))
}

// formatRefusalCounts says how many workers were refused for each reason.
func formatRefusalCounts(counts *[refusalCount]int) string {
	var reasons []string
	for why, n := range counts {
		if n > 0 {
			reasons = append(reasons, fmt.Sprintf("%d %s", n, refusalNames[why]))
		}
	}
	return strings.Join(reasons, ", ")
}

// suggestRemedy says what a client can do whose request rules out every worker.
func (p *requestPolicy) suggestRemedy() string {
	if p.requiresLabel {
		return "set moe_query.fallback_to_unlabeled to true to take any"
	}
	return "allow others"
}

func (r *Router) explainPinRefusal(now kv.Mono, p *requestPolicy, q *Query) *fault.Error {
	at, found := findTarget(r.targets, q.Pin)
	if !found {
		return fault.New(fault.NotFound, "worker %s does not serve this model; `penstock workers` lists those that do", formatWorker(q.Pin))
	}
	t := &r.targets[at]
	why, code := r.checkEligible(p, at, q), fault.Unavailable
	switch why {
	case busy:
		code = fault.Overloaded
	case notAllowed, unlabelled, lacksAdapter:
		code = fault.Ineligible
	}
	return fault.New(code, "worker %s cannot take the request: %s; leave the choice to the router or try again", formatWorker(q.Pin), r.describeRefusal(now, why, p, t, q))
}

// assessCandidates returns the eligible workers, ordered, with the cost and the probability of each. If there
// is none it returns the busy workers, for a request which migrates, and if there is none either the
// suspected ones, for which nothing worse than one failed call is known. The slice is valid until the next
// call. It sets details, if not nil, to the same candidates in full.
func (r *Router) assessCandidates(now kv.Mono, p *requestPolicy, q *Query, details *[]Candidate) ([]scoredCandidate, error) {
	r.active.AdvanceTime(now)
	r.scoring.demand = q.newDemand(p, 0)
	r.scoring.answer = r.rates.AnswerTokens("")
	if q.ExpectedOutput > 0 {
		r.scoring.answer = float64(q.ExpectedOutput)
	}
	r.scoring.held = q.measureHolding()
	cands := r.scoreWorkers(p, q, eligible, details)
	if len(cands) == 0 && q.Moving {
		cands = r.scoreWorkers(p, q, busy, details)
	}
	if len(cands) == 0 {
		cands = r.scoreWorkers(p, q, suspected, details)
	}
	r.scoring.demand.Chain = nil
	if len(cands) == 0 {
		return nil, r.noWorkerError(now, p, q)
	}
	var all []Candidate
	if details != nil {
		all = *details
	}
	if p.mode == Time {
		r.addBacklog(p, cands, all)
		r.addCopyCredit(p, q, cands, all)
	}
	r.setProbabilitiesByTarget(p, q, cands)
	for i := range all {
		all[i].Cost, all[i].Near, all[i].Probability = cands[i].Cost, cands[i].Near, cands[i].Probability
	}
	return cands, nil
}

// scoreWorkers returns the workers for which checkEligible returns condition, with their costs, and appends them to
// details, if not nil.
func (r *Router) scoreWorkers(p *requestPolicy, q *Query, condition refusal, details *[]Candidate) []scoredCandidate {
	cands, next := r.candidates[:0], 0
	var none kv.Overlap
	for i := range r.targets {
		t := &r.targets[i]
		for next < len(q.Overlaps) && q.Overlaps[next].Worker.Compare(t.Worker) < 0 {
			next++
		}
		if r.checkEligible(p, i, q) != condition {
			continue
		}
		have := &none
		if next < len(q.Overlaps) && q.Overlaps[next].Worker == t.Worker {
			have = &q.Overlaps[next]
		}
		cands = append(cands, r.scoreCandidate(p, q, i, have))
		if details != nil {
			*details = append(*details, r.scoring.candidate)
		}
	}
	r.candidates = cands
	return cands
}

// Availability says whether the workers of a model could take a request which constrains nothing but the
// model, or an adapter of it.
type Availability struct {
	// Workers counts the workers which serve it. Ready counts the workers to which a request could be sent
	// now: it includes busy and suspected workers, because requests go there when there is no other.
	Workers, Ready int
	// Reason says why none is ready; "" if one is.
	Reason string
}

// Availability returns the availability of the model, or of one of its adapters if adapter is not "". It
// applies the same conditions as decisions do.
func (r *Router) Availability(adapter string) Availability {
	q := Query{Adapter: adapter}
	var counts [refusalCount]int
	for i := range r.targets {
		counts[r.checkEligible(&requestPolicy{}, i, &q)]++
	}
	a := Availability{
		Workers: len(r.targets) - counts[lacksAdapter],
		Ready:   counts[eligible] + counts[busy] + counts[suspected],
	}
	counts[lacksAdapter] = 0
	switch {
	case a.Ready > 0:
	case a.Workers == 0:
		a.Reason = NoWorker
	default:
		a.Reason = fmt.Sprintf("none of %d workers can take a request (%s)", a.Workers, formatRefusalCounts(&counts))
	}
	return a
}

// NoWorker is the Reason for a model without workers.
const NoWorker = "no worker"
