package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/simcluster"
)

// replayRouting are the flags of replay which are settings of a router by the same names.
type replayRouting struct {
	queueThreshold, sessions, miss string
	ttft, itl                      time.Duration
	affinity                       []float64
}

func (f *replayRouting) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.queueThreshold, "router-queue-threshold", config.Off, "share of --max-num-batched-tokens above which so many prompt tokens wait on a worker that requests rather wait in the router; off never")
	fs.StringVar(&f.sessions, "router-session-affinity", config.Off, "soft or hard: requests tell routers their session; off: they do not")
	w := route.DefaultAffinityWeights()
	fs.Float64SliceVar(&f.affinity, "router-affinity-weights", []float64{w.Label, w.Experts, w.Session, w.Embedding}, "what preferences are worth, as for a router: of labels, experts, sessions and embeddings")
	fs.DurationVar(&f.ttft, "ttft-target", 0, "longest time to the first token, which mode time chooses workers by; 0s is no target")
	fs.DurationVar(&f.itl, "itl-target", 0, "longest mean time between two tokens of an answer, as --ttft-target")
	fs.StringVar(&f.miss, "router-target-miss", string(route.MissWaits), "wait or refuse: what happens to a request that no worker can answer within its targets")
}

// threshold returns nil for off.
func (f *replayRouting) threshold() (*float64, error) {
	if f.queueThreshold == config.Off {
		return nil, nil
	}
	v, err := strconv.ParseFloat(f.queueThreshold, 64)
	if err != nil || !(v >= 0 && v <= 1e9) {
		return nil, fmt.Errorf("--router-queue-threshold: %.100q is neither off nor a number of at least 0, such as 4", f.queueThreshold)
	}
	return &v, nil
}

func (f *replayRouting) validate() error {
	_, err := f.threshold()
	errs := []error{err}
	if len(f.affinity) != 4 {
		errs = append(errs, fmt.Errorf("--router-affinity-weights has %d numbers, not 4: of labels, experts, sessions and embeddings", len(f.affinity)))
	}
	switch route.Stickiness(f.sessions) {
	case route.Soft, route.Hard, route.Unbound:
	default:
		errs = append(errs, fmt.Errorf("--router-session-affinity is soft, hard or off, not %.40q", f.sessions))
	}
	if m := route.MissPolicy(f.miss); m != route.MissWaits && m != route.MissRefuses {
		errs = append(errs, fmt.Errorf("--router-target-miss is wait or refuse, not %.40q", f.miss))
	}
	if min(f.ttft, f.itl) < 0 || max(f.ttft, f.itl) > route.MaxTarget {
		errs = append(errs, fmt.Errorf("--ttft-target and --itl-target must be between 0s and %v", route.MaxTarget))
	}
	return errors.Join(errs...)
}

// apply sets the flags, which must be valid, in a run. Targets are for the runs of mode time.
func (f *replayRouting) apply(c *simcluster.Config) {
	c.Route.QueueThreshold, _ = f.threshold()
	c.Route.Affinity = &route.AffinityWeights{Label: f.affinity[0], Experts: f.affinity[1], Session: f.affinity[2], Embedding: f.affinity[3]}
	c.Route.Sessions.Stickiness = route.Stickiness(f.sessions)
	c.Sessions = f.sessions != string(route.Unbound)
	if c.Route.Mode == route.Time {
		c.Route.Targets = route.Targets{TTFT: f.ttft, ITL: f.itl}
	}
	c.Route.OnMiss = route.MissPolicy(f.miss)
}
