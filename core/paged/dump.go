package paged

import "penstock/core/kv"

// Dump appends to dst a description of the whole cache: Cleared, then Stored
// events, parents first. It leaves alone what Events will give; whoever is to
// follow from here on takes those away before. The events belong to the caller.
func (s *Scheduler) Dump(dst []kv.Event) []kv.Event {
	return s.pool.dump(append(dst, kv.Event{Kind: kv.Cleared}))
}

// dump describes the tree of registered blocks as runs: each goes from a block
// down to a leaf by the first child, and the other children begin runs later.
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

// tree is the tree of registered blocks by physical number, none for no block.
type tree struct {
	child, sibling []int32
	starts         []int32 // of runs; their parents are described already
}

// tree links the registered blocks. Blocks without parent are the first starts.
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

// branch adds b and its later siblings to the starts.
func (t *tree) branch(b int32) {
	for ; b != none; b = t.sibling[b] {
		t.starts = append(t.starts, b)
	}
}
