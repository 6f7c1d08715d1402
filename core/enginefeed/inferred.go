package enginefeed

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// maxResolvedBlocks bounds the blocks of all resolved prefixes. A block counts once for each of them.
const maxStemBlocks = 1 << 20

// inferredSet holds the Penstock blocks which are on the engine's device according to requests, not to
// events: the events name them by unknown hashes. There are two kinds:
//
//   - blocks before a block whose hash was resolved (a resolved prefix). An engine evicts no block before
//     the blocks which follow it, so they are there as long as the resolved block is;
//   - guesses: the start of a prompt which the engine reported as cached, and blocks which wait as
//     orphans. The least recently used guesses are dropped when the engine has no room for more. So are
//     guesses which a later report denies.
//
// A block which an event stores under a hash is removed from the set: its removal will be an event too.
type inferred struct {
	nodes map[kv.SeqHash]*node
	// children holds the inferred blocks which follow a block.
	behind map[kv.SeqHash][]*node
	// named counts, for the blocks on the device which events announced, the engine hashes of each.
	named map[kv.SeqHash]uint16
	stems map[kv.EngineHash]*stem
	held  int // blocks of all resolved prefixes
	// newest and oldest are the ends of the list of guesses.
	newest, oldest *node
	guesses        int
	aliases        uint64 // counts the aliases made so far
}

// inferredBlock is one inferred block.
type node struct {
	block
	seq    kv.SeqHash
	lora   string // its adapter, "" for none
	used   uint64 // the last time it was known to be there, as an arrival number
	stems  int    // the number of resolved prefixes with this block
	guess  bool
	newer  *node // neighbour in the list of guesses
	before *node
}

// resolvedPrefix is a block whose engine hash was resolved, and the blocks before it.
type stem struct {
	path []kv.SeqHash // Penstock blocks which end before it
	// aliases are made-up hashes for the engine blocks between the last of path and the block itself.
	aliases []kv.EngineHash
}

// recordStored records that an event stored a block, and reports whether the block was announced before.
func (n *inferred) taken(tier kv.Tier, seq kv.SeqHash) (told bool) {
	if tier != kv.TierDevice {
		return false
	}
	if n.named == nil {
		n.named = make(map[kv.SeqHash]uint16)
	}
	if n.named[seq]++; n.named[seq] > 1 {
		return true
	}
	at := n.nodes[seq]
	if at == nil {
		return false
	}
	n.forget(at)
	return true
}

// recordRemoved records that an event removed a block, and reports whether the block is gone. If so, the
// engine has no block which follows it.
func (n *inferred) left(t *Table, tier kv.Tier, seq kv.SeqHash) (gone bool) {
	if tier != kv.TierDevice {
		return true
	}
	if n.named[seq] > 1 {
		n.named[seq]--
		return false
	}
	delete(n.named, seq)
	n.dropBehind(t, seq)
	return true
}

// clear drops everything.
func (n *inferred) clear() { *n = inferred{aliases: n.aliases} }

// inferBlock adds the i-th block of p to one more resolved prefix, or makes it a guess which was used now.
// It announces the block if that is new.
func (n *inferred) hold(t *Table, p *sent, i int, guess bool) {
	b, seq := p.block(i), p.chain[i]
	if _, named := n.named[seq]; named {
		return
	}
	at := n.nodes[seq]
	if at == nil {
		if n.nodes == nil {
			n.nodes, n.behind = make(map[kv.SeqHash]*node), make(map[kv.SeqHash][]*node)
		}
		at = &node{block: b, seq: seq, lora: p.salt.LoRA}
		n.nodes[seq] = at
		n.behind[b.prev] = append(n.behind[b.prev], at)
		t.tellStored(kv.TierDevice, &at.block, seq)
	}
	at.used = t.orphans.arrivals
	switch {
	case !guess:
		n.unlink(at)
		at.stems++
	case at.stems == 0:
		n.unlink(at)
		n.link(at)
	}
}

// removeBlock removes a block without announcing it.
func (n *inferred) forget(at *node) {
	n.unlink(at)
	delete(n.nodes, at.seq)
	others := slices.DeleteFunc(n.behind[at.prev], func(other *node) bool { return other == at })
	if len(others) == 0 {
		delete(n.behind, at.prev)
		return
	}
	n.behind[at.prev] = others
}

// linkGuess makes a block the newest guess.
func (n *inferred) link(at *node) {
	at.guess, at.newer, at.before = true, nil, n.newest
	if n.newest != nil {
		n.newest.newer = at
	} else {
		n.oldest = at
	}
	n.newest = at
	n.guesses++
}

// unlinkGuess removes a block from the guesses.
func (n *inferred) unlink(at *node) {
	if !at.guess {
		return
	}
	if at.newer != nil {
		at.newer.before = at.before
	} else {
		n.newest = at.before
	}
	if at.before != nil {
		at.before.newer = at.newer
	} else {
		n.oldest = at.newer
	}
	at.guess, at.newer, at.before = false, nil, nil
	n.guesses--
}

// dropBlock drops a block, and the guesses which follow it.
func (n *inferred) drop(t *Table, at *node) {
	n.forget(at)
	t.tellRemoved(kv.TierDevice, at.seq)
	n.dropBehind(t, at.seq)
}

// dropDescendantGuesses drops the guesses which follow a removed block, in breadth-first order.
func (n *inferred) dropBehind(t *Table, seq kv.SeqHash) {
	for gone := []kv.SeqHash{seq}; len(gone) > 0; gone = gone[1:] {
		for _, at := range slices.Clone(n.behind[gone[0]]) {
			if at.guess {
				n.forget(at)
				t.tellRemoved(kv.TierDevice, at.seq)
				gone = append(gone, at.seq)
			}
		}
	}
}

// dropGuesses drops the given blocks as far as they are guesses.
func (n *inferred) dropGuesses(t *Table, seqs []kv.SeqHash) {
	for _, seq := range seqs {
		if at := n.nodes[seq]; at != nil && at.guess {
			n.drop(t, at)
		}
	}
}

// guessPrefix guesses that the first blocks of p are cached. The first block is the last to be dropped.
func (n *inferred) guess(t *Table, p *sent, blocks int) {
	for i := range blocks {
		n.hold(t, p, i, true)
	}
	for i := blocks - 1; i >= 0; i-- {
		if at := n.nodes[p.chain[i]]; at != nil && at.guess {
			n.unlink(at)
			n.link(at)
		}
	}
	for n.oldest != nil && len(n.nodes)+len(n.named) > t.cfg.Capacity {
		n.drop(t, n.oldest)
	}
}

// denyBlocks drops the blocks of p from one index to another which were inferred before p was sent: the
// engine did not find them. Resolved prefixes with such a block were wrong or are gone, so everything which
// follows them is dropped too.
func (n *inferred) deny(t *Table, p *sent, from, to int) {
	for i := to - 1; i >= from; i-- {
		at := n.nodes[p.chain[i]]
		if at == nil || at.used > p.began {
			continue
		}
		if at.stems > 0 {
			n.refute(t, at.seq)
		}
		if at = n.nodes[p.chain[i]]; at != nil {
			n.drop(t, at)
		}
	}
}

// refuteBlock drops the resolved prefixes which contain a block, and what was stored after them.
func (n *inferred) refute(t *Table, seq kv.SeqHash) {
	for _, name := range slices.Sorted(maps.Keys(n.stems)) {
		s := n.stems[name]
		if s != nil && slices.Contains(s.path, seq) {
			t.stats.Refuted++
			t.forgetBehind(name)
			n.release(t, name)
		}
	}
}

// newAlias returns an unused hash for an engine block whose own hash is unknown.
func (n *inferred) alias(t *Table) kv.EngineHash {
	for {
		n.aliases++
		name := kv.EngineHash(splitmix.Mix(t.cfg.Seed + n.aliases*splitmix.Step))
		if name != 0 && t.find(name) == 0 {
			return name
		}
	}
}

// releasePrefix drops the resolved prefix of a block which is gone.
func (n *inferred) release(t *Table, name kv.EngineHash) {
	s := n.stems[name]
	if s == nil {
		return
	}
	delete(n.stems, name)
	n.held -= len(s.path)
	for _, alias := range s.aliases {
		t.pieces.remove(t, alias, kv.TierDevice)
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		at := n.nodes[s.path[i]]
		if at == nil || at.stems == 0 {
			continue
		}
		if at.stems--; at.stems == 0 {
			n.drop(t, at)
		}
	}
}

// inferredEmitter announces inferred blocks in order of depth.
type description struct {
	nodes []*node
	next  map[kv.SeqHash]*node // one block which follows a block, so that a run is announced in one event
	told  map[kv.SeqHash]bool
}

func (n *inferred) description() description {
	d := description{next: make(map[kv.SeqHash]*node, len(n.nodes)), told: make(map[kv.SeqHash]bool, len(n.nodes))}
	d.nodes = slices.SortedFunc(maps.Values(n.nodes), func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(a.seq, b.seq))
	})
	for _, at := range d.nodes {
		if d.next[at.prev] == nil {
			d.next[at.prev] = at
		}
	}
	return d
}

// emitUpTo announces the blocks up to a depth which are not announced yet.
func (d *description) tell(t *Table, depth uint32) {
	for ; len(d.nodes) > 0 && d.nodes[0].depth <= depth; d.nodes = d.nodes[1:] {
		for at := d.nodes[0]; at != nil && !d.told[at.seq]; at = d.next[at.seq] {
			d.told[at.seq] = true
			t.tellStored(kv.TierDevice, &at.block, at.seq)
		}
	}
}

// check verifies the counters and the list of guesses.
func (n *inferred) check() error {
	var errs []error
	stems := make(map[kv.SeqHash]int)
	held := 0
	for _, name := range slices.Sorted(maps.Keys(n.stems)) {
		held += len(n.stems[name].path)
		for _, seq := range n.stems[name].path {
			stems[seq]++
		}
	}
	guesses := 0
	for at := n.oldest; at != nil; at = at.newer {
		guesses++
		if !at.guess || n.nodes[at.seq] != at {
			errs = append(errs, fmt.Errorf("block %x is listed as a guess", at.seq))
		}
	}
	for seq, at := range n.nodes {
		if _, named := n.named[seq]; named {
			errs = append(errs, fmt.Errorf("block %x is inferred and told of by events", seq))
		}
		if at.guess == (at.stems > 0) || at.stems > stems[seq] {
			errs = append(errs, fmt.Errorf("block %x is in %d stems of %d, a guess: %v", seq, at.stems, stems[seq], at.guess))
		}
	}
	if guesses != n.guesses || held != n.held {
		errs = append(errs, fmt.Errorf("%d guesses and %d blocks of stems, counted are %d and %d", guesses, held, n.guesses, n.held))
	}
	return errors.Join(errs...)
}
