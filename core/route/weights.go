package route

import (
	"errors"

	"penstock/core/kv"
)

// FetchCosts are the costs of bringing a block to the device from another tier, in blocks of prefill: 0 is
// free like a block on the device, 1 as dear as computing it. A fetched block is still reuse: it is not
// prefill work.
type FetchCosts struct {
	Host, Disk, Pool float64
}

// DefaultFetchCosts returns the costs of a typical machine: host memory and pools are read at some tens of
// GB/s, disks at a few; a block of 16 tokens of a model of 8 to 70 billion parameters is 2 to 5 MB of K and V
// and 1 to 5 ms of prefill. So reading takes at most a tenth of that time from memory, and half of it from
// disk. The defaults are higher since fetching competes with the reads of the device. They are 1 less the
// weights which Dynamo gives to hits on host and disk (0.75 and 0.25).
func DefaultFetchCosts() FetchCosts { return FetchCosts{Host: 0.25, Disk: 0.75, Pool: 0.25} }

func (f *FetchCosts) validate() error {
	if isInRange(f.Host, 1) && isInRange(f.Disk, 1) && isInRange(f.Pool, 1) {
		return nil
	}
	return errors.New("route: fetch costs must be between 0, free, and 1, as dear as computing the block")
}

// costOf returns the cost of fetching the blocks which are not on the device.
func (f *FetchCosts) costOf(blocks *[kv.Tiers]int) float64 {
	cost := float64(f.Host * float64(blocks[kv.TierHost]))
	cost += float64(f.Disk * float64(blocks[kv.TierDisk]))
	cost += float64(f.Pool * float64(blocks[kv.TierPool]))
	return cost
}

// AffinityWeights say how much preferences count, in units of cost. They change a score only, never a load.
type AffinityWeights struct {
	// Label is the preference for each block whose label matches the request's MoEQuery.
	Label float64
	// Experts is the preference for each block of the prompt if the worker hosts all the experts which the
	// MoEQuery expects, and proportionally less if it hosts fewer.
	Experts float64
	// Session is the preference for each block of the prompt if the request's session is bound to the worker.
	Session float64
	// Embedding is the preference for each ms which the worker does not spend on the encoding of media whose
	// embeddings it holds, relative to a ms of prefill.
	Embedding float64
}

// DefaultAffinityWeights returns 1 for a labelled block, as much as a cached one; 0.1 for experts, since
// sending an activation to another worker and back costs a small part of computing it; 1 for a session, as if
// all of the prompt were cached; and 1 for embeddings, as much as what is saved.
func DefaultAffinityWeights() AffinityWeights {
	return AffinityWeights{Label: 1, Experts: 0.1, Session: 1, Embedding: 1}
}

func (a *AffinityWeights) validate() error {
	if isInRange(a.Label, maxWeight) && isInRange(a.Experts, maxWeight) && isInRange(a.Session, maxWeight) && isInRange(a.Embedding, maxWeight) {
		return nil
	}
	return errors.New("route: weights of affinity must be between 0 and 1e+09")
}
