package route

import (
	"fmt"
	"slices"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/rates"
)

// WorkerState says whether a worker takes requests.
type WorkerState uint8

// The states. The zero value is for a worker which is only known to exist.
const (
	NotReady     WorkerState = iota // it exists, but its engine does not answer
	Ready                           // it takes requests
	Draining                        // it finishes its requests and takes no new ones
	NotAnswering                    // it does not answer
	Suspected                       // a call to it failed; nothing else is known
)

var stateNames = [...]string{"not ready", "ready", "draining", "not answering", "suspected"}

// String returns the state's name as tables print it.
func (s WorkerState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return stateNames[NotReady]
}

// Target is a worker to which requests can be sent.
type Target struct {
	Worker kv.Worker
	// Addr is where the request plane reaches it.
	Addr string
	// BlockSize is the number of tokens in one of its blocks. A worker whose size differs from the router's
	// cannot be compared and is not picked.
	BlockSize int
	// Blocks is how many blocks it has; 0 if unknown.
	Blocks int
	State  WorkerState
	// Since is when State was entered; it is for explanations.
	Since kv.Mono
	// Unfit says why requests for the model must not go to the worker in any state: its model card differs.
	// "" if it fits.
	Unfit string
	// Router says that it is a router with workers of its own. It applies the request's constraints on
	// workers (labelled blocks, allowed workers) itself.
	Router bool
	// ReusesQueued says that, in mode Time, a prompt is expected to reuse what it shares with prompts which are queued for
	// prefill there.
	ReusesQueued bool
	// BatchTokens is how many tokens it computes in one step; 0 if unknown, and then no request waits for it
	// in the router.
	BatchTokens int
	// Experts are the experts which it hosts, ascending by layer and number; nil if unknown. The router keeps
	// the slice.
	Experts []Expert
	// Adapters are the LoRA adapters which it serves; Loaded are the ones known to be in its engine's memory.
	// Both are ascending. The router keeps the slices.
	Adapters, Loaded []string
}

// Query is a [Request] after its prompt was hashed and looked up.
type Query struct {
	// Key names the reservation that Pick makes; Explain ignores it.
	Key activeseq.AttemptKey
	// Chain are the SeqHashes of the prompt's full blocks in order; nil if the prompt was not hashed.
	Chain        []kv.SeqHash
	PromptTokens int
	// Media are the media in the prompt, in order. Their engine encodes media which it does not reuse.
	Media []kv.Media
	// Held says which media workers have encoded before, ordered by worker. A worker which is missing has none.
	Held []HeldMedia
	// ExpectedOutput is the client's hint of output tokens; 0 if none.
	ExpectedOutput int
	// Overlaps say which blocks of the chain workers hold, ordered by worker. A worker which is missing holds
	// nothing.
	Overlaps []kv.Overlap
	Override Override
	// Pin, if its ID is not 0, is the worker which must be chosen.
	Pin kv.Worker
	// Allowed, if not empty, are the only workers which may be chosen.
	Allowed []kv.WorkerID
	Session Session
	// Near are the workers, ascending, to which blocks come from the likely prefill worker through memory of one host. It
	// is nil if that makes no difference between workers.
	Near []kv.WorkerID
	// Exclude are workers that must not be chosen.
	Exclude []kv.WorkerID
	// Adapter is the LoRA adapter which the request needs; "" if none. Only workers which serve it can be
	// chosen.
	Adapter string
	// Waited is how long the request has waited in the router; it counts against its target.
	Waited time.Duration
	// Moving says that the request was admitted before and migrates from another worker.
	Moving bool
}

// HeldMedia says which media of a prompt a worker has encoded before: it holds their embeddings.
type HeldMedia struct {
	Worker kv.Worker
	// Objects has bit i if it holds that of Query.Media[i]. Of media after the first MaxHeldMedia nothing is known.
	Objects uint64
}

// MaxHeldMedia is how many of a prompt's media HeldMedia has bits for.
const MaxHeldMedia = 64

// AddHolder adds to held, which has the order of Query.Held, that a worker holds the embedding of Query.Media[object].
func AddHolder(held []HeldMedia, w kv.Worker, object int) []HeldMedia {
	at, found := slices.BinarySearchFunc(held, w, func(h HeldMedia, w kv.Worker) int { return h.Worker.Compare(w) })
	if !found {
		held = slices.Insert(held, at, HeldMedia{Worker: w})
	}
	held[at].Objects |= 1 << object
	return held
}

// Router decides for the workers of one model. It has one owner: its methods must not run concurrently, nor
// concurrently with the methods of its table of active sequences.
type Router struct {
	cfg     Config
	active  *activeseq.ReservationTable
	rates   *rates.Learner
	targets []Target     // ascending by worker
	refs    []targetRefs // of the targets

	// decisions numbers the next decision: its draw is a function of that and the seed. last is the worker
	// chosen last.
	decisions  uint64
	lastChosen kv.Worker
	sessions   *sessionTable
	turns      turns
	copies     copyTable

	candidates []scoredCandidate // scratch
	meeting    []scoredCandidate // scratch
	margin     ttftMargin
	scoring    scoring    // scratch
	ranks      []loadRank // scratch
}

// New returns a router without workers which reserves in active, whose block size is the model's.
func New(cfg Config, active *activeseq.ReservationTable) (*Router, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	learned, err := rates.New(cfg.Rates)
	if err != nil {
		return nil, err
	}
	return &Router{cfg: cfg, active: active, rates: learned, sessions: newSessionTable(cfg.Sessions)}, nil
}

// SetWorkers replaces the set of workers, given in any order; two entries for one worker are an error. It
// frees the reservations on workers which are no longer in the set. The router keeps a copy.
func (r *Router) SetWorkers(targets []Target) error {
	next := slices.Clone(targets)
	slices.SortFunc(next, func(a, b Target) int { return a.Worker.Compare(b.Worker) })
	for i := range next {
		switch {
		case next[i].Worker.ID == 0 || next[i].Worker.ID > kv.MaxWorkerID:
			return fmt.Errorf("route: set workers: id %d is out of range", next[i].Worker.ID)
		case i > 0 && next[i-1].Worker == next[i].Worker:
			return fmt.Errorf("route: set workers: worker %s appears twice", formatWorker(next[i].Worker))
		case !slices.IsSortedFunc(next[i].Experts, compareExperts):
			return fmt.Errorf("route: set workers: the experts of worker %s are not in order", formatWorker(next[i].Worker))
		}
	}
	for i := range r.targets {
		if _, found := findTarget(next, r.targets[i].Worker); !found {
			r.active.DropWorker(r.targets[i].Worker)
			r.rates.DropWorker(r.targets[i].Worker)
		}
	}
	r.targets = next
	r.refs = r.refs[:0]
	for i := range next {
		r.refs = append(r.refs, targetRefs{r.active.RefTo(next[i].Worker), r.rates.WorkerOf(next[i].Worker)})
	}
	return nil
}

// SetState changes the state of one worker, as of since, and reports whether the worker exists and was in
// another state. Reservations stay.
func (r *Router) SetState(w kv.Worker, state WorkerState, since kv.Mono) bool {
	at, found := findTarget(r.targets, w)
	if !found || r.targets[at].State == state {
		return false
	}
	r.targets[at].State, r.targets[at].Since = state, since
	return true
}

// SetLoaded sets the adapters, ascending, which one worker has in its engine's memory. The router keeps the
// slice.
func (r *Router) SetLoaded(w kv.Worker, adapters []string) {
	if at, found := findTarget(r.targets, w); found {
		r.targets[at].Loaded = adapters
	}
}

// Workers returns the workers in order. The caller must not change the slice.
func (r *Router) Workers() []Target { return r.targets }

// NeedsOverlaps reports whether the overlaps of a request with this override affect the choice of its worker.
// If not, the caller can skip the lookup; the whole prompt then counts as to be computed.
func (r *Router) NeedsOverlaps(o *Override) bool {
	p, err := r.applyOverride(o)
	return err == nil && (p.requiresLabel || p.mode == Time || p.mode == KV && (p.overlapWeight > 0 || p.hasMoE && r.cfg.Affinity.Label > 0))
}

// Pick chooses a worker for q and reserves its load there; the caller frees the reservation with the table's
// Free. Pick changes nothing if it fails. It fails with
//   - Invalid: the override is out of bounds, or mode direct names no worker
//   - NotFound: the pinned worker does not exist
//   - Ineligible: the request itself rules out every existing worker
//   - Unavailable: no worker, or not the pinned one, can take the request now
//   - Overloaded: the workers which could take it, or the pinned one, or the session's, are busy
//   - Conflict: the attempt is reserved already
func (r *Router) Pick(now kv.Mono, q *Query) (Decision, error) {
	r.learnFromOthers()
	p, err := r.resolvePolicy(now, q)
	if err != nil {
		return Decision{}, err
	}
	cands, err := r.assessCandidates(now, &p, q, nil)
	if err != nil {
		return Decision{}, err
	}
	c := &cands[r.drawCandidate(cands)]
	w := r.targets[c.target].Worker
	d := q.newDemand(&p, int(c.reuse))
	if p.mode == Time {
		d.ExpectedPrefill = toDuration(c.own)
	}
	dec := r.newDecision(&p, q, c)
	d.ExpectedFirst, d.MediaTokens, d.HeldMedia = dec.TTFT, r.mediaTokens(q, c), q.heldTokens(w, int(c.reuse)*r.active.BlockSize())
	if err := r.active.Reserve(now, q.Key, w, d); err != nil {
		return Decision{}, err
	}
	if p.mode == Time {
		r.recordCopy(c)
	}
	r.decisions++
	r.lastChosen = w
	r.recordSession(now, q, w)
	return dec, nil
}

// recordSession binds the session of q to w, or releases it after its last request.
func (r *Router) recordSession(now kv.Mono, q *Query, w kv.Worker) {
	switch {
	case q.Session.ID == "" || r.cfg.Sessions.Stickiness == Unbound:
	case q.Session.Last:
		r.sessions.releaseSession(q.Session.ID)
	default:
		r.sessions.bindSession(now, q.Session.ID, w)
	}
}

// Explain returns the decision which Pick would make for q now, and everything which leads to it; it changes
// nothing. It fails as Pick does, and also then returns the excluded workers with the reasons.
func (r *Router) Explain(now kv.Mono, q *Query) (Explanation, error) {
	ex := Explanation{PromptTokens: q.PromptTokens, PromptBlocks: q.PromptTokens / r.active.BlockSize()}
	ex.QueueWeight = *r.cfg.QueueWeight
	ex.Fetch, ex.Weights, ex.NearCost = *r.cfg.Fetch, *r.cfg.Affinity, r.cfg.NearCost
	p, err := r.resolvePolicy(now, q)
	ex.Mode, ex.OverlapWeight, ex.Temperature, ex.Bound = p.mode, p.overlapWeight, p.temperature, p.bound
	if p.hasTargets() {
		ex.Targets, ex.OnMiss, ex.Margin = p.targets, r.cfg.OnMiss, r.margin.share
	}
	if err != nil {
		return ex, err
	}
	ex.Candidates = []Candidate{}
	cands, err := r.assessCandidates(now, &p, q, &ex.Candidates)
	left := cands
	for i := range r.targets {
		t := &r.targets[i]
		if len(left) > 0 && int(left[0].target) == i {
			left = left[1:]
			continue
		}
		ex.Excluded = append(ex.Excluded, Exclusion{Worker: t.Worker, Reason: r.describeRefusal(now, r.checkEligible(&p, i, q), &p, t, q)})
	}
	if err != nil {
		ex.Candidates = nil
		return ex, err
	}
	for i := range ex.Candidates {
		c := &ex.Candidates[i]
		c.OthersRequests = r.active.OthersShare(c.Worker).Requests
		r.predictTimes(&p, q, &cands[i])
		c.TTFT, c.ITL, c.Misses = cands[i].ttft, cands[i].itl, cands[i].misses
	}
	ex.Decision = r.newDecision(&p, q, &cands[r.drawCandidate(cands)])
	return ex, nil
}

func (r *Router) newDecision(p *requestPolicy, q *Query, c *scoredCandidate) Decision {
	t := &r.targets[c.target]
	d := Decision{
		Worker:        t.Worker,
		Addr:          t.Addr,
		Mode:          p.mode,
		OverlapBlocks: int(c.reuse),
		BlockSize:     r.active.BlockSize(),
		Cost:          c.Cost,
	}
	if r.predictTimes(p, q, c); !t.Router {
		d.TTFT, d.Work = toDuration(c.ttft), r.predictWork(q, c)
	}
	return d
}

// newDemand returns the demand of q on a worker which has reuse blocks of it.
func (q *Query) newDemand(p *requestPolicy, reuse int) activeseq.Demand {
	d := activeseq.Demand{
		Chain:          q.Chain,
		PromptTokens:   q.PromptTokens,
		OverlapBlocks:  reuse,
		ExpectedOutput: q.ExpectedOutput,
	}
	if p.unshared {
		d.Chain = nil
	}
	if p.untracked {
		d.OverlapBlocks = q.PromptTokens // at least the number of its blocks
	}
	return d
}

func findTarget(targets []Target, w kv.Worker) (at int, found bool) {
	return slices.BinarySearchFunc(targets, w, func(t Target, w kv.Worker) int { return t.Worker.Compare(w) })
}

// formatWorker returns w as messages print it.
func formatWorker(w kv.Worker) string { return fmt.Sprintf("%d rank %d", w.ID, w.Rank) }
