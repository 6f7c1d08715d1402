package engineevents

import (
	"cmp"
	"maps"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// maxResolvedBlocks bounds the blocks of all resolved prefixes. A block counts once for each of them.
const maxResolvedBlocks = 1 << 20

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
type inferredSet struct {
	bySeq map[kv.SeqHash]*inferredBlock
	// children holds the inferred blocks which follow a block.
	children map[kv.SeqHash][]*inferredBlock
	// named counts, for the blocks on the device which events announced, the engine hashes of each.
	named          map[kv.SeqHash]uint16
	resolved       map[kv.EngineHash]*resolvedPrefix
	resolvedBlocks int // blocks of all resolved prefixes
	// newest and oldest are the ends of the list of guesses.
	newest, oldest *inferredBlock
	guessCount     int
	aliasCount     uint64 // counts the aliases made so far
}

// inferredBlock is one inferred block.
type inferredBlock struct {
	blockEntry
	seq      kv.SeqHash
	lora     string // its adapter, "" for none
	lastUsed uint64 // the last time it was known to be there, as an arrival number
	prefixes int    // the number of resolved prefixes with this block
	isGuess  bool
	newer    *inferredBlock // neighbour in the list of guesses
	older    *inferredBlock
}

// resolvedPrefix is a block whose engine hash was resolved, and the blocks before it.
type resolvedPrefix struct {
	path []kv.SeqHash // Penstock blocks which end before it
	// aliases are made-up hashes for the engine blocks between the last of path and the block itself.
	aliases []kv.EngineHash
}

// recordStored records that an event stored a block, and reports whether the block was announced before.
func (n *inferredSet) recordStored(tier kv.Tier, seq kv.SeqHash) (told bool) {
	if tier != kv.TierDevice {
		return false
	}
	if n.named == nil {
		n.named = make(map[kv.SeqHash]uint16)
	}
	if n.named[seq]++; n.named[seq] > 1 {
		return true
	}
	at := n.bySeq[seq]
	if at == nil {
		return false
	}
	n.removeBlock(at)
	return true
}

// recordRemoved records that an event removed a block, and reports whether the block is gone. If so, the
// engine has no block which follows it.
func (n *inferredSet) recordRemoved(t *Table, tier kv.Tier, seq kv.SeqHash) (gone bool) {
	if tier != kv.TierDevice {
		return true
	}
	if n.named[seq] > 1 {
		n.named[seq]--
		return false
	}
	delete(n.named, seq)
	n.dropDescendantGuesses(t, seq)
	return true
}

// clear drops everything.
func (n *inferredSet) clear() { *n = inferredSet{aliasCount: n.aliasCount} }

// inferBlock adds the i-th block of p to one more resolved prefix, or makes it a guess which was used now.
// It announces the block if that is new.
func (n *inferredSet) inferBlock(t *Table, p *sentRequest, i int, guess bool) {
	b, seq := p.blockAt(i), p.chain[i]
	if _, named := n.named[seq]; named {
		return
	}
	at := n.bySeq[seq]
	if at == nil {
		if n.bySeq == nil {
			n.bySeq, n.children = make(map[kv.SeqHash]*inferredBlock), make(map[kv.SeqHash][]*inferredBlock)
		}
		at = &inferredBlock{blockEntry: b, seq: seq, lora: p.salt.LoRA}
		n.bySeq[seq] = at
		n.children[b.prefix] = append(n.children[b.prefix], at)
		t.emitStored(kv.TierDevice, &at.blockEntry, seq)
	}
	at.lastUsed = t.orphans.arrivals
	switch {
	case !guess:
		n.unlinkGuess(at)
		at.prefixes++
	case at.prefixes == 0:
		n.unlinkGuess(at)
		n.linkGuess(at)
	}
}

// removeBlock removes a block without announcing it.
func (n *inferredSet) removeBlock(at *inferredBlock) {
	n.unlinkGuess(at)
	delete(n.bySeq, at.seq)
	others := slices.DeleteFunc(n.children[at.prefix], func(other *inferredBlock) bool { return other == at })
	if len(others) == 0 {
		delete(n.children, at.prefix)
		return
	}
	n.children[at.prefix] = others
}

// linkGuess makes a block the newest guess.
func (n *inferredSet) linkGuess(at *inferredBlock) {
	at.isGuess, at.newer, at.older = true, nil, n.newest
	if n.newest != nil {
		n.newest.newer = at
	} else {
		n.oldest = at
	}
	n.newest = at
	n.guessCount++
}

// unlinkGuess removes a block from the guesses.
func (n *inferredSet) unlinkGuess(at *inferredBlock) {
	if !at.isGuess {
		return
	}
	if at.newer != nil {
		at.newer.older = at.older
	} else {
		n.newest = at.older
	}
	if at.older != nil {
		at.older.newer = at.newer
	} else {
		n.oldest = at.newer
	}
	at.isGuess, at.newer, at.older = false, nil, nil
	n.guessCount--
}

// dropBlock drops a block, and the guesses which follow it.
func (n *inferredSet) dropBlock(t *Table, at *inferredBlock) {
	n.removeBlock(at)
	t.emitRemoved(kv.TierDevice, at.seq)
	n.dropDescendantGuesses(t, at.seq)
}

// dropDescendantGuesses drops the guesses which follow a removed block, in breadth-first order.
func (n *inferredSet) dropDescendantGuesses(t *Table, seq kv.SeqHash) {
	for gone := []kv.SeqHash{seq}; len(gone) > 0; gone = gone[1:] {
		for _, at := range slices.Clone(n.children[gone[0]]) {
			if at.isGuess {
				n.removeBlock(at)
				t.emitRemoved(kv.TierDevice, at.seq)
				gone = append(gone, at.seq)
			}
		}
	}
}

// dropGuesses drops the given blocks as far as they are guesses.
func (n *inferredSet) dropGuesses(t *Table, seqs []kv.SeqHash) {
	for _, seq := range seqs {
		if at := n.bySeq[seq]; at != nil && at.isGuess {
			n.dropBlock(t, at)
		}
	}
}

// guessPrefix guesses that the first blocks of p are cached. The first block is the last to be dropped.
func (n *inferredSet) guessPrefix(t *Table, p *sentRequest, blocks int) {
	for i := range blocks {
		n.inferBlock(t, p, i, true)
	}
	for i := blocks - 1; i >= 0; i-- {
		if at := n.bySeq[p.chain[i]]; at != nil && at.isGuess {
			n.unlinkGuess(at)
			n.linkGuess(at)
		}
	}
	for n.oldest != nil && len(n.bySeq)+len(n.named) > t.cfg.Capacity {
		n.dropBlock(t, n.oldest)
	}
}

// denyBlocks drops the blocks of p from one index to another which were inferred before p was sent: the
// engine did not find them. Resolved prefixes with such a block were wrong or are gone, so everything which
// follows them is dropped too.
func (n *inferredSet) denyBlocks(t *Table, p *sentRequest, from, to int) {
	for i := to - 1; i >= from; i-- {
		at := n.bySeq[p.chain[i]]
		if at == nil || at.lastUsed > p.sentArrival {
			continue
		}
		if at.prefixes > 0 {
			n.refuteBlock(t, at.seq)
		}
		if at = n.bySeq[p.chain[i]]; at != nil {
			n.dropBlock(t, at)
		}
	}
}

// refuteBlock drops the resolved prefixes which contain a block, and what was stored after them.
func (n *inferredSet) refuteBlock(t *Table, seq kv.SeqHash) {
	for _, name := range slices.Sorted(maps.Keys(n.resolved)) {
		s := n.resolved[name]
		if s != nil && slices.Contains(s.path, seq) {
			t.stats.Refuted++
			t.forgetDescendants(name)
			n.releasePrefix(t, name)
		}
	}
}

// newAlias returns an unused hash for an engine block whose own hash is unknown.
func (n *inferredSet) newAlias(t *Table) kv.EngineHash {
	for {
		n.aliasCount++
		name := kv.EngineHash(splitmix.Mix(t.cfg.Seed + n.aliasCount*splitmix.Step))
		if name != 0 && t.findBlock(name) == 0 {
			return name
		}
	}
}

// releasePrefix drops the resolved prefix of a block which is gone.
func (n *inferredSet) releasePrefix(t *Table, name kv.EngineHash) {
	s := n.resolved[name]
	if s == nil {
		return
	}
	delete(n.resolved, name)
	n.resolvedBlocks -= len(s.path)
	for _, alias := range s.aliases {
		t.pages.removeCopy(t, alias, kv.TierDevice)
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		at := n.bySeq[s.path[i]]
		if at == nil || at.prefixes == 0 {
			continue
		}
		if at.prefixes--; at.prefixes == 0 {
			n.dropBlock(t, at)
		}
	}
}

// inferredEmitter announces inferred blocks in order of depth.
type inferredEmitter struct {
	pending []*inferredBlock
	next    map[kv.SeqHash]*inferredBlock // one block which follows a block, so that a run is announced in one event
	emitted map[kv.SeqHash]bool
}

func (n *inferredSet) newEmitter() inferredEmitter {
	d := inferredEmitter{next: make(map[kv.SeqHash]*inferredBlock, len(n.bySeq)), emitted: make(map[kv.SeqHash]bool, len(n.bySeq))}
	d.pending = slices.SortedFunc(maps.Values(n.bySeq), func(a, b *inferredBlock) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(a.seq, b.seq))
	})
	for _, at := range d.pending {
		if d.next[at.prefix] == nil {
			d.next[at.prefix] = at
		}
	}
	return d
}

// emitUpTo announces the blocks up to a depth which are not announced yet.
func (d *inferredEmitter) emitUpTo(t *Table, depth uint32) {
	for ; len(d.pending) > 0 && d.pending[0].depth <= depth; d.pending = d.pending[1:] {
		for at := d.pending[0]; at != nil && !d.emitted[at.seq]; at = d.next[at.seq] {
			d.emitted[at.seq] = true
			t.emitStored(kv.TierDevice, &at.blockEntry, at.seq)
		}
	}
}
