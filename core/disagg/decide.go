package disagg

import (
	"errors"
	"fmt"

	"penstock/core/rates"
)

// SplitPolicy says how Decide decides.
type SplitPolicy uint8

// The policies. Their order is that of the numbers in docs/format/engine.md.
const (
	// ByCost compares the time and harm of both ways.
	ByCost SplitPolicy = iota
	// ByThreshold is Dynamo's rule: remote if more than MaxLocalPrefillLength tokens are to be computed and the
	// queue has fewer than MaxPrefillQueueSize jobs.
	ByThreshold
	// AlwaysRemote and NeverRemote do not compare.
	AlwaysRemote
	NeverRemote

	splitPolicies = iota
)

var policyNames = [splitPolicies]string{"cost", "threshold", "always", "never"}

// String returns the name which ParsePolicy takes.
func (p SplitPolicy) String() string {
	if !p.IsKnown() {
		return "unknown policy"
	}
	return policyNames[p]
}

// IsKnown reports whether p is one of the policies.
func (p SplitPolicy) IsKnown() bool { return int(p) < splitPolicies }

// PolicyNames returns the names of the policies.
func PolicyNames() []string { return policyNames[:] }

// ParsePolicy returns the policy of a name: cost, threshold, always or never.
func ParsePolicy(name string) (SplitPolicy, error) {
	for i, n := range policyNames {
		if n == name {
			return SplitPolicy(i), nil
		}
	}
	return 0, fmt.Errorf("disagg: policy %.40q is none of cost, threshold, always and never", name)
}

// SplitConfig is how it is decided where a prompt is computed.
type SplitConfig struct {
	Policy SplitPolicy
	// MaxLocalPrefillLength is how many tokens without the cached ones are computed locally; ByThreshold only.
	MaxLocalPrefillLength int
	// MaxPrefillQueueSize is how many jobs in the queue are too many for another one; ByThreshold only.
	MaxPrefillQueueSize int
	// DecodeWeight is what a ms of delay of a running answer costs, relative to a ms before the first token; ByCost
	// only. With 1 the cost is the time by which the prompt delays the ends of all answers. Less prefers first tokens.
	DecodeWeight float64
}

// DefaultSplit returns cost, 1000 tokens and 2 jobs as Dynamo has them, and 1: any ms is a ms.
func DefaultSplit() SplitConfig {
	return SplitConfig{Policy: ByCost, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2, DecodeWeight: 1}
}

// Validate reports every problem of c at once, nil if there is none.
func (c *SplitConfig) Validate() error {
	var all []error
	if !c.Policy.IsKnown() {
		all = append(all, fmt.Errorf("disagg: policy %d is unknown", c.Policy))
	}
	if c.MaxLocalPrefillLength < 0 || c.MaxPrefillQueueSize < 0 {
		all = append(all, fmt.Errorf("disagg: at most %d tokens are prefilled locally and %d jobs are queued: must not be negative", c.MaxLocalPrefillLength, c.MaxPrefillQueueSize))
	}
	if !(c.DecodeWeight >= 0 && c.DecodeWeight <= 1e9) {
		all = append(all, fmt.Errorf("disagg: the weight of running answers is %v: must be between 0 and 1e9", c.DecodeWeight))
	}
	return errors.Join(all...)
}

// SplitInputs is what a decision depends on, beside the rates. Counts are not negative.
type SplitInputs struct {
	// Tokens is the length of the request in tokens, at least 1, and Cached how many of the first ones the decode
	// worker holds.
	Tokens int `json:"tokens"`
	Cached int `json:"cached"`
	// BlockSize is that of the decode worker in tokens, at least 1.
	BlockSize int `json:"block_size"`
	// LocalTokens are queued prefill tokens of the decode worker, LocalPrefills the prompts to which they belong, and
	// Decoding its running answers.
	LocalTokens   int `json:"local_tokens"`
	LocalPrefills int `json:"local_prefills"`
	Decoding      int `json:"decoding"`
	// PrefillWorkers is the number of prefill workers which may compute the prompt, and RemoteCached how many of the
	// first tokens the cache of the one has which gets the job. It is 0 if that is not known.
	PrefillWorkers int `json:"prefill_workers"`
	RemoteCached   int `json:"remote_cached"`
	// QueuedJobs wait for a prefill worker, and RunningJobs are in progress at one. QueuedTokens are what both have to
	// compute.
	QueuedJobs   int `json:"queued_jobs"`
	RunningJobs  int `json:"running_jobs"`
	QueuedTokens int `json:"queued_tokens"`
	// A transfer takes TransferFixedMs, and TransferTokenMs for each token whose block moves.
	TransferFixedMs float64 `json:"transfer_fixed_ms"`
	TransferTokenMs float64 `json:"transfer_token_ms"`
	// FailureMs is the time which failed attempts are expected to take from a prompt which is sent away, and FailureShare
	// the expected share of such prompts which are then computed by the decode worker all the same: between 0 and 1.
	// RetryDue says that one prompt may be sent away in spite of both.
	FailureMs    float64 `json:"failure_ms,omitempty"`
	FailureShare float64 `json:"failure_share,omitempty"`
	RetryDue     bool    `json:"retry_due,omitempty"`
	// NamedUnknown says that the request names a prefill worker which is not known, and NamedFailed that the one which it
	// names has failed such requests, and is not tried again yet.
	NamedUnknown bool `json:"named_unknown,omitempty"`
	NamedFailed  bool `json:"named_failed,omitempty"`
	// NoRoom says that the decode worker has no memory in which the blocks could arrive, and TooLarge that they are larger
	// than all of that memory.
	NoRoom   bool `json:"no_room,omitempty"`
	TooLarge bool `json:"too_large,omitempty"`
}

// MovedRange returns the tokens whose blocks would move, half open. It is empty if start is end.
func (in *SplitInputs) MovedRange() (start, end int) {
	end = MovableEnd(in.Tokens, in.BlockSize)
	return min(in.Cached/in.BlockSize*in.BlockSize, end), end
}

// PathCost has the terms of the cost of one way, in ms.
type PathCost struct {
	// Wait is the time until what is queued is computed. There is one queue of all prefill workers, unless the job is
	// addressed to one of them.
	Wait float64 `json:"wait"`
	// Prefill is the time of the prefill itself: of the tokens which are not cached where it runs.
	Prefill float64 `json:"prefill"`
	// Transfer is the time in which the blocks move, and Tail that of the tokens which the decode worker computes
	// after that.
	Transfer float64 `json:"transfer"`
	Tail     float64 `json:"tail"`
	// Harm is the weighted time for which the part which the decode worker computes stalls its running answers.
	Harm float64 `json:"harm"`
	// Backlog is the time by which the prefill delays prompts which come later. While it waits and is computed about as
	// many come as are there now (Little's law).
	Backlog float64 `json:"backlog"`
	// Failures is the time which failed attempts are expected to take, and the saving which is lost when the decode worker
	// computes the prompt after them. Local prefill has none.
	Failures float64 `json:"failures"`
}

// Sum returns the cost, in ms.
func (c *PathCost) Sum() float64 {
	return c.sumWithoutFailures() + c.Failures
}

// sumWithoutFailures returns the cost if no attempt fails, in ms.
func (c *PathCost) sumWithoutFailures() float64 {
	return c.Wait + c.Prefill + c.Transfer + c.Tail + c.Harm + c.Backlog
}

// countFailures sets the cost of failures of the remote way, by the other terms of both ways.
func (d *Decision) countFailures() {
	saving := max(d.LocalCost.Sum()-d.RemoteCost.sumWithoutFailures(), 0)
	d.RemoteCost.Failures = d.Inputs.FailureMs + float64(d.Inputs.FailureShare*saving)
}

// Decision is where a prompt is to be computed, with all that it depends on.
type Decision struct {
	// Config is how it was decided.
	Config SplitConfig `json:"-"`
	// Remote says that a prefill worker is to compute it.
	Remote bool        `json:"remote"`
	Reason SplitReason `json:"reason"`
	Inputs SplitInputs `json:"inputs"`
	// LocalCost and RemoteCost are the costs of both ways, by every policy. Without prefill workers RemoteCost has no
	// Wait and no Backlog.
	LocalCost  PathCost `json:"local_ms"`
	RemoteCost PathCost `json:"remote_ms"`
	// To is the prefill worker to which the job is addressed; zero leaves it to the queue. Pinned says that no other
	// worker may get it.
	To     Incarnation `json:"to,omitzero"`
	Pinned bool        `json:"pinned,omitempty"`
}

// SplitReason says which rule decided.
type SplitReason uint8

// The reasons, in the order in which the rules are tried.
const (
	PolicyIsNever SplitReason = iota
	NoPrefillWorkers
	AllBlocksHeld
	TooLargeToLand
	NoLandingRoom
	PolicyIsAlways
	ShortPrefill
	FullQueue
	LongPrefill
	CheaperLocal
	CheaperRemote
	// NamedIsUnknown and NamedHasFailed are local prefill since the worker which the request names cannot be asked. They are
	// tried after PolicyIsNever.
	NamedIsUnknown
	NamedHasFailed
	// RemoteRetry is remote prefill which costs less if its attempts do not fail any more.
	RemoteRetry

	splitReasons = iota
)

// String returns the rule in words.
func (r SplitReason) String() string {
	if int(r) >= splitReasons {
		return "unknown reason"
	}
	return [splitReasons]string{
		"the policy is never", "there are no prefill workers", "all blocks which could move are held",
		"larger than the landing memory", "no memory is free for blocks which arrive", "the policy is always", "the prefill is short", "the queue is full",
		"the prefill is long", "local prefill costs no more", "remote prefill costs less",
		"the named prefill worker is not known", "the named prefill worker has failed",
		"remote prefill is tried again",
	}[r]
}

// MarshalText returns the rule in words.
func (r SplitReason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Decide decides where a prompt is computed: by the worker which decodes, whose rates are local, or by a prefill worker,
// whose rates are remote. It allocates nothing.
//
//	local  = wait + prefill(tokens - cached) + harm and backlog of that prefill
//	remote = wait / workers + prefill(end - remote cached) + backlog of that prefill
//	         + transfer(end - start) + prefill(tokens - end) + harm of that tail + failures
//
//	failures = time of failed attempts + share of failed handoffs * (local - remote without failures, if more than 0)
//
// Harm is DecodeWeight * answers which run * time. Backlog is time * prompts which wait or are computed / workers. A
// prefill worker computes also what the decode worker holds, since it does not read its blocks. Equal costs are decided
// for local prefill.
func Decide(c *SplitConfig, in *SplitInputs, local, remote *rates.WorkerRates) Decision {
	d := Decision{Config: *c, Inputs: *in}
	start, end := in.MovedRange()
	stall := c.DecodeWeight * float64(in.Decoding)

	d.LocalCost.Wait = local.PrefillMs(in.LocalTokens)
	d.LocalCost.Prefill = local.PrefillMs(max(in.Tokens-in.Cached, 1))
	d.LocalCost.Harm = float64(stall * d.LocalCost.Prefill)
	d.LocalCost.Backlog = float64(float64(in.LocalPrefills) * d.LocalCost.Prefill)
	if start < end {
		d.RemoteCost.Prefill = remote.PrefillMs(max(end-in.RemoteCached, 1))
		if in.PrefillWorkers > 0 {
			d.RemoteCost.Wait = remote.PrefillMs(in.QueuedTokens) / float64(in.PrefillWorkers)
			jobs := float64(in.QueuedJobs + in.RunningJobs)
			d.RemoteCost.Backlog = float64(jobs*d.RemoteCost.Prefill) / float64(in.PrefillWorkers)
		}
		d.RemoteCost.Transfer = in.TransferFixedMs + float64(in.TransferTokenMs*float64(end-start))
		d.RemoteCost.Tail = local.PrefillMs(in.Tokens - end)
		d.RemoteCost.Harm = float64(stall * d.RemoteCost.Tail)
		d.countFailures()
	}
	d.Remote, d.Reason = d.applyRules(c, start == end)
	return d
}

// DecideLegs decides whether a request is divided whose engines move blocks themselves (see [Legs]). How long they take for
// that is not known, nor what waits at them: the decision has no costs, ByCost decides as AlwaysRemote, and QueuedJobs
// is 0.
func DecideLegs(c *SplitConfig, in *SplitInputs) Decision {
	d, rules := Decision{Config: *c, Inputs: *in}, *c
	if rules.Policy == ByCost {
		rules.Policy = AlwaysRemote
	}
	start, end := in.MovedRange()
	d.Remote, d.Reason = d.applyRules(&rules, start == end)
	return d
}

// applyRules returns what the first rule which applies decides.
func (d *Decision) applyRules(c *SplitConfig, held bool) (remote bool, why SplitReason) {
	in := &d.Inputs
	switch {
	case c.Policy == NeverRemote:
		return false, PolicyIsNever
	case in.NamedUnknown:
		return false, NamedIsUnknown
	case in.NamedFailed:
		return false, NamedHasFailed
	case in.PrefillWorkers < 1:
		return false, NoPrefillWorkers
	case held:
		return false, AllBlocksHeld
	case in.TooLarge:
		return false, TooLargeToLand
	case in.NoRoom:
		return false, NoLandingRoom
	case c.Policy == AlwaysRemote:
		return true, PolicyIsAlways
	case c.Policy == ByThreshold && in.Tokens-in.Cached <= c.MaxLocalPrefillLength:
		return false, ShortPrefill
	case c.Policy == ByThreshold && in.QueuedJobs >= c.MaxPrefillQueueSize:
		return false, FullQueue
	case c.Policy == ByThreshold:
		return true, LongPrefill
	}
	switch local := d.LocalCost.Sum(); {
	case d.RemoteCost.Sum() < local:
		return true, CheaperRemote
	case in.RetryDue && d.RemoteCost.sumWithoutFailures() < local:
		return true, RemoteRetry
	}
	return false, CheaperLocal
}
