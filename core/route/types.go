// Package route decides which worker serves a request.
package route

import (
	"penstock/core/kv"
	"penstock/core/route/queue"
)

// Mode is a way of choosing among eligible workers.
type Mode string

// The modes, by the names that users know.
const (
	KV          Mode = "kv"           // least cost: prefill left after reuse, plus load
	RoundRobin  Mode = "round-robin"  // each in turn
	Random      Mode = "random"       // uniformly
	PowerOfTwo  Mode = "power-of-two" // the less loaded of two at random
	LeastLoaded Mode = "least-loaded" // fewest active blocks
	Direct      Mode = "direct"       // the worker that the request names
)

// Override changes the configured policy for one request; nil fields do not.
type Override struct {
	OverlapWeight *float64 `json:"overlap_score_weight,omitempty"`
	Temperature   *float64 `json:"router_temperature,omitempty"`
	Mode          *Mode    `json:"router_mode,omitempty"`
	// AssumeReuse, if false, counts the request's blocks as shared with no other active
	// request, TrackPrefill, if false, its prompt as no work that waits on its worker:
	// both are for what the next requests see, and true if nil.
	AssumeReuse  *bool `json:"assume_kv_reuse,omitempty"`
	TrackPrefill *bool `json:"track_prefill_tokens,omitempty"`
	// MoE asks for workers by the experts that the request is expected to use.
	MoE *MoEQuery `json:"moe_query,omitempty"`
}

// Request is what a router is asked: where should this prompt go?
type Request struct {
	// ID and Attempt together name the reservation. An attempt is numbered from 1.
	ID      string
	Attempt uint32
	Model   string
	Tokens  []kv.Token
	Media   []kv.Media
	Salt    kv.Salt
	// ExpectedOutput is the client's hint of output tokens; 0 if none.
	ExpectedOutput int
	Override       Override
	// Pin, when its ID is not 0, is the worker that must be chosen.
	Pin kv.Worker
	// Allowed, if there are any, are the only workers that may be chosen.
	Allowed []kv.WorkerID
	// Exclude are workers that must not be chosen (they failed this request).
	Exclude []kv.WorkerID
	// Session is the client's name for the requests that belong together; "" if none.
	Session Session
	// Priority orders requests that wait for a worker.
	Priority queue.Priority
}

// Decision is the answer to a Request.
type Decision struct {
	Worker kv.Worker
	// Addr is where the request plane reaches the worker.
	Addr string
	Mode Mode
	// OverlapBlocks is the contiguous prefix, in blocks of BlockSize tokens, that
	// the worker is believed to hold on its device, or to be able to fetch.
	OverlapBlocks int
	BlockSize     int
	Cost          float64
}

// CachedTokens returns how many tokens of a prompt of so many the worker can report to have
// had cached, by what is believed: the last token of a prompt is always computed.
func (d *Decision) CachedTokens(prompt int) int {
	if d.BlockSize < 1 {
		return 0
	}
	return min(d.OverlapBlocks, max(prompt-1, 0)/d.BlockSize) * d.BlockSize
}

// Candidate is one eligible worker as the decision saw it: the three numbers
// that never mix are Overlap (reuse), Affinity (preference) and membership in
// this list (eligibility).
type Candidate struct {
	Worker kv.Worker
	// Overlap is the contiguous prefix held, in blocks, by tier; all of it is reuse.
	Overlap [4]int
	// Attachable and Labelled are parts of it: the blocks in a pool that the worker can
	// attach, and those whose label answers the request's MoEQuery.
	Attachable, Labelled int
	// PrefillTokens are those still to prefill on the worker were the request sent there.
	PrefillTokens int
	// QueuedTokens is the part of PrefillTokens that other requests have there now.
	QueuedTokens int
	// PrefillBlocks is PrefillTokens in blocks; a fraction counts.
	PrefillBlocks float64
	// FetchBlocks is what it costs to bring the reuse of slower tiers to the device, in
	// blocks of prefill.
	FetchBlocks float64
	// DecodeBlocks are the worker's active blocks were the request sent there.
	DecodeBlocks int
	// ActiveRequests are those reserved on the worker now; OthersRequests of them are
	// other routers'. Only Explain says that.
	ActiveRequests, OthersRequests int
	// Affinity is the preference added to the score, in units of Cost; 0 without one. It
	// is the sum of its parts: that of labelled blocks, of experts that the worker hosts, of
	// the session that is at the worker, and of the adapter that it has in memory.
	Affinity, LabelAffinity, ExpertAffinity, SessionAffinity, AdapterAffinity float64
	// ExpertShare is the share of the experts expected that the worker hosts.
	ExpertShare float64
	// Cost is what is minimised:
	// OverlapWeight*(PrefillBlocks + (QueueWeight-1)*QueuedTokens/BlockSize + FetchBlocks) + DecodeBlocks - Affinity.
	Cost float64
	// Near says that Cost is within the margin of the least one (see Config.NearCost), so
	// that the less loaded of two drawn ones is taken.
	Near bool
	// Probability of being picked under the mode and temperature in force.
	Probability float64
}

// Exclusion is a worker that could not be picked, and why.
type Exclusion struct {
	Worker kv.Worker
	Reason string
}

// Explanation is a decision with everything that led to it.
type Explanation struct {
	Decision      Decision
	OverlapWeight float64
	Temperature   float64
	// The other settings that the costs below were computed with.
	QueueWeight float64
	Fetch       FetchCosts
	Weights     AffinityWeights
	NearCost    float64
	// Bound is the worker that the request's session is at; its ID is 0 if at none.
	Bound        kv.Worker
	PromptTokens int
	PromptBlocks int // full blocks
	Candidates   []Candidate
	Excluded     []Exclusion
}
