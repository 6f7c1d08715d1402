package route

import (
	"errors"
	"fmt"
	"math"

	"penstock/core/fault"
)

// Config is the policy of a Router.
type Config struct {
	// Mode is how a worker is chosen; "" is KV.
	Mode Mode
	// OverlapWeight is what one block of prefill work costs against one active
	// block; nil is 1. At 0 a worker's cache does not matter for the choice:
	// nobody needs to be asked for overlaps then.
	OverlapWeight *float64
	// Temperature spreads choices of mode KV: at 0 the least cost wins, and the
	// higher it is, the closer to uniform they are.
	Temperature float64
	// Seed starts the sequence of draws. Routers with equal seeds that see equal
	// histories decide equally.
	Seed uint64
	// Busy says when a worker has enough to do.
	Busy Busy
}

// The bounds of weights and temperatures keep costs finite.
const (
	maxWeight      = 1e9
	maxTemperature = 1e9
)

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Mode == "" {
		c.Mode = KV
	}
	if c.OverlapWeight == nil {
		c.OverlapWeight = new(1.0)
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if !c.Mode.known() {
		errs = append(errs, fmt.Errorf("route: mode %.100q is not one of %s", string(c.Mode), modeNames))
	}
	if c.OverlapWeight == nil || !within(*c.OverlapWeight, maxWeight) {
		errs = append(errs, fmt.Errorf("route: overlap weight must be between 0 and %g", maxWeight))
	}
	if !within(c.Temperature, maxTemperature) {
		errs = append(errs, fmt.Errorf("route: temperature must be between 0 and %g", maxTemperature))
	}
	if err := c.Busy.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// within reports whether v is between 0 and limit; NaN is not.
func within(v, limit float64) bool { return v >= 0 && v <= limit && !math.IsNaN(v) }

const modeNames = "kv, round-robin, random, power-of-two, least-loaded, direct"

func (m Mode) known() bool {
	switch m {
	case KV, RoundRobin, Random, PowerOfTwo, LeastLoaded, Direct:
		return true
	}
	return false
}

// policy is what is in force for one request.
type policy struct {
	mode        Mode
	weight      float64
	temperature float64
}

// policy returns what is in force for q: the configuration, the request's
// override, and a pin above both. It fails with Invalid.
func (r *Router) policy(q *Query) (policy, error) {
	p, err := r.override(&q.Override)
	switch {
	case err != nil:
		return p, err
	case q.Pin.ID != 0:
		p.mode = Direct
	case p.mode == Direct:
		return p, fault.Param("worker_id", "router mode direct needs the worker in the request: set nvext.backend_instance_id or the header x-worker-instance-id")
	}
	return p, nil
}

// override returns the configured policy changed by o, or an Invalid error that
// names the wrong field.
func (r *Router) override(o *Override) (policy, error) {
	p := policy{mode: r.cfg.Mode, weight: *r.cfg.OverlapWeight, temperature: r.cfg.Temperature}
	if o.Mode != nil {
		if !o.Mode.known() {
			return p, fault.Param("router_config_override.router_mode", "router mode %.40q is not one of %s", string(*o.Mode), modeNames)
		}
		p.mode = *o.Mode
	}
	if o.OverlapWeight != nil {
		if !within(*o.OverlapWeight, maxWeight) {
			return p, fault.Param("router_config_override.overlap_score_weight", "overlap weight must be between 0 and %g", maxWeight)
		}
		p.weight = *o.OverlapWeight
	}
	if o.Temperature != nil {
		if !within(*o.Temperature, maxTemperature) {
			return p, fault.Param("router_config_override.router_temperature", "router temperature must be between 0 and %g", maxTemperature)
		}
		p.temperature = *o.Temperature
	}
	return p, nil
}
