// Package route decides which worker serves a request.
package route

import (
	"time"

	"penstock/core/kv"
	"penstock/core/route/queue"
)

// Mode is a way of choosing among eligible workers.
type Mode string

// The modes, by the names which users see.
const (
	Time        Mode = "time"         // least cost: predicted time, for the request and for the others
	KV          Mode = "kv"           // least cost: prefill left after reuse, plus load
	RoundRobin  Mode = "round-robin"  // each in turn
	Random      Mode = "random"       // uniformly
	PowerOfTwo  Mode = "power-of-two" // the less loaded of two at random
	LeastLoaded Mode = "least-loaded" // fewest active blocks
	Direct      Mode = "direct"       // the worker which the request names
)

// UsesCaches reports whether the mode's choice depends on what workers have cached.
func (m Mode) UsesCaches() bool { return m == KV || m == Time }

// Override changes the configured policy for one request; nil fields change nothing. An overlap weight without a mode
// changes mode Time to KV.
type Override struct {
	OverlapWeight *float64 `json:"overlap_score_weight,omitempty"`
	Temperature   *float64 `json:"router_temperature,omitempty"`
	Mode          *Mode    `json:"router_mode,omitempty"`
	// AssumeReuse, if false, counts the request's blocks as shared with no other active request.
	// TrackPrefill, if false, counts none of its prompt as waiting for prefill. Both affect what later
	// requests see; nil is true.
	AssumeReuse  *bool `json:"assume_kv_reuse,omitempty"`
	TrackPrefill *bool `json:"track_prefill_tokens,omitempty"`
	// TTFTTarget and ITLTarget are targets in ms; 0 is none.
	TTFTTarget *float64 `json:"ttft_target_ms,omitempty"`
	ITLTarget  *float64 `json:"itl_target_ms,omitempty"`
	// MoE prefers workers by the experts which the request is expected to use.
	MoE *MoEQuery `json:"moe_query,omitempty"`
	// SplitOverride says where the prompt is computed. No worker that takes whole requests or decode legs is chosen by it.
	SplitOverride
}

// SplitOverride changes where prompts are computed, as disagg.SplitSettings: nil changes nothing.
type SplitOverride struct {
	DisaggPolicy          *string `json:"disagg_policy,omitempty"`
	MaxLocalPrefillLength *int    `json:"max_local_prefill_length,omitempty"`
	MaxPrefillQueueSize   *int    `json:"max_prefill_queue_size,omitempty"`
}

// WorkerRole is a part of a model's workers.
type WorkerRole uint8

// The roles.
const (
	ServingWorkers WorkerRole = iota // which take whole requests and decode legs
	PrefillWorkers                   // which take prefill legs
)

// Request asks a router which worker should serve a prompt.
type Request struct {
	// ID and Attempt together name the reservation. Attempts are numbered from 1.
	ID      string
	Attempt uint32
	Model   string
	// Role says among which of the model's workers one is chosen.
	Role   WorkerRole
	Tokens []kv.Token
	Media  []kv.Media
	Salt   kv.Salt
	// ExpectedOutput is the client's hint of output tokens; 0 if none.
	ExpectedOutput int
	Override       Override
	// Pin, if its ID is not 0, is the worker which must be chosen.
	Pin kv.Worker
	// PrefillPin, if not 0, is the worker which must compute the prompt if another one than the chosen worker does.
	PrefillPin kv.WorkerID
	// Allowed, if not empty, are the only workers which may be chosen.
	Allowed []kv.WorkerID
	// Exclude are workers which must not be chosen (they failed this request).
	Exclude []kv.WorkerID
	// Session is the session to which the request belongs; its ID is "" if none.
	Session Session
	// Priority orders requests which wait for a worker. Client is whose request it is, so that clients get equal
	// shares while they wait; 0 if unknown.
	Priority queue.Priority
	Client   uint64
}

// Decision is the answer to a Request.
type Decision struct {
	Worker kv.Worker
	// Addr is where the request plane reaches the worker.
	Addr string
	Mode Mode
	// OverlapBlocks is the contiguous prefix, in blocks of BlockSize tokens, which the worker is predicted to
	// hold on its device, or to be able to fetch.
	OverlapBlocks int
	BlockSize     int
	Cost          float64
	// Prefill are the prefill workers which hold most of the prompt, the one which holds most first, if the worker can have
	// prompts computed by them. The router's shell sets it.
	Prefill []kv.PrefixHolder
	// TTFT is the predicted time to the first token, and Work what the request is predicted to use of the worker's
	// time, in ms. Both are 0 if unknown: of a router process.
	TTFT time.Duration
	Work float64
}

// CachedTokens returns how many tokens of a prompt of the given length the worker is predicted to report as
// cached: the last token of a prompt is always computed.
func (d *Decision) CachedTokens(prompt int) int {
	if d.BlockSize < 1 {
		return 0
	}
	return min(d.OverlapBlocks, max(prompt-1, 0)/d.BlockSize) * d.BlockSize
}

// Candidate is one eligible worker as the decision saw it. Reuse (Overlap), preference (Affinity) and
// eligibility (membership in this list) are never mixed.
type Candidate struct {
	Worker kv.Worker
	// Overlap is the contiguous prefix held, in blocks, by tier; all of it is reuse.
	Overlap [4]int
	// Attachable and Labelled are parts of Overlap: the blocks in a pool which the worker can attach, and the
	// blocks whose label matches the request's MoEQuery.
	Attachable, Labelled int
	// PrefillTokens are the tokens still to prefill on the worker if the request is sent there.
	PrefillTokens int
	// MediaTokens counts the tokens of media which the worker has to encode for the request.
	MediaTokens int
	// QueuedTokens is the part of PrefillTokens which other requests have there now.
	QueuedTokens int
	// PrefillBlocks is PrefillTokens in blocks, with the fraction.
	PrefillBlocks float64
	// FetchBlocks is the cost of bringing the reuse of slower tiers to the device, in blocks of prefill.
	FetchBlocks float64
	// DecodeBlocks are the worker's active blocks if the request is sent there.
	DecodeBlocks int
	// ActiveRequests counts the requests reserved on the worker now; OthersRequests counts the part of them
	// which other routers reserved, and only Explain sets it.
	ActiveRequests, OthersRequests int
	// HeldTokens is the part of MediaTokens whose embeddings the worker holds.
	HeldTokens int
	// Affinity is the preference subtracted from Cost, in blocks; Time has it in ms. It is the sum of its
	// parts: for labelled blocks, for experts which the worker hosts, for a session bound to the worker, for an
	// adapter in its memory, for embeddings of the prompt's media in its embedding cache, and for a short way from a
	// prefill worker.
	Affinity, LabelAffinity, ExpertAffinity, SessionAffinity, AdapterAffinity, EmbeddingAffinity, TransferAffinity float64
	// ExpertShare is the share of the expected experts which the worker hosts.
	ExpertShare float64
	// Time has the terms of Cost in mode Time, in ms.
	Time TimeCost
	// TTFT and ITL are the predicted times to the first token and between two tokens, in ms; 0 of a router
	// process. Misses says that they exceed the request's targets.
	TTFT, ITL float64
	Misses    bool
	// Cost is what is minimised: in mode Time the sum of Time, in ms, and in mode KV OverlapWeight*(PrefillBlocks +
	// (QueueWeight-1)*QueuedTokens/BlockSize + FetchBlocks) + DecodeBlocks - Affinity.
	Cost float64
	// Near says that Cost is within the margin of the least one (see Config.NearCost), so that the less
	// loaded of two drawn ones is taken.
	Near bool
	// Probability is the probability of being picked under the mode and temperature in force.
	Probability float64
}

// Exclusion is a worker which could not be picked, and why.
type Exclusion struct {
	Worker kv.Worker
	Reason string
}

// Explanation is a decision with everything which led to it.
type Explanation struct {
	Decision Decision
	// Mode is the mode in force, also if no worker can be chosen.
	Mode          Mode
	OverlapWeight float64
	Temperature   float64
	// The other settings with which the costs below were computed.
	QueueWeight float64
	Fetch       FetchCosts
	Weights     AffinityWeights
	NearCost    float64
	// Bound is the worker to which the request's session is bound; its ID is 0 if there is none.
	Bound kv.Worker
	// Targets are those in force, if any, and OnMiss what happens to a request which misses them everywhere.
	// Margin is the share by which predicted times to the first token are increased before they are held against it.
	Targets      Targets
	OnMiss       MissPolicy
	Margin       float64
	PromptTokens int
	PromptBlocks int // full blocks
	Candidates   []Candidate
	Excluded     []Exclusion
}
