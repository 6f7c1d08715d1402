package route

import (
	"penstock/core/kv"
)

// scoredCandidate is an eligible worker while a decision is made.
type scoredCandidate struct {
	Candidate
	addr     string
	rank     loadRank
	prefills int // queued on the worker
}

// loadRank orders workers by how busy they are.
type loadRank struct {
	blocks   int
	requests int
}

// scoreCandidate computes the cost of sending q to t, which has the overlap have:
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
func (r *Router) scoreCandidate(p *requestPolicy, q *Query, t *Target, have kv.Overlap) scoredCandidate {
	reuse := have.Depth()
	now, then := r.active.ProjectLoad(t.Worker, q.newDemand(p, reuse))
	c := scoredCandidate{
		Candidate: Candidate{
			Worker:         t.Worker,
			Overlap:        have.Blocks,
			Attachable:     have.Attachable,
			Labelled:       have.Labelled,
			QueuedTokens:   now.PrefillTokens,
			PrefillTokens:  now.PrefillTokens + r.prefillTokens(q, reuse),
			MediaTokens:    q.mediaTokens(reuse * r.active.BlockSize()),
			FetchBlocks:    r.cfg.Fetch.costOf(&have.Blocks),
			DecodeBlocks:   then.Blocks,
			ActiveRequests: now.Requests,
		},
		addr: t.Addr,
		rank: loadRank{blocks: now.Blocks, requests: now.Requests},
	}
	if p.mode == Time {
		r.setTimeCost(p, q, t, &c, now, then, r.prefillTokens(q, reuse))
		return c
	}
	c.PrefillBlocks = float64(c.PrefillTokens) / float64(r.active.BlockSize())
	r.setAffinities(p, q, t, &c.Candidate)
	queued := float64(c.QueuedTokens) / float64(r.active.BlockSize())
	work := c.PrefillBlocks + float64((*r.cfg.QueueWeight-1)*queued) + c.FetchBlocks
	c.Cost = float64(p.overlapWeight*work) + float64(c.DecodeBlocks) - c.Affinity
	return c
}

// prefillTokens returns the prompt tokens of q which are left after reuse.
func (r *Router) prefillTokens(q *Query, reuse int) int {
	return max(0, q.PromptTokens-reuse*r.active.BlockSize())
}

// setAffinities sets the affinities of a candidate.
func (r *Router) setAffinities(p *requestPolicy, q *Query, t *Target, c *Candidate) {
	w := r.cfg.Affinity
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
	c.Affinity = c.LabelAffinity + c.ExpertAffinity + c.SessionAffinity + c.AdapterAffinity
}
