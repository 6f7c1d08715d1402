package config

import (
	"fmt"
	"strconv"
	"time"

	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/dispatch"
)

// RouteConfig returns the routing policy of the settings, which must be valid.
func (c *Config) RouteConfig() route.Config {
	cfg := route.Config{
		Mode: route.Mode(c.Router.Mode), OverlapWeight: &c.Router.OverlapWeight, QueueWeight: &c.Router.QueueWeight,
		Temperature: c.Router.Temperature, NearCost: c.Router.NearCost, Seed: c.Router.Seed,
		Fetch: &route.FetchCosts{}, Affinity: new(route.DefaultAffinityWeights()),
		Sessions: route.SessionConfig{Stickiness: route.Stickiness(c.Router.SessionAffinity), TTL: time.Duration(c.Router.SessionTTL)},
		Targets:  route.Targets{TTFT: time.Duration(c.Router.TTFTTarget), ITL: time.Duration(c.Router.ITLTarget)},
		OnMiss:   route.MissPolicy(c.Router.TargetMiss),
		Busy:     route.BusyThresholds{DecodeBlocks: c.Router.BusyThreshold, PrefillTokens: c.Router.BusyPrefillTokens},
	}
	fillFields(c.Router.FetchCosts, &cfg.Fetch.Host, &cfg.Fetch.Disk, &cfg.Fetch.Pool)
	fillFields(c.Router.AffinityWeights, &cfg.Affinity.Label, &cfg.Affinity.Experts, &cfg.Affinity.Session, &cfg.Affinity.Embedding)
	if threshold, err := c.parseQueueThreshold(); err == nil {
		cfg.QueueThreshold = threshold
	}
	return cfg
}

// QueueConfig returns the queue policy for requests which wait for a worker.
func (c *Config) QueueConfig() queue.Config {
	return queue.Config{Policy: queue.Policy(c.Router.QueuePolicy), MaxEntries: c.Router.QueueDepth, Patience: time.Duration(c.Router.QueuePatience)}
}

// maxWeight bounds weights, so that products of a weight and a number of blocks stay exact enough.
const maxWeight = 1e9

// parseQueueThreshold returns nil for off.
func (c *Config) parseQueueThreshold() (*float64, error) {
	if c.Router.QueueThreshold == Off {
		return nil, nil
	}
	v, err := strconv.ParseFloat(c.Router.QueueThreshold, 64)
	if err != nil || !(v >= 0 && v <= maxWeight) {
		return nil, fmt.Errorf("%.100q is neither off nor a number of at least 0, such as 4", c.Router.QueueThreshold)
	}
	return &v, nil
}

// checkRouter checks the settings for the choice of a worker, and the migration of requests.
func (p *problems) checkRouter(c *Config) {
	if n := len(c.Router.FetchCosts); n != 3 {
		p.report("router-fetch-costs", fmt.Sprintf("has %d numbers, not 3: of host, disk and pool", n))
	}
	if n := len(c.Router.AffinityWeights); n != 3 && n != 4 { // earlier builds had three
		p.report("router-affinity-weights", fmt.Sprintf("has %d numbers, not 4: of labels, experts, sessions and embeddings", n))
	}
	for _, t := range [...]struct {
		key   string
		value Duration
	}{{"ttft-target", c.Router.TTFTTarget}, {"itl-target", c.Router.ITLTarget}} {
		switch {
		case time.Duration(t.value) > route.MaxTarget:
			p.report(t.key, fmt.Sprintf("%v is more than %v", t.value, route.MaxTarget))
		case t.value > 0 && route.Mode(c.Router.Mode) != route.Time:
			p.report(t.key, "targets need --router-mode time")
		}
	}
	if _, err := c.parseQueueThreshold(); err != nil {
		p.report("router-queue-threshold", err.Error())
	}
	if v, least := time.Duration(c.Router.ActiveRequestExpiry), 3*dispatch.RenewInterval; v < least { // renewals may be late
		p.report("active-request-expiry", fmt.Sprintf("%v is too short: use %v or more", v, least))
	}
}
