package route

import (
	"errors"

	"penstock/core/kv"
)

// FetchCosts are what it costs to bring a block to the device from where it is, in
// blocks of prefill: 0 is free like a block on the device, 1 as dear as computing it.
// What is fetched is reuse all the same: it is no work that waits for prefill.
type FetchCosts struct {
	Host, Disk, Pool float64
}

// DefaultFetchCosts returns the costs of a machine of the usual kind: host memory and
// pools are read at some tens of GB/s, disks at a few, and a block of 16 tokens of a model
// of 8 to 70 billion parameters is 2 to 5 MB of K and V and 1 to 5 ms of prefill. So
// reading takes a tenth of that time or less from memory, and a half of it from disk; the
// defaults are higher since fetching competes with what the device reads anyway. They are
// 1 less the weights that Dynamo gives to hits on host and disk (0.75 and 0.25).
func DefaultFetchCosts() FetchCosts { return FetchCosts{Host: 0.25, Disk: 0.75, Pool: 0.25} }

func (f *FetchCosts) validate() error {
	if within(f.Host, 1) && within(f.Disk, 1) && within(f.Pool, 1) {
		return nil
	}
	return errors.New("route: fetch costs must be between 0, free, and 1, as dear as computing the block")
}

// of returns the cost of fetching what of blocks is not on the device.
func (f *FetchCosts) of(blocks *[kv.Tiers]int) float64 {
	cost := float64(f.Host * float64(blocks[kv.TierHost]))
	cost += float64(f.Disk * float64(blocks[kv.TierDisk]))
	cost += float64(f.Pool * float64(blocks[kv.TierPool]))
	return cost
}

// AffinityWeights say how much preferences count, in units of cost. They are
// added to a score and to nothing else: no load ever has a part of them.
type AffinityWeights struct {
	// Label is for each block whose label answers the request's MoEQuery.
	Label float64
	// Experts is for each block of the prompt, if the worker hosts all the experts that
	// the MoEQuery expects, and as much less as it hosts fewer.
	Experts float64
	// Session is for each block of the prompt, if the request's session is at the worker.
	Session float64
}

// DefaultAffinityWeights returns 1 for a labelled block, as much as a cached one;
// 0.1 for experts, since an activation that goes to another worker and back costs a
// small part of computing it; and 1 for a session, as if all of the prompt were cached.
func DefaultAffinityWeights() AffinityWeights {
	return AffinityWeights{Label: 1, Experts: 0.1, Session: 1}
}

func (a *AffinityWeights) validate() error {
	if within(a.Label, maxWeight) && within(a.Experts, maxWeight) && within(a.Session, maxWeight) {
		return nil
	}
	return errors.New("route: weights of affinity must be between 0 and 1e+09")
}
