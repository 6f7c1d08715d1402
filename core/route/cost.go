package route

import "penstock/core/kv"

// candidate is an eligible worker in the making of a decision.
type candidate struct {
	Candidate
	addr string
	load load
}

// load orders workers by how busy they are.
type load struct {
	blocks   int
	requests int
}

// cost works out what sending q to t would cost, where t holds have of it:
//
//	prefill = (prefill tokens active on t + prompt tokens - overlap) / block size
//	decode  = distinct blocks active on t + blocks of the prompt not among them
//	cost    = weight * prefill + decode - affinity
//
// (NVIDIA Dynamo's KV router defines it so.) Only what is on the device counts as
// overlap: what it costs to fetch the rest is not known here.
func (r *Router) cost(p *policy, q *Query, t *Target, have [kv.Tiers]int) candidate {
	now, then := r.active.Project(t.Worker, q.demand(have[kv.TierDevice]))
	c := candidate{
		Candidate: Candidate{
			Worker:         t.Worker,
			Overlap:        have,
			PrefillTokens:  then.PrefillTokens,
			PrefillBlocks:  float64(then.PrefillTokens) / float64(r.active.BlockSize()),
			DecodeBlocks:   then.Blocks,
			ActiveRequests: now.Requests,
		},
		addr: t.Addr,
		load: load{blocks: now.Blocks, requests: now.Requests},
	}
	c.Cost = float64(p.weight*c.PrefillBlocks) + float64(c.DecodeBlocks) - c.Affinity
	return c
}
