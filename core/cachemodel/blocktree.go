package cachemodel

import (
	"fmt"

	"penstock/core/kv"
)

// allocateNode returns an unused node. If there is no room it evicts the least recently used idle block. It
// returns 0 if all blocks are in use.
func (b *PagedModel) allocateNode() int32 {
	if b.liveBlocks >= b.cfg.Capacity {
		if b.nodes[0].next == 0 {
			return 0
		}
		b.evictLeastRecentlyUsed()
	}
	if at := b.free; at != 0 {
		b.free = b.nodes[at].next
		return at
	}
	if len(b.nodes) == cap(b.nodes) {
		b.growNodes()
	}
	b.nodes = append(b.nodes, blockNode{})
	return int32(len(b.nodes) - 1)
}

// growNodes doubles the capacity of nodes, up to the engine's capacity: the smaller steps of append would
// copy, in the end, tens of megabytes four times as often.
func (b *PagedModel) growNodes() {
	room := min(max(64, 2*len(b.nodes)), max(b.cfg.Capacity, len(b.nodes))+1)
	nodes := make([]blockNode, len(b.nodes), room)
	copy(nodes, b.nodes)
	b.nodes = nodes
}

// attachNode makes a block the first child of parent, with one user.
func (b *PagedModel) attachNode(at, parent int32, block kv.BlockHash, index uint32) {
	n := &b.nodes[at]
	*n = blockNode{
		seq: kv.ExtendSeq(b.nodes[parent].seq, index, block), block: block, index: index, users: 1,
		parent: parent, nextSibling: b.nodes[parent].firstChild,
	}
	if n.nextSibling != 0 {
		b.nodes[n.nextSibling].prevSibling = at
		b.indexNode(n.nextSibling)
		b.indexNode(at)
	}
	if parent == 0 {
		b.indexNode(at)
	}
	b.nodes[parent].firstChild = at
	b.liveBlocks++
}

// indexNode adds a block to PagedModel.bySeq.
func (b *PagedModel) indexNode(at int32) {
	if n := &b.nodes[at]; !n.indexed {
		n.indexed = true
		b.bySeq[n.seq] = at
	}
}

// retainNode adds a user to a block. A block with users is not evicted.
func (b *PagedModel) retainNode(at int32) {
	n := &b.nodes[at]
	if n.users == 0 {
		b.nodes[n.prev].next, b.nodes[n.next].prev = n.next, n.prev
	}
	n.users++
}

// releaseNode removes a user from a block. A block without users becomes the most recently used idle block.
func (b *PagedModel) releaseNode(at int32) {
	n := &b.nodes[at]
	if n.users--; n.users > 0 {
		return
	}
	n.idleSince = b.clock
	last := b.nodes[0].prev
	n.prev, n.next = last, 0
	b.nodes[last].next, b.nodes[0].prev = at, at
}

// evictLeastRecentlyUsed evicts the least recently used idle block. It has no children: every user of a
// child used this block too, and released it later.
func (b *PagedModel) evictLeastRecentlyUsed() { b.removeNode(b.nodes[0].next) }

// removeNode removes an idle block without children.
func (b *PagedModel) removeNode(at int32) {
	n := &b.nodes[at]
	b.nodes[n.prev].next, b.nodes[n.next].prev = n.next, n.prev
	if n.prevSibling != 0 {
		b.nodes[n.prevSibling].nextSibling = n.nextSibling
	} else {
		b.nodes[n.parent].firstChild = n.nextSibling
	}
	if n.nextSibling != 0 {
		b.nodes[n.nextSibling].prevSibling = n.prevSibling
	}
	if n.indexed {
		delete(b.bySeq, n.seq)
	}
	b.removedSeqs = append(b.removedSeqs, n.seq)
	b.liveBlocks--
	*n = blockNode{next: b.free}
	b.free = at
}

// dropDescendants removes all blocks under a block which have no user and had none since a given clock,
// children before parents.
func (b *PagedModel) dropDescendants(under int32, since uint64) {
	n := b.nodes[under].firstChild
	for n != 0 {
		for b.nodes[n].firstChild != 0 {
			n = b.nodes[n].firstChild
		}
		for {
			parent, after := b.nodes[n].parent, b.nodes[n].nextSibling
			if b.nodes[n].users == 0 && b.nodes[n].idleSince < since {
				b.removeNode(n)
			}
			if after != 0 {
				n = after
				break
			}
			if n = parent; n == under {
				return
			}
		}
	}
}

// Check verifies the model's invariants. It walks everything.
func (b *PagedModel) Check() error {
	users := make([]int32, len(b.nodes))
	for i := range b.requests {
		q := &b.requests[i]
		if !q.open {
			continue
		}
		depth := 0
		for at := q.tip; at != 0; at = b.nodes[at].parent {
			users[at]++
			depth++
		}
		if depth != q.depth {
			return fmt.Errorf("cachemodel: request %d has %d blocks, and %d are counted", i, depth, q.depth)
		}
	}
	idle := make([]bool, len(b.nodes))
	for at, prev := b.nodes[0].next, int32(0); at != 0; prev, at = at, b.nodes[at].next {
		if idle[at] || b.nodes[at].prev != prev {
			return fmt.Errorf("cachemodel: the idle blocks are no list at %d", at)
		}
		if p := b.nodes[at].parent; idle[p] {
			return fmt.Errorf("cachemodel: block %d leaves after the one before it", at)
		}
		idle[at] = true
	}
	return b.checkNodes(users, idle)
}

// checkNodes checks each reachable block against its users.
func (b *PagedModel) checkNodes(users []int32, idle []bool) error {
	seen, named := 0, 0
	open := []int32{0} // blocks whose children are to be looked at
	for len(open) > 0 {
		under := open[len(open)-1]
		open = open[:len(open)-1]
		for at := b.nodes[under].firstChild; at != 0 && seen <= b.liveBlocks; at = b.nodes[at].nextSibling {
			seen++
			open = append(open, at)
			if b.nodes[at].indexed {
				named++
			}
			if err := b.checkNode(at, under, users[at], idle[at]); err != nil {
				return err
			}
		}
	}
	if seen != b.liveBlocks || named != len(b.bySeq) {
		return fmt.Errorf("cachemodel: %d blocks can be found, %d of them by name, and %d and %d are counted", seen, named, b.liveBlocks, len(b.bySeq))
	}
	return nil
}

// checkNode checks one child of under.
func (b *PagedModel) checkNode(at, under, users int32, idle bool) error {
	n, p := &b.nodes[at], &b.nodes[under]
	first := under == 0
	switch {
	case n.parent != under:
		return fmt.Errorf("cachemodel: block %d is among the children of %d, and comes after %d", at, under, n.parent)
	case n.users != users:
		return fmt.Errorf("cachemodel: block %d has %d users, and %d are counted", at, users, n.users)
	case idle != (n.users == 0):
		return fmt.Errorf("cachemodel: block %d has %d users and is idle: %v", at, n.users, idle)
	case first && n.index != 0 || !first && n.index != p.index+1:
		return fmt.Errorf("cachemodel: block %d has index %d after one of index %d", at, n.index, p.index)
	case n.seq != kv.ExtendSeq(p.seq, n.index, n.block):
		return fmt.Errorf("cachemodel: block %d has not the name of its place", at)
	case n.prevSibling == 0 && p.firstChild != at || n.prevSibling != 0 && b.nodes[n.prevSibling].nextSibling != at:
		return fmt.Errorf("cachemodel: block %d is not among the children of its parent", at)
	case n.indexed != (b.bySeq[n.seq] == at):
		return fmt.Errorf("cachemodel: block %d is named: %v, and found by its name: %v", at, n.indexed, b.bySeq[n.seq] == at)
	case !n.indexed && (first || n.prevSibling != 0 || n.nextSibling != 0):
		return fmt.Errorf("cachemodel: block %d has no name, and siblings", at)
	}
	return nil
}
