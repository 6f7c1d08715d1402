package kv

// Tiers is the number of tiers.
const Tiers = 4

// Overlap is how much of a prompt one worker holds: the longest run of leading blocks in its cache, by tier.
type Overlap struct {
	Worker Worker
	// Blocks counts that run by tier; each tier continues where the faster ones end: Blocks[TierDevice]
	// leading blocks are on the device, Blocks[TierHost] more are reached when host memory counts too, and so
	// on. The sum is the length of the run.
	Blocks [Tiers]int
	// Attachable counts, within the run over all tiers, the blocks in a pool which the worker can attach;
	// they are part of Blocks[TierPool] where no faster tier of the worker itself has them.
	Attachable int
	// Labelled counts, within that run, the blocks whose label matches the request's MoEQuery; 0 without one.
	Labelled int
}

// Depth returns the length of the run over all tiers, in blocks.
func (o Overlap) Depth() int {
	depth := 0
	for _, n := range o.Blocks {
		depth += n
	}
	return depth
}
