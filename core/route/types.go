// Package route decides which worker serves a request.
package route

import "penstock/core/kv"

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
	// Exclude are workers that must not be chosen (they failed this request).
	Exclude []kv.WorkerID
}

// Decision is the answer to a Request.
type Decision struct {
	Worker kv.Worker
	// Addr is where the request plane reaches the worker.
	Addr string
	Mode Mode
	// OverlapBlocks is the contiguous prefix, in blocks of BlockSize tokens, that
	// the worker is believed to hold.
	OverlapBlocks int
	BlockSize     int
	Cost          float64
}

// Candidate is one eligible worker as the decision saw it: the three numbers
// that never mix are Overlap (reuse), Affinity (preference) and membership in
// this list (eligibility).
type Candidate struct {
	Worker kv.Worker
	// Overlap is the contiguous prefix held, in blocks, by tier.
	Overlap [4]int
	// PrefillTokens are those still to prefill on the worker were the request sent there.
	PrefillTokens int
	// PrefillBlocks is PrefillTokens in blocks; a fraction counts.
	PrefillBlocks float64
	// DecodeBlocks are the worker's active blocks were the request sent there.
	DecodeBlocks int
	// ActiveRequests are those reserved on the worker now.
	ActiveRequests int
	// Affinity is the preference added to the score; 0 without one.
	Affinity float64
	// Cost is what is minimised: OverlapWeight*PrefillBlocks + DecodeBlocks - Affinity.
	Cost float64
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
	PromptTokens  int
	PromptBlocks  int // full blocks
	Candidates    []Candidate
	Excluded      []Exclusion
}
