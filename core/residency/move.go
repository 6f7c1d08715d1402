package residency

import (
	"slices"

	"penstock/core/kv"
)

// transition is what happens to a block.
type what uint8

const (
	ignored what = iota // the event concerns another copy
	same                // the event repeats the known state
	unknown             // the event concerns an unknown block
	copied              // the block is in transit from now on
	pooled              // the block is pooled from now on
	left                // the block is evicted from now on
	forgot              // the block is not known any more
)

// transitions gives the transition of a block by its state, by the state in the event, and by whether the
// event is of its mover (0) or not (1). See the package comment.
var table = [...][kv.Evicted + 1][2]what{
	0:            {kv.LocalGPU: {ignored, ignored}, kv.InTransit: {copied, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {unknown, unknown}},
	kv.InTransit: {kv.LocalGPU: {forgot, ignored}, kv.InTransit: {same, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {left, left}},
	kv.Pooled:    {kv.LocalGPU: {forgot, ignored}, kv.InTransit: {copied, ignored}, kv.Pooled: {pooled, pooled}, kv.Evicted: {left, left}},
	kv.Evicted:   {kv.LocalGPU: {forgot, forgot}, kv.InTransit: {copied, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {same, same}},
}

// ApplyMove applies a Moved event which w sent, and appends the changes of the prefix index to dst. It
// ignores other events. Events of one worker must come in the order in which it sent them, and time must
// not go backwards between calls.
func (t *Table) Move(now kv.Mono, w kv.Worker, ev *kv.Event, dst []Effect) []Effect {
	m := &ev.Move
	if ev.Kind != kv.Moved || m.To < kv.LocalGPU || m.To > kv.Evicted {
		return dst
	}
	at := int32(none)
	if m.HasPool {
		if at = t.pool(m.Pool); at < 0 && (m.Access != nil || m.To == kv.InTransit || m.To == kv.Pooled) {
			dst = t.vacate(dst)
			at = t.pool(m.Pool)
		}
		if at < 0 {
			t.counts.Refused += uint64(len(ev.Seqs))
			return dst
		}
		dst = t.setAccess(at, m.Access, dst)
		if m.To == kv.Evicted && len(ev.Seqs) == 0 {
			dst = t.emptyPool(now, w, at, dst)
		}
		if m.To == kv.LocalGPU && len(ev.Seqs) == 0 {
			dst = t.withdraw(w, at, dst)
		}
	}
	said := at
	for _, seq := range ev.Seqs {
		pool := at
		if !m.HasPool {
			newest, ok := t.where[seq]
			if !ok {
				t.counts.Unknown++
				continue
			}
			if pool = t.entries[newest].pool; pool != said {
				dst = t.setAccess(pool, m.Access, dst)
				said = pool
			}
		}
		dst = t.move(now, w, pool, seq, m.To, dst)
	}
	if m.HasPool {
		t.leave(at)
	}
	return dst
}

// moveBlock applies the transition table to one block of a pool.
func (t *Table) move(now kv.Mono, w kv.Worker, pool int32, seq kv.SeqHash, to kv.PoolState, dst []Effect) []Effect {
	at := t.find(pool, seq)
	state, stranger := kv.PoolState(0), 0
	if at != none {
		state = t.entries[at].state
		if t.movers[t.entries[at].mover].worker != w {
			stranger = 1
		}
	}
	do := table[state][to][stranger]
	switch do {
	case ignored:
		t.counts.Ignored++
		return dst
	case same:
		t.counts.Same++
		return dst
	case unknown:
		t.counts.Unknown++
		return dst
	case forgot:
		dst = t.displace(at, dst)
		t.forget(at)
	case left:
		dst = t.evict(now, at, dst)
		t.give(at, w)
	case copied, pooled:
		return t.come(now, w, pool, seq, at, to, dst)
	}
	t.counts.Moved++
	return dst
}

// admitBlock makes a block in transit or pooled; at is its entry, or noEntry.
func (t *Table) come(now kv.Mono, w kv.Worker, pool int32, seq kv.SeqHash, at place, to kv.PoolState, dst []Effect) []Effect {
	if (at == none || t.entries[at].state == kv.Evicted) && t.transit.len+t.pooled >= t.cfg.MaxBlocks {
		t.counts.Refused++
		return dst
	}
	t.counts.Moved++
	if at == none {
		at = t.add(pool, seq, w)
	} else {
		if to == kv.InTransit {
			dst = t.displace(at, dst)
		}
		t.drop(at)
		t.give(at, w)
	}
	e := &t.entries[at]
	known := e.state == kv.Pooled && !e.doubt // and so in the prefix index, or parked
	e.state, e.since = to, now
	t.uncertain(e, false)
	t.raise(at)
	t.push(t.stateList(e), at, ring)
	if to == kv.InTransit {
		t.pools[pool].moving++
		t.setParked(e, false)
		return dst
	}
	t.pooled++
	if !known {
		t.setParked(e, false)
		dst = effect(dst, Place, t.pools[pool].id, seq)
	}
	p := &t.pools[pool]
	for t.cfg.Capacity > 0 && p.pooled.len > t.cfg.Capacity {
		t.counts.Overflowed++
		dst = t.evict(now, p.pooled.first, dst)
	}
	return dst
}

// evictBlock marks a block as evicted.
func (t *Table) evict(now kv.Mono, at place, dst []Effect) []Effect {
	dst = t.displace(at, dst)
	t.drop(at)
	e := &t.entries[at]
	t.uncertain(e, false)
	t.setParked(e, false)
	e.state, e.since = kv.Evicted, now
	t.raise(at)
	t.push(&t.evicted, at, ring)
	for t.evicted.len > t.cfg.MaxEvicted {
		t.forget(t.evicted.first)
	}
	return dst
}

// displaceBlock removes a block from the prefix index if it may be there.
func (t *Table) displace(at place, dst []Effect) []Effect {
	if e := &t.entries[at]; e.state == kv.Pooled && !e.doubt && !e.parked {
		return effect(dst, Displace, t.pools[e.pool].id, e.seq)
	}
	return dst
}

// unlinkState removes a block from the list of its state.
func (t *Table) drop(at place) {
	e := &t.entries[at]
	t.take(t.stateList(e), at, ring)
	switch e.state {
	case kv.Pooled:
		t.pooled--
	case kv.InTransit:
		t.pools[e.pool].moving--
	}
}

// setSuspect sets whether a block is suspect.
func (t *Table) uncertain(e *entry, doubt bool) {
	if e.doubt != doubt {
		t.doubtful += sign(doubt)
	}
	e.doubt = doubt
}

// setParked sets whether a block waits for a place in the prefix index.
func (t *Table) setParked(e *entry, parked bool) {
	if e.parked != parked {
		t.parked += sign(parked)
	}
	e.parked = parked
}

func sign(b bool) int {
	if b {
		return 1
	}
	return -1
}

// setAccess sets the workers which can attach a pool, if access is not nil.
func (t *Table) setAccess(at int32, access []kv.Worker, dst []Effect) []Effect {
	if access == nil {
		return dst
	}
	list := slices.Clone(access[:min(len(access), MaxAccess)])
	slices.SortFunc(list, kv.Worker.Compare)
	list = slices.Compact(list)
	p := &t.pools[at]
	if p.said && slices.Equal(p.access, list) {
		return dst
	}
	p.said, p.access = true, list
	return append(dst, Effect{Do: SetAccess, Pool: p.id, Access: slices.Clone(list)})
}

// makeRoomForPool forgets the access list of the pool with the smallest id among those without blocks. The
// feeds never report that a pool is gone, and pool ids may be new each time.
func (t *Table) vacate(dst []Effect) []Effect {
	found := int32(none)
	for i := range t.pools {
		if p := &t.pools[i]; p.used && p.blocks == 0 && (found < 0 || p.id < t.pools[found].id) {
			found = int32(i)
		}
	}
	if found < 0 {
		return dst
	}
	return t.Drop(t.pools[found].id, dst)
}

// emptyPool evicts all blocks of a pool.
func (t *Table) emptyPool(now kv.Mono, w kv.Worker, pool int32, dst []Effect) []Effect {
	p := &t.pools[pool]
	for at := t.transit.first; p.moving > 0; {
		next := t.entries[at].ring.next
		if t.entries[at].pool == pool {
			dst = t.clear(now, at, w, dst)
		}
		at = next
	}
	for p.pooled.len > 0 {
		dst = t.clear(now, p.pooled.first, w, dst)
	}
	return dst
}

// evictCleared evicts a block because w emptied its pool.
func (t *Table) clear(now kv.Mono, at place, w kv.Worker, dst []Effect) []Effect {
	t.counts.Moved++
	dst = t.evict(now, at, dst)
	t.give(at, w)
	return dst
}

// withdrawMover forgets what w moved in a pool, except evicted blocks.
func (t *Table) withdraw(w kv.Worker, pool int32, dst []Effect) []Effect {
	m, ok := t.byName[w]
	if !ok {
		return dst
	}
	for at := t.movers[m].own.first; at != none; {
		next := t.entries[at].own.next
		if e := &t.entries[at]; e.pool == pool && e.state != kv.Evicted {
			t.counts.Moved++
			dst = t.displace(at, dst)
			t.forget(at)
		}
		at = next
	}
	return dst
}

// DropPool forgets a pool and all its blocks. Its effects say what the prefix index must forget.
func (t *Table) Drop(id kv.PoolID, dst []Effect) []Effect {
	at, ok := t.byID[id]
	if !ok {
		return dst
	}
	for i := 0; i < len(t.entries) && t.pools[at].blocks > 0; i++ {
		if e := &t.entries[i]; e.state != 0 && e.pool == at {
			t.forget(place(i))
		}
	}
	if p := &t.pools[at]; p.used {
		p.said, p.access = false, nil
		t.leave(at)
	}
	return append(dst, Effect{Do: DropPool, Pool: id})
}

// appendEffect adds a block to the last effect if that has the same kind and pool, otherwise it appends an
// effect.
func effect(dst []Effect, do Do, id kv.PoolID, seq kv.SeqHash) []Effect {
	if n := len(dst); n > 0 && dst[n-1].Do == do && dst[n-1].Pool == id {
		dst[n-1].Seqs = append(dst[n-1].Seqs, seq)
		return dst
	}
	return append(dst, Effect{Do: do, Pool: id, Seqs: []kv.SeqHash{seq}})
}
