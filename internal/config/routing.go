package config

import (
	"fmt"
	"strconv"
	"time"

	"penstock/core/route"
	"penstock/core/route/queue"
)

// Routing are the settings for the choice of a worker, except the mode.
type Routing struct {
	RouterQueueWeight     float64   `key:"router-prefill-queue-weight" group:"router" on:"up,frontend,router" help:"what a block of prefill work that other requests have on a worker costs against one of the request's own"`
	RouterNearCost        float64   `key:"router-near-cost" group:"router" on:"up,frontend,router" help:"share of the least cost by which another may exceed it and still count as equal: of two such workers drawn at random the less loaded is taken; 0 to 1"`
	RouterFetchCosts      []float64 `key:"router-fetch-costs" group:"router" on:"up,frontend,router" help:"what a cached block costs that is not on the worker's device, as a share of computing it: in host memory, on disk, in a pool that the worker can attach"`
	RouterAffinityWeights []float64 `key:"router-affinity-weights" group:"router" on:"up,frontend,router" help:"what preferences are worth, in blocks: a block labelled as moe_query asks, the experts that it expects for each block of the prompt, the worker of the request's session for each block of the prompt"`
	RouterSessionAffinity string    `key:"router-session-affinity" group:"router" on:"up,frontend,router" help:"what a request's session id (x-session-id, nvext.session_control) is worth: soft prefers the worker that had its last request, hard keeps to it while it can be chosen, off takes no notice"`
	RouterSessionTTL      Duration  `key:"router-session-ttl" group:"router" on:"up,frontend,router" help:"silence after which a session is forgotten"`
	RouterQueueThreshold  string    `key:"router-queue-threshold" group:"router" on:"up,frontend,router" help:"share of a worker's max-num-batched-tokens above which so many prompt tokens wait there that requests rather wait in the router; off never"`
	RouterQueuePolicy     string    `key:"router-queue-policy" group:"router" on:"up,frontend,router" help:"who of those that wait in the router goes first: fcfs (who came first) or wspt (who has least to compute)"`
	RouterQueueDepth      int       `key:"router-queue-depth" group:"router" on:"up,frontend,router" help:"requests that may wait in the router for each model; one more is refused with 503"`
	RouterQueuePatience   Duration  `key:"router-queue-patience" group:"router" on:"up,frontend,router" help:"time after which a request that waits in the router goes before those of higher priority"`
}

func defaultRouting() Routing {
	fetch, affinity := route.DefaultFetchCosts(), route.DefaultAffinityWeights()
	return Routing{
		RouterQueueWeight:     1,
		RouterFetchCosts:      []float64{fetch.Host, fetch.Disk, fetch.Pool},
		RouterAffinityWeights: []float64{affinity.Label, affinity.Experts, affinity.Session},
		RouterSessionAffinity: string(route.Soft),
		RouterSessionTTL:      Duration(10 * time.Minute),
		RouterQueueThreshold:  Off,
		RouterQueuePolicy:     string(queue.FCFS),
		RouterQueueDepth:      1024,
		RouterQueuePatience:   Duration(30 * time.Second),
	}
}

// RouteConfig returns the routing policy of the settings, which must be valid.
func (c *Config) RouteConfig() route.Config {
	cfg := route.Config{
		Mode: route.Mode(c.RouterMode), OverlapWeight: &c.OverlapScoreWeight, QueueWeight: &c.RouterQueueWeight,
		Temperature: c.RouterTemperature, NearCost: c.RouterNearCost, Seed: c.RouterSeed,
		Fetch: &route.FetchCosts{}, Affinity: &route.AffinityWeights{},
		Sessions: route.SessionConfig{Stickiness: route.Stickiness(c.RouterSessionAffinity), TTL: time.Duration(c.RouterSessionTTL)},
		Busy:     route.BusyThresholds{DecodeBlocks: c.BusyThreshold, PrefillTokens: c.BusyPrefillTokens},
	}
	fillFields(c.RouterFetchCosts, &cfg.Fetch.Host, &cfg.Fetch.Disk, &cfg.Fetch.Pool)
	fillFields(c.RouterAffinityWeights, &cfg.Affinity.Label, &cfg.Affinity.Experts, &cfg.Affinity.Session)
	if threshold, err := c.parseQueueThreshold(); err == nil {
		cfg.QueueThreshold = threshold
	}
	return cfg
}

// QueueConfig returns the queue policy for requests which wait for a worker.
func (c *Config) QueueConfig() queue.Config {
	return queue.Config{Policy: queue.Policy(c.RouterQueuePolicy), MaxEntries: c.RouterQueueDepth, Patience: time.Duration(c.RouterQueuePatience)}
}

// parseQueueThreshold returns nil for off.
func (c *Config) parseQueueThreshold() (*float64, error) {
	if c.RouterQueueThreshold == Off {
		return nil, nil
	}
	v, err := strconv.ParseFloat(c.RouterQueueThreshold, 64)
	if err != nil || !(v >= 0 && v <= maxWeight) {
		return nil, fmt.Errorf("%.100q is neither off nor a number of at least 0, such as 4", c.RouterQueueThreshold)
	}
	return &v, nil
}

func (p *problems) checkRouting(c *Config) {
	p.checkWeight("router-prefill-queue-weight", c.RouterQueueWeight)
	p.checkShare("router-near-cost", c.RouterNearCost)
	if len(c.RouterFetchCosts) != 3 {
		p.report("router-fetch-costs", fmt.Sprintf("has %d numbers, not 3: of host, disk and pool", len(c.RouterFetchCosts)))
	}
	for _, v := range c.RouterFetchCosts {
		p.checkShare("router-fetch-costs", v)
	}
	if len(c.RouterAffinityWeights) != 3 {
		p.report("router-affinity-weights", fmt.Sprintf("has %d numbers, not 3: of labels, experts and sessions", len(c.RouterAffinityWeights)))
	}
	for _, v := range c.RouterAffinityWeights {
		p.checkWeight("router-affinity-weights", v)
	}
	p.requireOneOf("router-session-affinity", c.RouterSessionAffinity, string(route.Soft), string(route.Hard), string(route.Unbound))
	p.requirePositive("router-session-ttl", c.RouterSessionTTL)
	if _, err := c.parseQueueThreshold(); err != nil {
		p.report("router-queue-threshold", err.Error())
	}
	p.requireOneOf("router-queue-policy", c.RouterQueuePolicy, string(queue.FCFS), string(queue.WSPT))
	p.requireBetween("router-queue-depth", int64(c.RouterQueueDepth), 1, 1<<20)
	p.requirePositive("router-queue-patience", c.RouterQueuePatience)
}

func (p *problems) checkShare(key string, v float64) {
	if !(v >= 0 && v <= 1) {
		p.report(key, fmt.Sprintf("%v is not a share between 0 and 1", v))
	}
}
