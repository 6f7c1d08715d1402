package residency

import (
	"slices"

	"penstock/core/kv"
)

// what is what becomes of a block.
type what uint8

const (
	ignored what = iota // the event is about something else
	same                // it says what is known
	unknown             // it is about what is not known
	copied              // the block is in transit from now on
	pooled              // the block is pooled, as of now
	left                // the block is evicted, as of now
	forgot              // nothing is known of the block any more
)

// table says what becomes of a block, by its state and that of the event: if that is
// of its mover, and if not. See the package comment.
var table = [...][kv.Evicted + 1][2]what{
	0:            {kv.LocalGPU: {ignored, ignored}, kv.InTransit: {copied, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {unknown, unknown}},
	kv.InTransit: {kv.LocalGPU: {forgot, ignored}, kv.InTransit: {same, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {left, left}},
	kv.Pooled:    {kv.LocalGPU: {forgot, ignored}, kv.InTransit: {copied, ignored}, kv.Pooled: {pooled, pooled}, kv.Evicted: {left, left}},
	kv.Evicted:   {kv.LocalGPU: {forgot, forgot}, kv.InTransit: {copied, copied}, kv.Pooled: {pooled, pooled}, kv.Evicted: {same, same}},
}

// Move takes what w said at now of blocks that moved, a Moved event, and appends to dst
// what is to be changed in the index. Another event changes nothing. Events of one
// worker must come in the order in which it sent them, and time must not go backwards
// between calls.
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

// move does with one block of a pool what the table says.
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

// come takes a block in, in transit or pooled; at is what is known of it, or none.
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
	known := e.state == kv.Pooled && !e.doubt // and so in the index, or parked
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

// evict makes a block an evicted one.
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

// displace has the index forget a block that it may know of.
func (t *Table) displace(at place, dst []Effect) []Effect {
	if e := &t.entries[at]; e.state == kv.Pooled && !e.doubt && !e.parked {
		return effect(dst, Displace, t.pools[e.pool].id, e.seq)
	}
	return dst
}

// drop takes a block out of the list of its state.
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

// uncertain notes whether a block is in doubt.
func (t *Table) uncertain(e *entry, doubt bool) {
	if e.doubt != doubt {
		t.doubtful += sign(doubt)
	}
	e.doubt = doubt
}

// setParked notes whether a block waits for a place in the index.
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

// setAccess notes who can attach a pool, if access says it.
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

// vacate makes room for a pool: it forgets who can attach the one with the least id of those
// of which nothing else is known. Pools are never said to be gone, and their ids may be new
// each time.
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

// emptyPool makes all blocks of a pool evicted ones.
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

// clear evicts a block because w emptied its pool.
func (t *Table) clear(now kv.Mono, at place, w kv.Worker, dst []Effect) []Effect {
	t.counts.Moved++
	dst = t.evict(now, at, dst)
	t.give(at, w)
	return dst
}

// withdraw forgets what w moved in a pool, but for what was evicted.
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

// Drop forgets a pool and all that was in it. It reports in its effects what the index
// is to forget.
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

// effect adds a block to the last effect, if that asks for the same, or begins one.
func effect(dst []Effect, do Do, id kv.PoolID, seq kv.SeqHash) []Effect {
	if n := len(dst); n > 0 && dst[n-1].Do == do && dst[n-1].Pool == id {
		dst[n-1].Seqs = append(dst[n-1].Seqs, seq)
		return dst
	}
	return append(dst, Effect{Do: do, Pool: id, Seqs: []kv.SeqHash{seq}})
}
