package route

import (
	"errors"
	"fmt"
	"math"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/rates"
)

// Config is the policy of a Router.
type Config struct {
	// Mode is how a worker is chosen; "" is [DefaultMode], or [WeightedMode].
	Mode Mode
	// OverlapWeight is the cost in mode KV of one block of prefill work relative to one active block; nil is 1. At 0
	// a worker's cache does not matter for the choice, and no overlaps need to be looked up.
	OverlapWeight *float64
	// QueueWeight is the cost in mode KV of a block of prefill work which other requests have on the worker, relative
	// to one of the request's own; nil is 1. A value above 1 avoids workers where the request would wait.
	QueueWeight *float64
	// Temperature spreads choices of the modes Time and KV: at 0 the least cost wins; the higher it is, the
	// closer to uniform they are.
	Temperature float64
	// Fetch is the cost of reuse which is not on the device; nil is DefaultFetchCosts.
	Fetch *FetchCosts
	// Affinity weighs preferences, in blocks like AdapterAffinity; nil is DefaultAffinityWeights.
	Affinity *AffinityWeights
	// AdapterAffinity is the preference for a worker which has the request's LoRA adapter in memory, in blocks;
	// mode Time takes the time of their prefill. nil is DefaultAdapterAffinity.
	AdapterAffinity *float64
	// NearCost, a share of at most 1, says which costs count as nearly equal in the modes Time and KV at
	// temperature 0: costs which exceed the least by no more than this share of it. Two of these workers are
	// drawn and the less loaded is taken, so that routers which do not see each other's decisions do not all
	// choose the same one. At 0 only equal costs count, and each of their workers is as likely.
	NearCost float64
	// Sessions configures session affinity.
	Sessions SessionConfig
	// QueueThreshold is the share of a worker's BatchTokens: while more prompt tokens than that wait on the
	// worker, a request waits in the router instead; nil is never.
	QueueThreshold *float64
	// Seed starts the sequence of draws. Routers with equal seeds which see equal histories decide equally.
	Seed uint64
	// Time weighs the terms of mode Time; nil is DefaultTimeWeights.
	Time *TimeWeights
	// Targets are the targets of requests which give none of their own; OnMiss says what happens to a request for
	// which no worker meets them, "" is MissWaits.
	Targets Targets
	OnMiss  MissPolicy
	// Rates holds what is assumed of the workers' speeds until they are learned.
	Rates rates.Config
	// Busy says above which loads a worker is busy.
	Busy BusyThresholds
}

// DefaultAdapterAffinity is the cost of loading an adapter: reading tens to hundreds of megabytes and copying
// them to the device takes as long as an engine needs for some hundreds of tokens. It is small enough that a
// more loaded worker, or one with less of the prompt, is passed over, so that an adapter in demand gets
// loaded on several workers.
const DefaultAdapterAffinity = 16.0

// The bounds of weights and temperatures keep costs finite.
const (
	maxWeight      = 1e9
	maxTemperature = 1e9
)

// The modes if none is set: WeightedMode if one of its weights is set, which has no meaning in another one, else
// DefaultMode.
const (
	DefaultMode  = Time
	WeightedMode = KV
)

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	if c.Mode == "" {
		c.Mode = DefaultMode
		if c.OverlapWeight != nil || c.QueueWeight != nil {
			c.Mode = WeightedMode
		}
	}
	if c.OverlapWeight == nil {
		c.OverlapWeight = new(1.0)
	}
	if c.QueueWeight == nil {
		c.QueueWeight = new(1.0)
	}
	if c.Fetch == nil {
		c.Fetch = new(DefaultFetchCosts())
	}
	if c.Affinity == nil {
		c.Affinity = new(DefaultAffinityWeights())
	}
	if c.AdapterAffinity == nil {
		c.AdapterAffinity = new(DefaultAdapterAffinity)
	}
	if c.Time == nil {
		c.Time = new(DefaultTimeWeights())
	}
	if c.OnMiss == "" {
		c.OnMiss = MissWaits
	}
	c.Rates.EnsureDefaults()
	c.Sessions.ensureDefaults()
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if !c.Mode.isKnown() {
		errs = append(errs, fmt.Errorf("route: mode %.100q is not one of %s", string(c.Mode), modeNames))
	}
	if c.OverlapWeight == nil || !isInRange(*c.OverlapWeight, maxWeight) {
		errs = append(errs, fmt.Errorf("route: overlap weight must be between 0 and %g", maxWeight))
	}
	if !isInRange(c.Temperature, maxTemperature) {
		errs = append(errs, fmt.Errorf("route: temperature must be between 0 and %g", maxTemperature))
	}
	if c.QueueWeight != nil && !isInRange(*c.QueueWeight, maxWeight) {
		errs = append(errs, fmt.Errorf("route: queue weight must be between 0 and %g", maxWeight))
	}
	if !isInRange(c.NearCost, 1) {
		errs = append(errs, errors.New("route: near cost must be a share between 0 and 1"))
	}
	if c.QueueThreshold != nil && !isInRange(*c.QueueThreshold, maxWeight) {
		errs = append(errs, fmt.Errorf("route: queue threshold must be between 0 and %g", maxWeight))
	}
	if c.Fetch != nil {
		errs = append(errs, c.Fetch.validate())
	}
	if c.AdapterAffinity != nil && !isInRange(*c.AdapterAffinity, maxWeight) {
		errs = append(errs, fmt.Errorf("route: adapter affinity must be between 0 and %g", maxWeight))
	}
	if c.Affinity != nil {
		errs = append(errs, c.Affinity.validate())
	}
	if c.Time != nil {
		errs = append(errs, c.Time.validate())
	}
	errs = append(errs, c.validateTargets(), c.Rates.Validate(), c.Sessions.validate(), c.Busy.Validate())
	return errors.Join(errs...)
}

// UsesOverlaps reports whether the mode depends on what workers have cached. Call EnsureDefaults first.
func (c *Config) UsesOverlaps() bool { return c.Mode == Time || c.Mode == KV && *c.OverlapWeight > 0 }

// isInRange reports whether v is between 0 and limit; NaN is not.
func isInRange(v, limit float64) bool { return v >= 0 && v <= limit && !math.IsNaN(v) }

const modeNames = "time, kv, round-robin, random, power-of-two, least-loaded, direct"

func (m Mode) isKnown() bool {
	switch m {
	case KV, Time, RoundRobin, Random, PowerOfTwo, LeastLoaded, Direct:
		return true
	}
	return false
}

// requestPolicy is what is in force for one request.
type requestPolicy struct {
	mode          Mode
	overlapWeight float64
	temperature   float64
	// moe is the request's query for experts, if hasMoE. requiresLabel says that a worker without a labelled
	// block cannot be chosen.
	moe                   kv.MoEQuery
	hasMoE, requiresLabel bool
	// unshared and untracked change what the placed request counts for: no block of it is shared; no token of
	// its prompt waits for prefill.
	unshared, untracked bool
	// bound is the worker to which the request's session is bound; its ID is 0 if there is none. mustUseBound
	// says that no other worker can be chosen.
	bound        kv.Worker
	mustUseBound bool
	// unheard is what other routers probably sent unheard, in mode Time. mark is common to
	// requests which share what no worker holds yet.
	unheard activeseq.Unheard
	mark    uint64
	targets Targets
}

// resolvePolicy returns what is in force for q: the configuration, the request's override, a pin (which takes
// precedence over both) and its session. It fails with Invalid.
func (r *Router) resolvePolicy(now kv.Mono, q *Query) (requestPolicy, error) {
	p, err := r.applyOverride(&q.Override)
	switch {
	case err != nil:
		return p, err
	case q.Pin.ID != 0:
		p.mode = Direct
	case p.mode == Direct:
		return p, fault.InvalidParam("worker_id", "router mode direct needs the worker in the request: set nvext.backend_instance_id or the header x-worker-instance-id")
	}
	r.resolveSession(now, &p, q)
	if p.mode == Time {
		if p.unheard = r.unheardAt(now); p.unheard.Requests > 0 {
			p.mark = q.markUncached()
		}
	}
	return p, nil
}

// markUncached returns the hash of the prompt's first block which no worker holds; of its last one if there is none.
func (q *Query) markUncached() uint64 {
	depth := 0
	for i := range q.Overlaps {
		depth = max(depth, q.Overlaps[i].Depth())
	}
	if len(q.Chain) == 0 {
		return 0
	}
	return uint64(q.Chain[min(depth, len(q.Chain)-1)])
}

// applyOverride returns the configured policy changed by o, or an Invalid error which names the wrong field.
func (r *Router) applyOverride(o *Override) (requestPolicy, error) {
	p := requestPolicy{mode: r.cfg.Mode, overlapWeight: *r.cfg.OverlapWeight, temperature: r.cfg.Temperature}
	if o.Mode != nil {
		if !o.Mode.isKnown() {
			return p, fault.InvalidParam("router_config_override.router_mode", "router mode %.40q is not one of %s", string(*o.Mode), modeNames)
		}
		p.mode = *o.Mode
	}
	if o.OverlapWeight != nil {
		if !isInRange(*o.OverlapWeight, maxWeight) {
			return p, fault.InvalidParam("router_config_override.overlap_score_weight", "overlap weight must be between 0 and %g", maxWeight)
		}
		p.overlapWeight = *o.OverlapWeight
		if o.Mode == nil && p.mode == Time {
			p.mode = WeightedMode
		}
	}
	if o.Temperature != nil {
		if !isInRange(*o.Temperature, maxTemperature) {
			return p, fault.InvalidParam("router_config_override.router_temperature", "router temperature must be between 0 and %g", maxTemperature)
		}
		p.temperature = *o.Temperature
	}
	if o.MoE != nil {
		if err := o.MoE.validate(); err != nil {
			return p, err
		}
		p.moe, p.hasMoE = o.MoE.toIndexQuery()
		p.requiresLabel = !p.moe.Fallback
	}
	var err error
	if p.targets, err = r.resolveTargets(p.mode, o); err != nil {
		return p, err
	}
	p.unshared = o.AssumeReuse != nil && !*o.AssumeReuse
	p.untracked = o.TrackPrefill != nil && !*o.TrackPrefill
	return p, nil
}
