package engineevents

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock/core/kv"
)

// check verifies that both maps agree with each other and with the table.
func (r *adapterRoots) check(t *Table) error {
	for name, at := range r.byHash {
		if t.findBlock(name) == 0 || r.hashes[at.key] != name {
			return fmt.Errorf("block %x begins a sequence of adapter %q, and is not known", name, at.key.salt.LoRA)
		}
	}
	if len(r.byHash) != len(r.hashes) {
		return fmt.Errorf("%d blocks begin %d sequences of adapters", len(r.byHash), len(r.hashes))
	}
	return nil
}

// check verifies the counters and the list of guesses.
func (n *inferredSet) check() error {
	var errs []error
	stems := make(map[kv.SeqHash]int)
	held := 0
	for _, name := range slices.Sorted(maps.Keys(n.resolved)) {
		held += len(n.resolved[name].path)
		for _, seq := range n.resolved[name].path {
			stems[seq]++
		}
	}
	guesses := 0
	for at := n.oldest; at != nil; at = at.newer {
		guesses++
		if !at.isGuess || n.bySeq[at.seq] != at {
			errs = append(errs, fmt.Errorf("block %x is listed as a guess", at.seq))
		}
	}
	for seq, at := range n.bySeq {
		if _, named := n.named[seq]; named {
			errs = append(errs, fmt.Errorf("block %x is inferred and told of by events", seq))
		}
		if at.isGuess == (at.prefixes > 0) || at.prefixes > stems[seq] {
			errs = append(errs, fmt.Errorf("block %x is in %d stems of %d, a guess: %v", seq, at.prefixes, stems[seq], at.isGuess))
		}
	}
	if guesses != n.guessCount || held != n.resolvedBlocks {
		errs = append(errs, fmt.Errorf("%d guesses and %d blocks of stems, counted are %d and %d", guesses, held, n.guessCount, n.resolvedBlocks))
	}
	return errors.Join(errs...)
}

// check verifies the maps and the counters.
func (o *orphanSet) check() error {
	runs, tokens, blocks := 0, 0, 0
	for r := o.oldest; r != nil; r = r.newer {
		runs, tokens, blocks = runs+1, tokens+len(r.event.Tokens), blocks+r.liveBlocks
		if len(r.event.Hashes) == 0 || !slices.Contains(o.byParent[r.event.Parent], r) {
			return fmt.Errorf("a run of %d blocks is not found by its parent", len(r.event.Hashes))
		}
		for i, name := range r.event.Hashes[:r.liveBlocks] {
			if o.byHash[name] != (runPosition{r, i}) {
				return fmt.Errorf("orphan %x is not found", name)
			}
		}
	}
	if runs != o.runCount || tokens != o.tokenCount || blocks != len(o.byHash) {
		return fmt.Errorf("%d runs of %d blocks and %d tokens wait, counted are %d, %d and %d", runs, blocks, tokens, o.runCount, len(o.byHash), o.tokenCount)
	}
	return nil
}
