package router

import (
	"context"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// explainAnswer is the JSON of POST /v1/router/explain.
type explainAnswer struct {
	Decision      *explainedDecision `json:"decision"` // null if no worker can be chosen
	Reason        string             `json:"reason,omitempty"`
	Waits         *explainedWait     `json:"would_wait,omitempty"`
	OverlapWeight float64            `json:"overlap_score_weight"`
	Temperature   float64            `json:"router_temperature"`
	QueueWeight   float64            `json:"queue_weight"`
	Fetch         fetchCosts         `json:"fetch_costs"`
	Affinity      affinityWeights    `json:"affinity_weights"`
	NearCost      float64            `json:"near_cost"`
	Targets       *explainedTargets  `json:"targets,omitempty"` // null without any
	PromptTokens  int                `json:"prompt_tokens"`
	PromptBlocks  int                `json:"prompt_blocks"`
	askedMedia
	// Session is the worker to which the request's session is bound; nil if to none.
	Session    *workerName          `json:"session_worker,omitempty"`
	Candidates []explainedCandidate `json:"candidates"`
	Excluded   []explainedExclusion `json:"excluded"`
	// Prefill says which decode worker would decide where the prompt is computed; nil if none would.
	Prefill *explainedPrefill `json:"prefill,omitempty"`
	// Behind holds the answers of the candidates which are router processes.
	Behind []nestedAnswer `json:"behind,omitempty"`
}

type explainedDecision struct {
	bestWorker
	Mode route.Mode `json:"mode"`
	Cost float64    `json:"cost"`
}

// explainedWait says that the request would wait in the router before a decision.
type explainedWait struct {
	Requests int `json:"waiting_requests"` // already waiting, for any worker
}

// explainedTargets are the targets of a request, in ms; 0 is none. Met says whether a worker meets them. If none
// does, OnMiss says what happens, and Refusal is the answer of a router that refuses the request.
type explainedTargets struct {
	TTFT    float64          `json:"ttft_ms"`
	ITL     float64          `json:"itl_ms"`
	Margin  float64          `json:"ttft_margin"` // share by which predictions are increased
	Met     bool             `json:"met"`
	OnMiss  route.MissPolicy `json:"on_miss"`
	Refusal string           `json:"refusal,omitempty"`
}

// fetchCosts are the costs of one block of a slower tier, in blocks of prefill.
type fetchCosts struct {
	Host float64 `json:"host"`
	Disk float64 `json:"disk"`
	Pool float64 `json:"pool"`
}

// affinityWeights are the weights per block of each preference.
type affinityWeights struct {
	Label   float64 `json:"label"`
	Experts float64 `json:"experts"`
	Session float64 `json:"session"`
	// Embedding is per ms of encoding that is saved.
	Embedding float64 `json:"embedding"`
}

// explainedCandidate is one worker that could be chosen: its overlap with the prompt, its load, its
// affinities, and the resulting cost and probability.
type explainedCandidate struct {
	WorkerID uint64       `json:"worker_id"`
	Rank     uint32       `json:"dp_rank"`
	Role     string       `json:"role"`  // see workerRow
	Cache    string       `json:"cache"` // state of its feed: see feedRow
	Overlap  tieredBlocks `json:"overlap_blocks"`
	// Predicted is the part of the overlap on the device that no event has reported. Attachable and
	// Labelled are parts of the overlap under the names which other routers use for scores of pools and
	// of experts.
	Predicted  int `json:"predicted_blocks"`
	Attachable int `json:"cxl_accessible_scores"`
	Labelled   int `json:"moe_scores"`

	PrefillTokens  int     `json:"prefill_tokens"`
	QueuedTokens   int     `json:"queued_tokens"`
	PrefillBlocks  float64 `json:"prefill_blocks"`
	FetchBlocks    float64 `json:"fetch_blocks"`
	DecodeBlocks   int     `json:"decode_blocks"`
	ActiveRequests int     `json:"active_requests"`
	// OthersRequests are the ActiveRequests that other routers have sent.
	OthersRequests int `json:"others_requests"`

	Affinity        float64 `json:"affinity"`
	LabelAffinity   float64 `json:"label_affinity"`
	ExpertAffinity  float64 `json:"expert_affinity"`
	ExpertShare     float64 `json:"expert_share"`
	SessionAffinity float64 `json:"session_affinity"`
	AdapterAffinity float64 `json:"adapter_affinity,omitempty"`
	// EmbeddingAffinity is for the EmbeddingTokens of media whose embeddings the worker holds.
	EmbeddingAffinity float64 `json:"embedding_affinity,omitempty"`
	EmbeddingTokens   int     `json:"embedding_tokens,omitempty"`
	// TransferAffinity is for a prefill worker on the host of the worker.
	TransferAffinity float64 `json:"transfer_affinity,omitempty"`

	// Time has the terms of the cost in mode time, in ms.
	Time *route.TimeCost `json:"time_ms,omitempty"`

	// TTFT and ITL are the times predicted at the worker, in ms; 0 of a router process. Misses says that they
	// exceed the request's targets.
	TTFT   float64 `json:"predicted_ttft_ms"`
	ITL    float64 `json:"predicted_itl_ms"`
	Misses bool    `json:"misses_targets,omitempty"`

	Cost        float64 `json:"cost"`
	Near        bool    `json:"near"`
	Probability float64 `json:"probability"`
	// Warnings are the codes of its warnings: see workerRow.
	Warnings []string `json:"warnings,omitempty"`
}

type tieredBlocks struct {
	Device int `json:"device"`
	Host   int `json:"host"`
	Disk   int `json:"disk"`
	Pool   int `json:"pool"`
}

type explainedExclusion struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Role     string `json:"role"` // see workerRow
	Reason   string `json:"reason"`
	// Warnings are as in explainedCandidate.
	Warnings []string `json:"warnings,omitempty"`
}

// routerExplanation is an explanation with what the core does not know: for each candidate, how much of
// its overlap is only predicted.
type routerExplanation struct {
	route.Explanation
	predicted []int
	wouldWait *explainedWait // nil if it would not wait
	refusal   error          // for its targets
}

// answerExplain also answers when no worker can be chosen: then the reasons are the answer.
func (r *Router) answerExplain(ctx context.Context, req *route.Request, depth int) (*explainAnswer, error) {
	ac, err := r.explainRequest(ctx, req)
	if code := fault.CodeOf(err); err != nil && code != fault.Unavailable && code != fault.Overloaded && code != fault.Ineligible {
		return nil, err
	}
	out := newExplainAnswer(&ac)
	if err != nil {
		out.Decision, out.Reason = nil, err.Error()
	}
	caches, warned := r.cacheStates(), r.warningCodes()
	for i := range out.Candidates {
		w := ac.Candidates[i].Worker
		out.Candidates[i].Cache, out.Candidates[i].Warnings = caches[w], warned[w]
		out.Candidates[i].Role = r.workerRole(w.ID)
	}
	for i := range out.Excluded {
		w := ac.Excluded[i].Worker
		out.Excluded[i].Role, out.Excluded[i].Warnings = r.workerRole(w.ID), warned[w]
	}
	asked := r.SplitSettings(req)
	if err == nil && ac.Decision.Worker.ID != 0 && r.workerRole(ac.Decision.Worker.ID) == engine.RoleDecode.String() {
		out.Prefill = &explainedPrefill{workerName{uint64(ac.Decision.Worker.ID), ac.Decision.Worker.Rank}, newSplitValues(&asked)}
	}
	behind := *req
	behind.Override.SplitOverride = route.SplitOverride(newSplitValues(&asked))
	out.Behind = r.askRoutersAbout(ctx, engine.InspectExplain, &behind, candidateIDs(&ac.Explanation), depth)
	return &out, nil
}

// workerRole returns the role of a worker for operators; "" if it is not registered any more.
func (r *Router) workerRole(id kv.WorkerID) string {
	w := r.workers.Current().Worker(id)
	if w == nil {
		return ""
	}
	return roleOf(w.Card)
}

func (e *explainAnswer) show(a askedMedia) { e.askedMedia = a }

// explainRequest is Explain with what the core does not know.
func (r *Router) explainRequest(ctx context.Context, req *route.Request) (ac routerExplanation, err error) {
	if err := contextFault(ctx); err != nil {
		return ac, err
	}
	sc := r.scratch.Get().(*decisionScratch)
	defer r.scratch.Put(sc)
	err = r.withQuery(sc, req, func(p *modelPool, q *route.Query) (err error) {
		now := r.now()
		r.describePrefillLocked(p, q)
		check := p.router.CheckTargets(now, q)
		if ac.refusal = check.Refusal(); ac.refusal == nil && p.mustWaitLocked(now, q, &check) {
			ac.wouldWait = &explainedWait{p.queue.Len()}
		}
		ac.Explanation, err = p.router.Explain(now, q)
		return err
	})
	for i := range ac.Candidates {
		c := &ac.Candidates[i]
		said := findOverlap(sc.lookup.known, c.Worker).Blocks[kv.TierDevice]
		ac.predicted = append(ac.predicted, max(0, c.Overlap[kv.TierDevice]-said))
	}
	return ac, err
}

// findOverlap returns the overlap of w in overlaps.
func findOverlap(overlaps []kv.Overlap, w kv.Worker) kv.Overlap {
	for i := range overlaps {
		if overlaps[i].Worker == w {
			return overlaps[i]
		}
	}
	return kv.Overlap{}
}

// cacheStates returns the states of the feeds of the workers that exist.
func (r *Router) cacheStates() map[kv.Worker]string {
	caches, heard := r.cache.workerCaches()
	r.mu.Lock()
	defer r.mu.Unlock()
	states := make(map[kv.Worker]string, len(r.mu.members))
	for _, m := range r.mu.members {
		states[m.worker] = r.feedRowLocked(heard, m, caches[m.worker]).State
	}
	return states
}

func newExplainAnswer(ac *routerExplanation) explainAnswer {
	d := ac.Decision
	out := explainAnswer{
		Decision:      &explainedDecision{bestWorker{uint64(d.Worker.ID), d.Worker.Rank, d.OverlapBlocks, d.BlockSize}, d.Mode, d.Cost},
		Waits:         ac.wouldWait,
		OverlapWeight: ac.OverlapWeight, Temperature: ac.Temperature, QueueWeight: ac.QueueWeight,
		Fetch:        fetchCosts{ac.Fetch.Host, ac.Fetch.Disk, ac.Fetch.Pool},
		Affinity:     affinityWeights{ac.Weights.Label, ac.Weights.Experts, ac.Weights.Session, ac.Weights.Embedding},
		NearCost:     ac.NearCost,
		PromptTokens: ac.PromptTokens, PromptBlocks: ac.PromptBlocks,
		Candidates: []explainedCandidate{}, Excluded: []explainedExclusion{},
	}
	if ac.Bound.ID != 0 {
		out.Session = &workerName{uint64(ac.Bound.ID), ac.Bound.Rank}
	}
	if ac.Targets != (route.Targets{}) {
		out.Targets = &explainedTargets{TTFT: toMs(ac.Targets.TTFT), ITL: toMs(ac.Targets.ITL), OnMiss: ac.OnMiss, Margin: ac.Margin}
		if ac.refusal != nil {
			out.Targets.Refusal = ac.refusal.Error()
		}
	}
	for i := range ac.Candidates {
		c := &ac.Candidates[i]
		if out.Targets != nil && !c.Misses {
			out.Targets.Met = true
		}
		out.Candidates = append(out.Candidates, explainedCandidate{
			WorkerID: uint64(c.Worker.ID), Rank: c.Worker.Rank,
			Overlap:   tieredBlocks{c.Overlap[kv.TierDevice], c.Overlap[kv.TierHost], c.Overlap[kv.TierDisk], c.Overlap[kv.TierPool]},
			Predicted: ac.predicted[i], Attachable: c.Attachable, Labelled: c.Labelled,
			PrefillTokens: c.PrefillTokens, QueuedTokens: c.QueuedTokens, PrefillBlocks: c.PrefillBlocks, FetchBlocks: c.FetchBlocks,
			DecodeBlocks: c.DecodeBlocks, ActiveRequests: c.ActiveRequests,
			OthersRequests: c.OthersRequests,
			Affinity:       c.Affinity, LabelAffinity: c.LabelAffinity, ExpertAffinity: c.ExpertAffinity, ExpertShare: c.ExpertShare,
			SessionAffinity: c.SessionAffinity, AdapterAffinity: c.AdapterAffinity,
			EmbeddingAffinity: c.EmbeddingAffinity, EmbeddingTokens: c.HeldTokens, TransferAffinity: c.TransferAffinity,
			TTFT: c.TTFT, ITL: c.ITL, Misses: c.Misses,
			Cost: c.Cost, Near: c.Near, Probability: c.Probability,
		})
		if ac.Mode == route.Time {
			out.Candidates[i].Time = &c.Time
		}
	}
	for _, e := range ac.Excluded {
		out.Excluded = append(out.Excluded, explainedExclusion{WorkerID: uint64(e.Worker.ID), Rank: e.Worker.Rank, Reason: e.Reason})
	}
	return out
}
