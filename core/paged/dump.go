package paged

import "penstock/core/kv"

// AppendDump appends events which describe the whole cache to dst: Cleared, then Stored events, parents
// first. It does not consume the events of AppendEvents: a caller which follows the cache from here on must
// take those first. The caller owns the events.
func (s *Scheduler) AppendDump(dst []kv.Event) []kv.Event {
	return s.pool.appendDump(append(dst, kv.Event{Kind: kv.Cleared}))
}

// appendDump describes the tree of registered blocks as runs. A run goes from a block down to a leaf by the
// first child; the other children start runs later.
func (p *blockPool) appendDump(dst []kv.Event) []kv.Event {
	t := p.buildTree()
	hashes := make([]kv.BlockHash, 0, len(p.index))
	for len(t.starts) > 0 {
		first := t.starts[len(t.starts)-1]
		t.starts = t.starts[:len(t.starts)-1]

		from := len(hashes)
		for b := first; b != noBlock; b = t.firstChild[b] {
			hashes = append(hashes, p.blocks[b].hash)
			if b != first {
				t.addStarts(t.sibling[b])
			}
		}
		e := kv.Event{Kind: kv.Stored, Start: p.blocks[first].index, Blocks: hashes[from:len(hashes):len(hashes)]}
		if parent := p.blocks[first].parent; parent != noBlock {
			e.Parent = p.blocks[parent].seq
		}
		dst = append(dst, e)
	}
	return dst
}

// blockTree is the tree of registered blocks by physical block number; noBlock is no block.
type blockTree struct {
	firstChild, sibling []int32
	starts              []int32 // of runs; their parents are described already
}

// buildTree links the registered blocks. Blocks without a parent are the first starts.
func (p *blockPool) buildTree() blockTree {
	n := len(p.blocks)
	links := make([]int32, 2*n)
	for i := range links {
		links[i] = noBlock
	}
	t := blockTree{firstChild: links[:n], sibling: links[n:]}
	for i := n - 1; i >= 0; i-- {
		blk := &p.blocks[i]
		switch {
		case blk.state != stateRegistered:
		case blk.parent == noBlock:
			t.starts = append(t.starts, int32(i))
		default:
			t.sibling[i], t.firstChild[blk.parent] = t.firstChild[blk.parent], int32(i)
		}
	}
	return t
}

// addStarts adds b and its later siblings to the starts.
func (t *blockTree) addStarts(b int32) {
	for ; b != noBlock; b = t.sibling[b] {
		t.starts = append(t.starts, b)
	}
}
