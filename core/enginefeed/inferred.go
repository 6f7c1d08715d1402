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

// maxStemBlocks bounds the blocks of all stems, each counted as often as it is in one.
const maxStemBlocks = 1 << 20

// inferred are blocks of ours that the engine has on the device by its account of requests, not by its events, which
// name them by hashes that are not known. They are of two kinds:
//
//   - blocks before one whose name was found (a stem). An engine evicts no block before those which follow it, so that they
//     are there as long as the block with the name is;
//   - guesses: the beginning of a prompt that was reported as cached, and blocks that wait as orphans. The least
//     recently used leave when the engine has no room for more, as do those which a later report denies.
//
// A block that an event stores under a name is none of them any more: its removal will come as an event too.
type inferred struct {
	nodes map[kv.SeqHash]*node
	// behind are those that follow a block.
	behind map[kv.SeqHash][]*node
	// named counts, of the blocks on the device that events told of, by how many names they did.
	named map[kv.SeqHash]uint16
	stems map[kv.EngineHash]*stem
	held  int // blocks of all stems
	// recent and oldest are the ends of the list of guesses.
	newest, oldest *node
	guesses        int
	aliases        uint64 // counts names that were made up
}

// node is one inferred block.
type node struct {
	block
	seq    kv.SeqHash
	lora   string // the adapter that it is of, "" if of none
	used   uint64 // when, in arrivals: it was there then
	stems  int    // that it is part of
	guess  bool
	newer  *node // of guesses
	before *node
}

// stem is a block whose name was found, and what is before it.
type stem struct {
	path []kv.SeqHash // blocks of ours that end before it
	// aliases are the engine's blocks between the last of path and the block itself, by made-up names.
	aliases []kv.EngineHash
}

// taken notes that an event stored a block of ours, and reports whether it was told of before.
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

// left notes that an event removed a block of ours, and reports whether it is gone: then the engine has none of what follows it.
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

// clear forgets all of it.
func (n *inferred) clear() { *n = inferred{aliases: n.aliases} }

// hold has the i-th block of ours of p be part of a further stem, or a guess that was used now; it is told of if it was not.
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

// forget takes a node out and tells nobody.
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

// link makes a node the newest guess.
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

// unlink makes a node no guess.
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

// drop forgets a node, and the guesses behind it.
func (n *inferred) drop(t *Table, at *node) {
	n.forget(at)
	t.tellRemoved(kv.TierDevice, at.seq)
	n.dropBehind(t, at.seq)
}

// dropBehind forgets the guesses behind a block that is gone, those at the end last.
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

// dropGuesses forgets those of blocks which are guesses.
func (n *inferred) dropGuesses(t *Table, seqs []kv.SeqHash) {
	for _, seq := range seqs {
		if at := n.nodes[seq]; at != nil && at.guess {
			n.drop(t, at)
		}
	}
}

// guess believes the first blocks of ours of p to be there. The first one is the last to be given up.
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

// deny forgets the blocks of p from one up to another that were inferred before it was sent: the engine did not find them. The
// stems that have such a block were wrong or are gone, so that all behind them is forgotten too.
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

// refute forgets the stems that have a block, and what was stored behind them.
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

// alias returns a name for a block of the engine whose own is not known.
func (n *inferred) alias(t *Table) kv.EngineHash {
	for {
		n.aliases++
		name := kv.EngineHash(splitmix.Mix(t.cfg.Seed + n.aliases*splitmix.Step))
		if name != 0 && t.find(name) == 0 {
			return name
		}
	}
}

// release forgets what is before a block whose name was found, as that block is gone.
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

// description tells of inferred blocks, those at the beginning of sequences first.
type description struct {
	nodes []*node
	next  map[kv.SeqHash]*node // one that follows a block, so that runs are told of at once
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

// tell tells of those that are not told of, up to a place in their sequences.
func (d *description) tell(t *Table, depth uint32) {
	for ; len(d.nodes) > 0 && d.nodes[0].depth <= depth; d.nodes = d.nodes[1:] {
		for at := d.nodes[0]; at != nil && !d.told[at.seq]; at = d.next[at.seq] {
			d.told[at.seq] = true
			t.tellStored(kv.TierDevice, &at.block, at.seq)
		}
	}
}

// check returns what is wrong.
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
