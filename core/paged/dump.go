package paged

import "penstock/core/kv"

// AppendDump appends events which describe the whole cache to dst: Cleared, then Stored events, parents
// first. It does not consume the events of AppendEvents: a caller which follows the cache from here on must
// take those first. The caller owns the events.
func (s *Scheduler) Dump(dst []kv.Event) []kv.Event {
	return s.pool.dump(append(dst, kv.Event{Kind: kv.Cleared}))
}

// appendDump describes the tree of registered blocks as runs. A run goes from a block down to a leaf by the
// first child; the other children start runs later.
func (p *pool) dump(dst []kv.Event) []kv.Event {
	t := p.tree()
	hashes := make([]kv.BlockHash, 0, len(p.index))
	for len(t.starts) > 0 {
		first := t.starts[len(t.starts)-1]
		t.starts = t.starts[:len(t.starts)-1]

		from := len(hashes)
		for b := first; b != none; b = t.child[b] {
			hashes = append(hashes, p.blocks[b].hash)
			if b != first {
				t.branch(t.sibling[b])
			}
		}
		e := kv.Event{Kind: kv.Stored, Start: p.blocks[first].index, Blocks: hashes[from:len(hashes):len(hashes)]}
		if parent := p.blocks[first].parent; parent != none {
			e.Parent = p.blocks[parent].seq
		}
		dst = append(dst, e)
	}
	return dst
}

// blockTree is the tree of registered blocks by physical block number; noBlock is no block.
type tree struct {
	child, sibling []int32
	starts         []int32 // of runs; their parents are described already
}

// buildTree links the registered blocks. Blocks without a parent are the first starts.
func (p *pool) tree() tree {
	n := len(p.blocks)
	links := make([]int32, 2*n)
	for i := range links {
		links[i] = none
	}
	t := tree{child: links[:n], sibling: links[n:]}
	for i := n - 1; i >= 0; i-- {
		blk := &p.blocks[i]
		switch {
		case blk.state != registered:
		case blk.parent == none:
			t.starts = append(t.starts, int32(i))
		default:
			t.sibling[i], t.child[blk.parent] = t.child[blk.parent], int32(i)
		}
	}
	return t
}

// addStarts adds b and its later siblings to the starts.
func (t *tree) branch(b int32) {
	for ; b != none; b = t.sibling[b] {
		t.starts = append(t.starts, b)
	}
}
