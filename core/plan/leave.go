package plan

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// LeaveCandidate is a worker of a role which could leave the fleet.
type LeaveCandidate struct {
	Worker kv.WorkerID
	// Serving is false of a worker which does not serve yet, or no longer.
	Serving bool
	// Running counts its requests, and CachedBlocks the blocks in its cache.
	Running, CachedBlocks int
}

// OrderLeaving sorts the workers of a role by what is lost when they leave, the least first: workers which do not
// serve, then by the sum of a worker's share of the role's running requests and its share of the role's cached blocks.
// Of equal ones the worker with the higher id comes first.
func OrderLeaving(all []LeaveCandidate) {
	running, cached := 0, 0
	for _, w := range all {
		running, cached = running+w.Running, cached+w.CachedBlocks
	}
	loss := func(w LeaveCandidate) float64 {
		return float64(w.Running)/float64(max(running, 1)) + float64(w.CachedBlocks)/float64(max(cached, 1))
	}
	slices.SortFunc(all, func(a, b LeaveCandidate) int {
		switch {
		case a.Serving != b.Serving && !a.Serving:
			return -1
		case a.Serving != b.Serving:
			return 1
		}
		return cmp.Or(cmp.Compare(loss(a), loss(b)), cmp.Compare(b.Worker, a.Worker))
	})
}
