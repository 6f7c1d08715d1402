package residency

import "penstock/core/kv"

// findOrAddPool returns the slot of a pool, and adds the pool if it is new. noEntry means that there is no
// room.
func (t *Table) pool(id kv.PoolID) int32 {
	if at, ok := t.byID[id]; ok {
		return at
	}
	slot := int32(none)
	for i := range t.pools {
		if !t.pools[i].used {
			slot = int32(i)
			break
		}
	}
	if slot < 0 {
		if len(t.pools) >= t.cfg.MaxPools {
			return int32(none)
		}
		slot = int32(len(t.pools))
		t.pools = append(t.pools, pool{})
	}
	t.pools[slot] = pool{id: id, used: true, pooled: newList()}
	t.byID[id] = slot
	return slot
}

// releasePool frees the slot of a pool without known blocks and access.
func (t *Table) leave(at int32) {
	if p := &t.pools[at]; p.used && p.blocks == 0 && !p.said {
		delete(t.byID, p.id)
		*p = pool{}
	}
}

// findEntry returns the entry of a block in a pool.
func (t *Table) find(pool int32, seq kv.SeqHash) place {
	at, ok := t.where[seq]
	if !ok {
		return none
	}
	for at != none && t.entries[at].pool != pool {
		at = t.entries[at].other
	}
	return at
}

// addEntry creates an entry without a state.
func (t *Table) add(pool int32, seq kv.SeqHash, w kv.Worker) place {
	at := t.vacant
	if at == none {
		at = place(len(t.entries))
		t.entries = append(t.entries, entry{})
	} else {
		t.vacant = t.entries[at].other
	}
	t.entries[at] = entry{seq: seq, pool: pool, mover: int32(none), ring: link{none, none}, own: link{none, none}, other: none}
	if first, ok := t.where[seq]; ok {
		t.entries[at].other = first
	}
	t.where[seq] = at
	t.pools[pool].blocks++
	t.give(at, w)
	return at
}

// reorderEntry moves an entry whose state is new to its position in the chain of its block.
func (t *Table) raise(at place) {
	e := &t.entries[at]
	first := t.where[e.seq]
	if first == at && e.other == none {
		return
	}
	t.unchain(at)
	before, next := none, none
	if f, ok := t.where[e.seq]; ok {
		next = f
	}
	for next != none {
		n := &t.entries[next]
		if t.later(e, n) {
			break
		}
		before, next = next, n.other
	}
	e.other = next
	if before == none {
		t.where[e.seq] = at
	} else {
		t.entries[before].other = at
	}
}

// precedes reports whether e comes before o in the chain of their block: not evicted first, then the later
// report, then the larger pool id.
func (t *Table) later(e, o *entry) bool {
	if (e.state == kv.Evicted) != (o.state == kv.Evicted) {
		return o.state == kv.Evicted
	}
	if e.since != o.since {
		return e.since > o.since
	}
	return t.pools[e.pool].id > t.pools[o.pool].id
}

// unchainEntry removes an entry from the chain of its block.
func (t *Table) unchain(at place) {
	e := &t.entries[at]
	first := t.where[e.seq]
	switch {
	case first != at:
		for t.entries[first].other != at {
			first = t.entries[first].other
		}
		t.entries[first].other = e.other
	case e.other == none:
		delete(t.where, e.seq)
	default:
		t.where[e.seq] = e.other
	}
	e.other = none
}

// forgetEntry removes an entry. The caller must remove the block from the prefix index.
func (t *Table) forget(at place) {
	t.drop(at)
	e := &t.entries[at]
	t.uncertain(e, false)
	t.setParked(e, false)
	t.unchain(at)
	t.disown(at)
	pool := e.pool
	*e = entry{other: t.vacant}
	t.vacant = at
	t.pools[pool].blocks--
	t.leave(pool)
}

// setMover makes w the mover of an entry.
func (t *Table) give(at place, w kv.Worker) {
	e := &t.entries[at]
	if e.mover >= 0 {
		if t.movers[e.mover].worker == w {
			return
		}
		t.disown(at)
	}
	m, ok := t.byName[w]
	if !ok {
		if n := len(t.idle); n > 0 {
			m, t.idle = t.idle[n-1], t.idle[:n-1]
		} else {
			m = int32(len(t.movers))
			t.movers = append(t.movers, mover{})
		}
		t.movers[m] = mover{worker: w, own: newList()}
		t.byName[w] = m
	}
	e.mover = m
	t.push(&t.movers[m].own, at, own)
}

// clearMover removes an entry from its mover, and drops a mover without entries.
func (t *Table) disown(at place) {
	e := &t.entries[at]
	m := &t.movers[e.mover]
	t.take(&m.own, at, own)
	if m.own.len == 0 {
		t.settle(e.mover)
		delete(t.byName, m.worker)
		*m = mover{}
		t.idle = append(t.idle, e.mover)
	}
	e.mover = int32(none)
}
