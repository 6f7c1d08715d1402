package prefix

import "fmt"

// Check reports the first violated invariant: both sides of the index hold the
// same facts, holders ascend and are never empty, no worker exceeds its bound,
// and dense numbers are in use or vacant, never both.
func (x *Index) Check() error {
	if got, want := len(x.dense)+len(x.vacant), len(x.workers); got != want {
		return fmt.Errorf("prefix: check: %d numbers in use or vacant of %d", got, want)
	}
	for w, n := range x.dense {
		if x.workers[n].id != w || x.workers[n].held == nil {
			return fmt.Errorf("prefix: check: worker %v has number %d, which is not its own", w, n)
		}
	}
	for _, n := range x.vacant {
		if x.workers[n].held != nil {
			return fmt.Errorf("prefix: check: vacant number %d is in use", n)
		}
	}
	fromBlocks := 0
	for seq, holders := range x.blocks {
		if len(holders) == 0 {
			return fmt.Errorf("prefix: check: block %x has no holder", uint64(seq))
		}
		for i, h := range holders {
			if i > 0 && holders[i-1].number() >= h.number() {
				return fmt.Errorf("prefix: check: holders of block %x do not ascend", uint64(seq))
			}
			if h.tiers() == 0 || x.workers[h.number()].held[seq] != h.tiers() {
				return fmt.Errorf("prefix: check: block %x and worker %v disagree on tiers", uint64(seq), x.workers[h.number()].id)
			}
		}
		fromBlocks += len(holders)
	}
	fromWorkers := 0
	for _, w := range x.workers {
		if len(w.held) > x.cfg.MaxBlocks {
			return fmt.Errorf("prefix: check: worker %v holds %d blocks, more than %d", w.id, len(w.held), x.cfg.MaxBlocks)
		}
		fromWorkers += len(w.held)
	}
	if fromBlocks != x.entries || fromWorkers != x.entries {
		return fmt.Errorf("prefix: check: %d entries by block, %d by worker, %d counted", fromBlocks, fromWorkers, x.entries)
	}
	return nil
}
