package poolindex

import "penstock/core/kv"

// findOrAddPool returns the slot of a pool, and adds the pool if it is new. noEntry means that there is no
// room.
func (t *Table) findOrAddPool(id kv.PoolID) int32 {
	if at, ok := t.byID[id]; ok {
		return at
	}
	slot := int32(noEntry)
	for i := range t.pools {
		if !t.pools[i].used {
			slot = int32(i)
			break
		}
	}
	if slot < 0 {
		if len(t.pools) >= t.cfg.MaxPools {
			return int32(noEntry)
		}
		slot = int32(len(t.pools))
		t.pools = append(t.pools, poolState{})
	}
	t.pools[slot] = poolState{id: id, used: true, pooled: newEntryList()}
	t.byID[id] = slot
	return slot
}

// releasePool frees the slot of a pool without known blocks, access and attached workers.
func (t *Table) releasePool(at int32) {
	if p := &t.pools[at]; p.used && p.blocks == 0 && !p.accessKnown && len(p.attached) == 0 {
		delete(t.byID, p.id)
		if p.indexed {
			t.releasedPools = append(t.releasedPools, p.id)
		}
		*p = poolState{}
	}
}

// findEntry returns the entry of a block in a pool.
func (t *Table) findEntry(pool int32, seq kv.SeqHash) entryID {
	at, ok := t.bySeq[seq]
	if !ok {
		return noEntry
	}
	for at != noEntry && t.entries[at].pool != pool {
		at = t.entries[at].other
	}
	return at
}

// addEntry creates an entry without a state.
func (t *Table) addEntry(pool int32, seq kv.SeqHash, w kv.Worker) entryID {
	at := t.freeEntry
	if at == noEntry {
		at = entryID(len(t.entries))
		t.entries = append(t.entries, poolEntry{})
	} else {
		t.freeEntry = t.entries[at].other
	}
	t.entries[at] = poolEntry{seq: seq, pool: pool, mover: int32(noEntry), list: noList, stateLink: listLink{noEntry, noEntry}, moverLink: listLink{noEntry, noEntry}, other: noEntry}
	if first, ok := t.bySeq[seq]; ok {
		t.entries[at].other = first
	}
	t.bySeq[seq] = at
	t.pools[pool].blocks++
	t.setMover(at, w)
	return at
}

// reorderEntry moves an entry whose state is new to its position in the chain of its block.
func (t *Table) reorderEntry(at entryID) {
	e := &t.entries[at]
	first := t.bySeq[e.seq]
	if first == at && e.other == noEntry {
		return
	}
	t.unchainEntry(at)
	before, next := noEntry, noEntry
	if f, ok := t.bySeq[e.seq]; ok {
		next = f
	}
	for next != noEntry {
		n := &t.entries[next]
		if t.precedes(e, n) {
			break
		}
		before, next = next, n.other
	}
	e.other = next
	if before == noEntry {
		t.bySeq[e.seq] = at
	} else {
		t.entries[before].other = at
	}
}

// precedes reports whether e comes before o in the chain of their block: not evicted first, then the later
// report, then the larger pool id.
func (t *Table) precedes(e, o *poolEntry) bool {
	if (e.state == kv.Evicted) != (o.state == kv.Evicted) {
		return o.state == kv.Evicted
	}
	if e.since != o.since {
		return e.since > o.since
	}
	return t.pools[e.pool].id > t.pools[o.pool].id
}

// unchainEntry removes an entry from the chain of its block.
func (t *Table) unchainEntry(at entryID) {
	e := &t.entries[at]
	first := t.bySeq[e.seq]
	switch {
	case first != at:
		for t.entries[first].other != at {
			first = t.entries[first].other
		}
		t.entries[first].other = e.other
	case e.other == noEntry:
		delete(t.bySeq, e.seq)
	default:
		t.bySeq[e.seq] = e.other
	}
	e.other = noEntry
}

// forgetEntry removes an entry. The caller must remove the block from the prefix index.
func (t *Table) forgetEntry(at entryID) {
	t.unlinkState(at)
	e := &t.entries[at]
	t.setSuspect(e, false)
	t.setParked(e, false)
	t.setList(e, noList)
	t.unchainEntry(at)
	t.clearMover(at)
	pool := e.pool
	*e = poolEntry{other: t.freeEntry}
	t.freeEntry = at
	t.pools[pool].blocks--
	t.releasePool(pool)
}

// setMover makes w the mover of an entry.
func (t *Table) setMover(at entryID, w kv.Worker) {
	e := &t.entries[at]
	if e.mover >= 0 {
		if t.movers[e.mover].worker == w {
			return
		}
		t.clearMover(at)
	}
	m, ok := t.byWorker[w]
	if !ok {
		if n := len(t.freeMovers); n > 0 {
			m, t.freeMovers = t.freeMovers[n-1], t.freeMovers[:n-1]
		} else {
			m = int32(len(t.movers))
			t.movers = append(t.movers, mover{})
		}
		t.movers[m] = mover{worker: w, entries: newEntryList()}
		t.byWorker[w] = m
	}
	e.mover = m
	t.pushEntry(&t.movers[m].entries, at, moverLinkOf)
}

// clearMover removes an entry from its mover, and drops a mover without entries.
func (t *Table) clearMover(at entryID) {
	e := &t.entries[at]
	m := &t.movers[e.mover]
	t.removeEntry(&m.entries, at, moverLinkOf)
	if m.entries.len == 0 {
		t.clearSuspect(e.mover)
		delete(t.byWorker, m.worker)
		*m = mover{}
		t.freeMovers = append(t.freeMovers, e.mover)
	}
	e.mover = int32(noEntry)
}

// listLink holds the neighbours of an entry in a list.
type listLink struct{ prev, next entryID }

// entryList is a list of entries, linked by one of their links.
type entryList struct {
	first, last entryID
	len         int
}

func newEntryList() entryList { return entryList{first: noEntry, last: noEntry} }

// linkSelector selects the link of a list.
type linkSelector func(*poolEntry) *listLink

func stateLinkOf(e *poolEntry) *listLink { return &e.stateLink }
func moverLinkOf(e *poolEntry) *listLink { return &e.moverLink }

// pushEntry appends an entry to l.
func (t *Table) pushEntry(l *entryList, at entryID, of linkSelector) {
	*of(&t.entries[at]) = listLink{prev: l.last, next: noEntry}
	if l.last == noEntry {
		l.first = at
	} else {
		of(&t.entries[l.last]).next = at
	}
	l.last = at
	l.len++
}

// removeEntry removes an entry from l, which contains it.
func (t *Table) removeEntry(l *entryList, at entryID, of linkSelector) {
	k := of(&t.entries[at])
	if k.prev == noEntry {
		l.first = k.next
	} else {
		of(&t.entries[k.prev]).next = k.next
	}
	if k.next == noEntry {
		l.last = k.prev
	} else {
		of(&t.entries[k.next]).prev = k.prev
	}
	*k = listLink{noEntry, noEntry}
	l.len--
}

// stateList returns the list which holds an entry because of its state.
func (t *Table) stateList(e *poolEntry) *entryList {
	switch e.state {
	case kv.InTransit:
		return &t.transit
	case kv.Pooled:
		return &t.pools[e.pool].pooled
	}
	return &t.evicted
}
