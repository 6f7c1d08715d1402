package sim

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Pool is memory that simulated workers share, such as CXL. It holds block hashes only. It is not safe for
// concurrent use, and has no clock, so that both engines in real time and a cluster in virtual time can use
// it.
//
// A member offers the blocks that it has stored; blocks that are neither in the pool nor being copied are
// copied until FinishCopies. The least recently used blocks are evicted. The eviction of a block is reported
// to the member that put it there, so that all events of a block are in one feed. When that member is removed
// another member takes over its blocks and reports them in its own feed.
type Pool struct {
	id       kv.PoolID
	capacity int // capacity in blocks
	blocks   map[kv.SeqHash]*pooledBlock
	oldest   *pooledBlock // the ends of the LRU list
	newest   *pooledBlock
	used     int // length of the LRU list
	members  []*PoolMember
	joined   int // number of AddMember calls
}

// pooledBlock is a block in a Pool or being copied there.
type pooledBlock struct {
	seq        kv.SeqHash
	parent     kv.SeqHash
	block      kv.BlockHash
	index      uint32
	owner      *PoolMember // nil while there is no member
	inPool     bool
	prev, next *pooledBlock // LRU list, if inPool
}

// NewPool returns an empty pool with a capacity in blocks.
func NewPool(id kv.PoolID, room int) (*Pool, error) {
	if room < 1 {
		return nil, fmt.Errorf("sim: a pool with room for %d blocks; it must be at least 1", room)
	}
	return &Pool{id: id, capacity: room, blocks: map[kv.SeqHash]*pooledBlock{}}, nil
}

// Len returns the number of blocks in the pool.
func (p *Pool) Len() int { return p.used }

// PoolMember is a worker that is attached to a Pool.
type PoolMember struct {
	pool          *Pool
	worker        kv.Worker
	reportedJoins int // value of Pool.joined that its feed reported
	adopted       []kv.SeqHash
	evicted       []kv.SeqHash
}

// AddMember makes a worker a member. If it is the only one, it owns all blocks of the pool.
func (p *Pool) AddMember(w kv.Worker) *PoolMember {
	m := &PoolMember{pool: p, worker: w}
	p.members = append(p.members, m)
	p.joined++
	m.adoptBlocks(nil)
	return m
}

// adoptBlocks makes m the owner of the blocks of a removed member.
func (m *PoolMember) adoptBlocks(of *PoolMember) {
	for b := m.pool.newest; b != nil; b = b.prev { // parents first
		if b.owner == of {
			b.owner = m
			m.adopted = append(m.adopted, b.seq)
		}
	}
}

// Detach removes a member whose worker died. Its unfinished copies are lost. Its blocks stay in the pool, and
// another member reports its pending events.
func (m *PoolMember) Detach() {
	p := m.pool
	p.members = slices.DeleteFunc(p.members, func(o *PoolMember) bool { return o == m })
	for seq, b := range p.blocks { // in any order
		switch {
		case b.owner != m:
		case !b.inPool:
			delete(p.blocks, seq)
		case len(p.members) == 0:
			b.owner = nil
		}
	}
	if len(p.members) > 0 {
		heir := p.members[0]
		heir.adoptBlocks(m)
		heir.evicted = append(heir.evicted, m.evicted...)
	}
}

// Has reports whether a block is in the pool, and counts as a use of it. It implements paged.Elsewhere.
func (m *PoolMember) Has(seq kv.SeqHash) bool {
	b := m.pool.blocks[seq]
	if b == nil || !b.inPool {
		return false
	}
	m.pool.unlinkBlock(b)
	m.pool.linkBlock(b)
	return true
}

// StartCopies takes the events of the member's cache, starts to copy the stored blocks that the pool lacks,
// and returns them for FinishCopies.
func (m *PoolMember) StartCopies(events []kv.Event) (copied []kv.SeqHash) {
	for i := range events {
		ev := &events[i]
		if ev.Kind != kv.Stored {
			continue
		}
		parent := ev.Parent
		for j, block := range ev.Blocks {
			index := ev.Start + uint32(j)
			seq := kv.ExtendSeq(parent, index, block)
			if m.pool.blocks[seq] == nil {
				m.pool.blocks[seq] = &pooledBlock{seq: seq, parent: parent, block: block, index: index, owner: m}
				copied = append(copied, seq)
			}
			parent = seq
		}
	}
	return copied
}

// FinishCopies adds copied blocks to the pool.
func (m *PoolMember) FinishCopies(copied []kv.SeqHash) {
	p := m.pool
	for _, seq := range copied {
		b := p.blocks[seq]
		if b == nil || b.owner != m || b.inPool {
			continue
		}
		b.inPool = true
		p.linkBlock(b)
	}
	for p.used > p.capacity {
		b := p.oldest
		p.unlinkBlock(b)
		delete(p.blocks, b.seq)
		b.owner.evicted = append(b.owner.evicted, b.seq)
	}
}

// AppendMoved appends to dst the event that blocks changed their state, if there are any; it lists the
// attached workers if the member's feed does not know them yet.
func (m *PoolMember) AppendMoved(dst []kv.Event, to kv.PoolState, seqs []kv.SeqHash) []kv.Event {
	if len(seqs) == 0 {
		return dst
	}
	return m.appendMove(dst, to, seqs)
}

func (m *PoolMember) appendMove(dst []kv.Event, to kv.PoolState, seqs []kv.SeqHash) []kv.Event {
	ev := kv.Event{Kind: kv.Moved, Seqs: seqs, Move: kv.PoolMove{To: to, Pool: m.pool.id, HasPool: true}}
	if m.reportedJoins != m.pool.joined {
		m.reportedJoins = m.pool.joined
		ev.Move.Access = m.pool.memberWorkers()
	}
	return append(dst, ev)
}

// AppendPending appends to dst the pending events that the member's own actions did not cause: blocks that it
// took over, and evictions from the pool.
func (m *PoolMember) AppendPending(dst []kv.Event) []kv.Event {
	dst = m.appendEvicted(dst)
	dst = m.appendPooled(dst, func(b *pooledBlock) bool { return slices.Contains(m.adopted, b.seq) })
	m.adopted = nil
	return dst
}

// HasPending reports whether AppendPending has events.
func (m *PoolMember) HasPending() bool { return len(m.adopted)+len(m.evicted) > 0 }

// AppendContents appends to dst the events after a description of the member's cache: that all blocks which
// the member put into the pool are gone from there (if it is the only member, all blocks), and then its own
// blocks which are there.
func (m *PoolMember) AppendContents(dst []kv.Event) []kv.Event {
	m.reportedJoins = 0
	to := kv.LocalGPU
	if len(m.pool.members) == 1 {
		to = kv.Evicted
	}
	dst = m.appendMove(dst, to, nil)
	dst = m.appendEvicted(dst) // some were reported by members since removed
	dst = m.appendPooled(dst, func(*pooledBlock) bool { return true })
	m.adopted = nil
	return dst
}

// appendEvicted appends to dst the evictions of blocks that are not in the pool again.
func (m *PoolMember) appendEvicted(dst []kv.Event) []kv.Event {
	var seqs []kv.SeqHash
	for _, seq := range m.evicted {
		if b := m.pool.blocks[seq]; b == nil || !b.inPool {
			seqs = append(seqs, seq)
		}
	}
	m.evicted = nil
	return m.AppendMoved(dst, kv.Evicted, seqs)
}

// appendPooled appends to dst the event that blocks of the member are in the pool. It first reports them as
// stored in the pool and afterwards as removed, so that receivers learn their prefixes even if the member's
// cache does not have them.
func (m *PoolMember) appendPooled(dst []kv.Event, which func(*pooledBlock) bool) []kv.Event {
	var seqs []kv.SeqHash
	for b := m.pool.newest; b != nil; b = b.prev { // parents first
		if b.owner == m && which(b) {
			dst = append(dst, kv.Event{Kind: kv.Stored, Tier: kv.TierPool, Start: b.index, Parent: b.parent, Blocks: []kv.BlockHash{b.block}})
			seqs = append(seqs, b.seq)
		}
	}
	dst = m.AppendMoved(dst, kv.Pooled, seqs)
	if len(seqs) > 0 {
		dst = append(dst, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: seqs})
	}
	return dst
}

// memberWorkers lists the workers of the members.
func (p *Pool) memberWorkers() []kv.Worker {
	all := make([]kv.Worker, len(p.members))
	for i, m := range p.members {
		all[i] = m.worker
	}
	slices.SortFunc(all, kv.Worker.Compare)
	return slices.Compact(all)
}

// linkBlock inserts b as the most recently used block, but never as newer than its parent, so that it is
// evicted before its parent.
func (p *Pool) linkBlock(b *pooledBlock) {
	var after *pooledBlock // the next newer one
	if b.index > 0 {
		if parent := p.blocks[b.parent]; parent != nil && parent.inPool {
			after = parent
		}
	}
	b.next = after
	if after == nil {
		b.prev, p.newest = p.newest, b
	} else {
		b.prev, after.prev = after.prev, b
	}
	if b.prev == nil {
		p.oldest = b
	} else {
		b.prev.next = b
	}
	p.used++
}

func (p *Pool) unlinkBlock(b *pooledBlock) {
	if b.prev == nil {
		p.oldest = b.next
	} else {
		b.prev.next = b.next
	}
	if b.next == nil {
		p.newest = b.prev
	} else {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
	p.used--
}
