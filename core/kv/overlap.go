package kv

// Tiers is the number of tiers.
const Tiers = 4

// Overlap is how much of a prompt one worker holds: the longest run of leading
// blocks of which every one is in its cache, divided by how fast they can be had.
type Overlap struct {
	Worker Worker
	// Blocks counts that run by tier, each tier going on where the faster ones
	// end: Blocks[TierDevice] leading blocks are on the device, Blocks[TierHost]
	// more are reached when host memory counts too, and so on. The sum is the
	// length of the run.
	Blocks [Tiers]int
	// Attachable counts, within the run that all tiers reach, the blocks that are in a
	// pool that the worker can attach; they are part of Blocks[TierPool] where no faster
	// tier of the worker itself has them.
	Attachable int
	// Labelled counts, within that run, the blocks whose label answers the MoEQuery of
	// the question; 0 without one.
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
