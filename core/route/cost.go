package route

import (
	"slices"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/rates"
)

// scoredCandidate is what a decision compares of an eligible worker. It is small, so that the candidates of a
// fleet stay in the processor's nearest cache.
type scoredCandidate struct {
	Cost, Probability float64
	own, ttft, itl    float64 // ms: TimeCost.Own, Candidate.TTFT and ITL
	lasting           float64 // ms: the cost which later requests will have here too, see addCopyCredit
	fetch             float64 // blocks
	rank              loadRank
	target            int32 // index of the worker among the router's
	reuse             int32 // blocks
	prefills          int32 // queued on the worker
	decode            int32 // Candidate.DecodeBlocks
	used              int32 // leading blocks of the prompt which active requests use here
	Near, misses      bool
	copies            bool // a prefix which others use would be copied here
}

// targetRefs are where the state of one worker is, so that a decision looks nothing up by worker.
type targetRefs struct {
	load  activeseq.WorkerRef
	rates *rates.WorkerRates
}

// scoring is the scratch of a decision.
type scoring struct {
	demand     activeseq.Demand // of the request, on the worker which is being scored
	projection activeseq.Projection
	candidate  Candidate // which is being scored
	// savedMs is the time of encoding which is saved at that worker because it holds embeddings, with its weight.
	savedMs float64
	answer  float64 // expected tokens of the request's answer
	held    holding
	shared  sharedPrefix
}

// loadRank orders workers by how busy they are.
type loadRank struct {
	blocks   int
	requests int
}

// scoreCandidate computes the cost of sending q to t, which has the overlap have. In mode Time that is setTimeCost's,
// to which addBacklog adds when all candidates are known. In the other modes it is
//
//	reuse   = the leading blocks which t has in any tier, or in a pool which it can attach
//	queued  = prefill tokens active on t / block size
//	prefill = queued + (prompt tokens - reuse) / block size
//	fetch   = the cost of bringing the reuse of slower tiers to the device
//	decode  = distinct blocks active on t + blocks of the prompt not among them
//	cost    = weight * (prefill + (queue weight - 1) * queued + fetch) + decode - affinity
//
// With a queue weight of 1 and all reuse on the device this is weight * prefill + decode, as NVIDIA Dynamo's
// KV router defines it. Affinity is in no other term.
//
// The result is also described in r.scoring.candidate, except for what depends on other candidates.
func (r *Router) scoreCandidate(p *requestPolicy, q *Query, at int, have *kv.Overlap) scoredCandidate {
	t, s := &r.targets[at], &r.scoring
	reuse := have.Depth()
	if !p.untracked {
		s.demand.OverlapBlocks = reuse
	}
	r.active.ProjectAt(r.refs[at].load, &s.demand, &s.projection)
	now, c := &s.projection.Now, &s.candidate
	more := 0
	if p.mode == Time && t.ReusesQueued {
		more = max(s.projection.QueuedBlocks-reuse, 0)
		reuse += more
	}
	*c = Candidate{
		Worker:         t.Worker,
		Overlap:        have.Blocks,
		Attachable:     have.Attachable,
		Labelled:       have.Labelled,
		QueuedTokens:   now.PrefillTokens,
		PrefillTokens:  now.PrefillTokens + r.prefillTokens(q, reuse),
		MediaTokens:    q.mediaTokens(reuse * r.active.BlockSize()),
		FetchBlocks:    r.cfg.Fetch.costOf(&have.Blocks),
		DecodeBlocks:   s.projection.Then.Blocks,
		ActiveRequests: now.Requests,
	}
	c.Overlap[kv.TierDevice] += more
	c.PrefillBlocks = float64(c.PrefillTokens) / float64(r.active.BlockSize())
	r.setAffinities(p, q, at, reuse)
	if p.mode == Time {
		r.setTimeCost(p, t, &r.refs[at], r.prefillTokens(q, reuse), reuse)
	} else {
		queued := float64(c.QueuedTokens) / float64(r.active.BlockSize())
		work := c.PrefillBlocks + float64((*r.cfg.QueueWeight-1)*queued) + c.FetchBlocks
		c.Cost = float64(p.overlapWeight*work) + float64(c.DecodeBlocks) - c.Affinity
	}
	return scoredCandidate{
		Cost:     c.Cost,
		own:      c.Time.Own,
		ttft:     c.TTFT,
		itl:      c.ITL,
		fetch:    c.FetchBlocks,
		decode:   int32(c.DecodeBlocks),
		used:     int32(s.projection.UsedBlocks),
		lasting:  c.Time.Step + c.Time.Decode + c.Time.Slow + c.Time.Interrupt - c.Time.Affinity,
		rank:     loadRank{blocks: now.Blocks, requests: now.Requests},
		target:   int32(at),
		reuse:    int32(reuse),
		prefills: int32(s.projection.Prefills.Requests),
	}
}

// prefillTokens returns the prompt tokens of q which are left after reuse.
func (r *Router) prefillTokens(q *Query, reuse int) int {
	return max(0, q.PromptTokens-reuse*r.active.BlockSize())
}

// transferAffinity is the preference for each block of the prompt which may come through memory of the same host instead
// of over a network, in blocks: a block of 16 tokens of a model of 8 to 70 billion parameters is 2 to 5 MB of K and V and
// 1 to 5 ms of prefill. At 400 Gbit/s it moves in a tenth of that time. It is less, since the decode worker may compute the
// prompt itself.
const transferAffinity = 0.05

// setAffinities sets the affinities of the candidate which is being scored, the target at an index, which reuses so
// many blocks.
func (r *Router) setAffinities(p *requestPolicy, q *Query, at, reuse int) {
	t, c, w := &r.targets[at], &r.scoring.candidate, r.cfg.Affinity
	r.scoring.savedMs = 0
	blocks := float64(q.PromptTokens) / float64(r.active.BlockSize())
	if p.hasMoE {
		c.LabelAffinity = float64(w.Label * float64(c.Labelled))
		c.ExpertShare = hostedShare(&p.moe, t.Experts)
		c.ExpertAffinity = float64(c.ExpertShare * blocks * w.Experts)
	}
	if p.bound == t.Worker {
		c.SessionAffinity = float64(w.Session * blocks)
	}
	if q.Adapter != "" && containsSorted(t.Loaded, q.Adapter) {
		c.AdapterAffinity = *r.cfg.AdapterAffinity
	}
	if len(q.Held) > 0 && w.Embedding > 0 {
		c.HeldTokens = q.heldTokens(t.Worker, reuse*r.active.BlockSize())
		rate, all := r.refs[at].rates, c.MediaTokens
		if p.mode != Time {
			// The cost has no time of encoding: what a worker reuses it does not encode either, and saves as much.
			all = q.mediaTokens(0)
		}
		r.scoring.savedMs = float64(w.Embedding * (rate.EncodeMs(all) - rate.EncodeMs(c.MediaTokens-c.HeldTokens)))
		if blockMs := float64(rate.TokenMs() * float64(r.active.BlockSize())); blockMs > 0 {
			c.EmbeddingAffinity = r.scoring.savedMs / blockMs
		}
	}
	if _, near := slices.BinarySearch(q.Near, t.Worker.ID); near {
		c.TransferAffinity = transferAffinity * float64(r.prefillTokens(q, reuse)) / float64(r.active.BlockSize())
	}
	c.Affinity = c.LabelAffinity + c.ExpertAffinity + c.SessionAffinity + c.AdapterAffinity + c.EmbeddingAffinity + c.TransferAffinity
}
