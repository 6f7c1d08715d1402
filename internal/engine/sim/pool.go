package sim

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Pool is the memory that simulated workers share: CXL, as they would see it. It holds
// names of blocks; there are no K and V to hold. It is not safe for concurrent use, and
// has no time of its own, so that engines in real time and a cluster in virtual time ask
// the same one.
//
// A member offers the blocks that it has stored; those that are neither there nor on
// their way are copied, which ends when the member is told to end it. The blocks used least
// lately make room. The end of a block is told to the member that put it there: so the events of
// a block are in one feed. When that one leaves another member takes its blocks over and says
// that they are there, in its own feed.
type Pool struct {
	id      kv.PoolID
	room    int // in blocks
	blocks  map[kv.SeqHash]*pooledBlock
	oldest  *pooledBlock // the ends of the order of use
	newest  *pooledBlock
	held    int // in that order
	members []*PoolMember
	joined  int // how many times members joined
}

// pooledBlock is a block in a Pool or on its way there.
type pooledBlock struct {
	seq        kv.SeqHash
	parent     kv.SeqHash
	block      kv.BlockHash
	index      uint32
	owner      *PoolMember // nil while there is no member
	there      bool
	prev, next *pooledBlock // by use, if there
}

// NewPool returns an empty pool that has room for so many blocks.
func NewPool(id kv.PoolID, room int) (*Pool, error) {
	if room < 1 {
		return nil, fmt.Errorf("sim: a pool with room for %d blocks; it must be at least 1", room)
	}
	return &Pool{id: id, room: room, blocks: map[kv.SeqHash]*pooledBlock{}}, nil
}

// Len returns the number of blocks in the pool.
func (p *Pool) Len() int { return p.held }

// PoolMember is a worker that can attach a Pool.
type PoolMember struct {
	pool    *Pool
	worker  kv.Worker
	told    int // the membership that its feed knows
	adopted []kv.SeqHash
	evicted []kv.SeqHash
}

// Join makes a worker a member. If it is the only one, all that is there is its own.
func (p *Pool) Join(w kv.Worker) *PoolMember {
	m := &PoolMember{pool: p, worker: w}
	p.members = append(p.members, m)
	p.joined++
	m.adopt(nil)
	return m
}

// adopt makes m the owner of what is there of another member, which has left.
func (m *PoolMember) adopt(of *PoolMember) {
	for b := m.pool.newest; b != nil; b = b.prev { // parents first
		if b.owner == of {
			b.owner = m
			m.adopted = append(m.adopted, b.seq)
		}
	}
}

// Leave ends a membership: its worker died. What it was copying is lost, what it put
// into the pool stays, and what it had to tell another member does.
func (m *PoolMember) Leave() {
	p := m.pool
	p.members = slices.DeleteFunc(p.members, func(o *PoolMember) bool { return o == m })
	for seq, b := range p.blocks { // each is its own affair
		switch {
		case b.owner != m:
		case !b.there:
			delete(p.blocks, seq)
		case len(p.members) == 0:
			b.owner = nil
		}
	}
	if len(p.members) > 0 {
		heir := p.members[0]
		heir.adopt(m)
		heir.evicted = append(heir.evicted, m.evicted...)
	}
}

// Has reports whether a block is in the pool, and counts as a use of it. It implements
// the scheduler's Elsewhere.
func (m *PoolMember) Has(seq kv.SeqHash) bool {
	b := m.pool.blocks[seq]
	if b == nil || !b.there {
		return false
	}
	m.pool.unlink(b)
	m.pool.link(b)
	return true
}

// Offer takes the events of the member's cache, begins to copy the blocks stored in them
// that the pool lacks, and returns those: the copy is to be ended by End.
func (m *PoolMember) Offer(events []kv.Event) (copied []kv.SeqHash) {
	for i := range events {
		ev := &events[i]
		if ev.Kind != kv.Stored {
			continue
		}
		parent := ev.Parent
		for j, block := range ev.Blocks {
			index := ev.Start + uint32(j)
			seq := kv.Extend(parent, index, block)
			if m.pool.blocks[seq] == nil {
				m.pool.blocks[seq] = &pooledBlock{seq: seq, parent: parent, block: block, index: index, owner: m}
				copied = append(copied, seq)
			}
			parent = seq
		}
	}
	return copied
}

// End ends the copy of blocks, which are in the pool from now on.
func (m *PoolMember) End(copied []kv.SeqHash) {
	p := m.pool
	for _, seq := range copied {
		b := p.blocks[seq]
		if b == nil || b.owner != m || b.there {
			continue
		}
		b.there = true
		p.link(b)
	}
	for p.held > p.room {
		b := p.oldest
		p.unlink(b)
		delete(p.blocks, b.seq)
		b.owner.evicted = append(b.owner.evicted, b.seq)
	}
}

// Moved appends to dst the event that blocks got into a state, if there are any; with who
// can attach the pool if the member's feed does not know that yet.
func (m *PoolMember) Moved(dst []kv.Event, to kv.PoolState, seqs []kv.SeqHash) []kv.Event {
	if len(seqs) == 0 {
		return dst
	}
	return m.say(dst, to, seqs)
}

func (m *PoolMember) say(dst []kv.Event, to kv.PoolState, seqs []kv.SeqHash) []kv.Event {
	ev := kv.Event{Kind: kv.Moved, Seqs: seqs, Move: kv.Move{To: to, Pool: m.pool.id, HasPool: true}}
	if m.told != m.pool.joined {
		m.told = m.pool.joined
		ev.Move.Access = m.pool.access()
	}
	return append(dst, ev)
}

// News appends to dst the events of which the member is to tell though it did nothing, if
// there are any: which blocks it took over, and which left the pool.
func (m *PoolMember) News(dst []kv.Event) []kv.Event {
	dst = m.gone(dst)
	dst = m.there(dst, func(b *pooledBlock) bool { return slices.Contains(m.adopted, b.seq) })
	m.adopted = nil
	return dst
}

// Waits reports whether News has something to tell.
func (m *PoolMember) Waits() bool { return len(m.adopted)+len(m.evicted) > 0 }

// Describe appends to dst what goes behind a description of the member's cache: that what it
// ever put into the pool is not there, or if it is the only member that nothing is, and
// then the blocks of its own that are.
func (m *PoolMember) Describe(dst []kv.Event) []kv.Event {
	m.told = 0
	to := kv.LocalGPU
	if len(m.pool.members) == 1 {
		to = kv.Evicted
	}
	dst = m.say(dst, to, nil)
	dst = m.gone(dst) // some was said by others, who have left
	dst = m.there(dst, func(*pooledBlock) bool { return true })
	m.adopted = nil
	return dst
}

// gone appends to dst that blocks left the pool, but for those that have come back since.
func (m *PoolMember) gone(dst []kv.Event) []kv.Event {
	var seqs []kv.SeqHash
	for _, seq := range m.evicted {
		if b := m.pool.blocks[seq]; b == nil || !b.there {
			seqs = append(seqs, seq)
		}
	}
	m.evicted = nil
	return m.Moved(dst, kv.Evicted, seqs)
}

// there appends to dst that blocks of the member's are in the pool. They are said to be
// stored there for a moment, so that whoever hears it knows their place among
// prefixes, whether or not the member's cache has them.
func (m *PoolMember) there(dst []kv.Event, which func(*pooledBlock) bool) []kv.Event {
	var seqs []kv.SeqHash
	for b := m.pool.newest; b != nil; b = b.prev { // parents first
		if b.owner == m && which(b) {
			dst = append(dst, kv.Event{Kind: kv.Stored, Tier: kv.TierPool, Start: b.index, Parent: b.parent, Blocks: []kv.BlockHash{b.block}})
			seqs = append(seqs, b.seq)
		}
	}
	dst = m.Moved(dst, kv.Pooled, seqs)
	if len(seqs) > 0 {
		dst = append(dst, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: seqs})
	}
	return dst
}

// access lists the members.
func (p *Pool) access() []kv.Worker {
	all := make([]kv.Worker, len(p.members))
	for i, m := range p.members {
		all[i] = m.worker
	}
	slices.SortFunc(all, kv.Worker.Compare)
	return slices.Compact(all)
}

// link puts b among the used ones as the one used last; but no block is newer there than
// the one that it extends, so that none outlives that.
func (p *Pool) link(b *pooledBlock) {
	var after *pooledBlock // the next newer one
	if b.index > 0 {
		if parent := p.blocks[b.parent]; parent != nil && parent.there {
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
	p.held++
}

func (p *Pool) unlink(b *pooledBlock) {
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
	p.held--
}
