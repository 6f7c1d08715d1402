package poolindex

import (
	"slices"

	"penstock/core/kv"
)

// transition is what happens to a block.
type transition uint8

const (
	transIgnored   transition = iota // the event concerns another copy
	transSame                        // the event repeats the known state
	transUnknown                     // the event concerns an unknown block
	transInTransit                   // the block is in transit from now on
	transPooled                      // the block is pooled from now on
	transEvicted                     // the block is evicted from now on
	transForgotten                   // the block is not known any more
)

// transitions gives the transition of a block by its state, by the state in the event, and by whether the
// event is of its mover (0) or not (1). See the package comment.
var transitions = [...][kv.Evicted + 1][2]transition{
	0:            {kv.LocalGPU: {transIgnored, transIgnored}, kv.InTransit: {transInTransit, transInTransit}, kv.Pooled: {transPooled, transPooled}, kv.Evicted: {transUnknown, transUnknown}},
	kv.InTransit: {kv.LocalGPU: {transForgotten, transIgnored}, kv.InTransit: {transSame, transInTransit}, kv.Pooled: {transPooled, transPooled}, kv.Evicted: {transEvicted, transEvicted}},
	kv.Pooled:    {kv.LocalGPU: {transForgotten, transIgnored}, kv.InTransit: {transInTransit, transIgnored}, kv.Pooled: {transPooled, transPooled}, kv.Evicted: {transEvicted, transEvicted}},
	kv.Evicted:   {kv.LocalGPU: {transForgotten, transForgotten}, kv.InTransit: {transInTransit, transInTransit}, kv.Pooled: {transPooled, transPooled}, kv.Evicted: {transSame, transSame}},
}

// ApplyMove applies a Moved event which w sent, and appends the changes of the prefix index to dst. It
// ignores other events. Events of one worker must come in the order in which it sent them, and time must
// not go backwards between calls.
func (t *Table) ApplyMove(now kv.Mono, w kv.Worker, ev *kv.Event, dst []Effect) []Effect {
	m := &ev.Move
	if ev.Kind != kv.Moved || m.To < kv.LocalGPU || m.To > kv.Evicted {
		return dst
	}
	at := int32(noEntry)
	if m.HasPool {
		if at = t.findOrAddPool(m.Pool); at < 0 && (m.Access != nil && !m.OfBlocks || m.To == kv.InTransit || m.To == kv.Pooled) {
			dst = t.makeRoomForPool(dst)
			at = t.findOrAddPool(m.Pool)
		}
		if at < 0 {
			t.counts.Refused += uint64(len(ev.Seqs))
			return dst
		}
		dst = t.recordAccess(at, w, m, dst)
		if m.To == kv.Evicted && len(ev.Seqs) == 0 {
			dst = t.emptyPool(now, w, at, dst)
		}
		if m.To == kv.LocalGPU && len(ev.Seqs) == 0 {
			dst = t.withdrawMover(w, at, dst)
		}
	}
	said := at
	move := blockMove{now: now, worker: w, to: m.To}
	if m.OfBlocks && m.Access != nil {
		move.access, move.hasAccess = sortedAccess(m.Access), true
	}
	for i, seq := range ev.Seqs {
		pool := at
		if !m.HasPool {
			newest, ok := t.bySeq[seq]
			if !ok {
				t.counts.Unknown++
				continue
			}
			if pool = t.entries[newest].pool; pool != said {
				dst = t.recordAccess(pool, w, m, dst)
				said = pool
			}
		}
		move.label = eventLabel(ev, i)
		dst = t.moveBlock(pool, seq, &move, dst)
	}
	if m.HasPool {
		t.releasePool(at)
	}
	return t.dropUnusedLists(dst)
}

// recordAccess records what a move of w says of who can attach a pool.
func (t *Table) recordAccess(pool int32, w kv.Worker, m *kv.PoolMove, dst []Effect) []Effect {
	if !m.OfBlocks {
		return t.setAccess(pool, m.Access, dst)
	}
	if m.To == kv.InTransit || m.To == kv.Pooled {
		return t.attachSender(pool, w, dst)
	}
	return dst
}

// blockMove is what an event says of one block.
type blockMove struct {
	now    kv.Mono
	worker kv.Worker
	to     kv.PoolState
	label  *kv.MoELabel // nil leaves the label
	// access, if hasAccess, lists the workers which can attach the block, ascending; otherwise its list stays.
	access    []kv.Worker
	hasAccess bool
}

// eventLabel returns the label which ev gives its block i; nil if it gives none.
func eventLabel(ev *kv.Event, i int) *kv.MoELabel {
	if len(ev.Labels) != len(ev.Seqs) || !ev.Labels[i].IsValid() {
		return nil
	}
	return &ev.Labels[i]
}

// moveBlock applies the transition table to one block of a pool.
func (t *Table) moveBlock(pool int32, seq kv.SeqHash, m *blockMove, dst []Effect) []Effect {
	at := t.findEntry(pool, seq)
	state, stranger := kv.PoolState(0), 0
	if at != noEntry {
		state = t.entries[at].state
		if t.movers[t.entries[at].mover].worker != m.worker {
			stranger = 1
		}
	}
	do := transitions[state][m.to][stranger]
	switch do {
	case transIgnored:
		t.counts.Ignored++
		return dst
	case transSame:
		t.counts.Same++
		if m.to == kv.InTransit {
			return t.updateTransit(pool, at, m, dst)
		}
		return dst
	case transUnknown:
		t.counts.Unknown++
		return dst
	case transForgotten:
		dst = t.displaceBlock(at, dst)
		t.forgetEntry(at)
	case transEvicted:
		dst = t.evictBlock(m.now, at, dst)
		t.setMover(at, m.worker)
	case transInTransit, transPooled:
		return t.admitBlock(pool, seq, at, m, dst)
	}
	t.counts.Moved++
	return dst
}

// updateTransit sets label and access list of a block which is in transit already.
func (t *Table) updateTransit(pool int32, at entryID, m *blockMove, dst []Effect) []Effect {
	e := &t.entries[at]
	if m.label != nil {
		e.label = *m.label
	}
	if !m.hasAccess {
		return dst
	}
	list, dst, ok := t.findOrAddList(pool, m.access, dst)
	if !ok {
		t.counts.Refused++
		t.forgetEntry(at)
		return dst
	}
	t.setList(e, list)
	return dst
}

// admitBlock makes a block in transit or pooled; at is its entry, or noEntry. A block whose access list has no
// room is forgotten: without its list too many workers could attach it.
func (t *Table) admitBlock(pool int32, seq kv.SeqHash, at entryID, m *blockMove, dst []Effect) []Effect {
	now, w, to := m.now, m.worker, m.to
	if (at == noEntry || t.entries[at].state == kv.Evicted) && t.transit.len+t.pooledCount >= t.cfg.MaxBlocks {
		t.counts.Refused++
		return dst
	}
	list := noList
	if at != noEntry {
		list = t.entries[at].list
	}
	if m.hasAccess {
		var ok bool
		if list, dst, ok = t.findOrAddList(pool, m.access, dst); !ok {
			t.counts.Refused++
			if at != noEntry {
				dst = t.displaceBlock(at, dst)
				t.forgetEntry(at)
			}
			return dst
		}
	}
	t.counts.Moved++
	relisted := at != noEntry && t.entries[at].list != list
	var old kv.PoolShare
	if at == noEntry {
		at = t.addEntry(pool, seq, w)
	} else {
		old = t.shareOf(&t.entries[at])
		if to == kv.InTransit {
			dst = t.displaceBlock(at, dst)
		}
		t.unlinkState(at)
		t.setMover(at, w)
	}
	e := &t.entries[at]
	known := e.state == kv.Pooled && !e.suspect // and so in the prefix index, or parked
	relabelled := m.label != nil && *m.label != e.label
	if relabelled {
		e.label = *m.label
	}
	t.setList(e, list)
	e.state, e.since = to, now
	t.setSuspect(e, false)
	t.reorderEntry(at)
	t.pushEntry(t.stateList(e), at, stateLinkOf)
	if to == kv.InTransit {
		t.pools[pool].inTransit++
		t.setParked(e, false)
		return dst
	}
	t.pooledCount++
	if !known || (relabelled || relisted) && !e.parked {
		t.setParked(e, false)
		dst = t.appendPlace(dst, e)
		if known && relisted { // afterwards: the index forgets the prefix of a block which is nowhere
			dst = appendEffect(dst, Displace, old, seq)
		}
	}
	p := &t.pools[pool]
	for t.cfg.Capacity > 0 && p.pooled.len > t.cfg.Capacity {
		t.counts.Overflowed++
		dst = t.evictBlock(now, p.pooled.first, dst)
	}
	return dst
}

// evictBlock marks a block as evicted.
func (t *Table) evictBlock(now kv.Mono, at entryID, dst []Effect) []Effect {
	dst = t.displaceBlock(at, dst)
	t.unlinkState(at)
	e := &t.entries[at]
	t.setSuspect(e, false)
	t.setParked(e, false)
	t.setList(e, noList)
	e.state, e.since = kv.Evicted, now
	t.reorderEntry(at)
	t.pushEntry(&t.evicted, at, stateLinkOf)
	for t.evicted.len > t.cfg.MaxEvicted {
		t.forgetEntry(t.evicted.first)
	}
	return dst
}

// displaceBlock removes a block from the prefix index if it may be there.
func (t *Table) displaceBlock(at entryID, dst []Effect) []Effect {
	if e := &t.entries[at]; e.state == kv.Pooled && !e.suspect && !e.parked {
		return appendEffect(dst, Displace, t.shareOf(e), e.seq)
	}
	return dst
}

// unlinkState removes a block from the list of its state.
func (t *Table) unlinkState(at entryID) {
	e := &t.entries[at]
	t.removeEntry(t.stateList(e), at, stateLinkOf)
	switch e.state {
	case kv.Pooled:
		t.pooledCount--
	case kv.InTransit:
		t.pools[e.pool].inTransit--
	}
}

// setSuspect sets whether a block is suspect.
func (t *Table) setSuspect(e *poolEntry, doubt bool) {
	if e.suspect != doubt {
		t.suspectCount += countDelta(doubt)
	}
	e.suspect = doubt
}

// setParked sets whether a block waits for a place in the prefix index.
func (t *Table) setParked(e *poolEntry, parked bool) {
	if e.parked != parked {
		t.parkedCount += countDelta(parked)
	}
	e.parked = parked
}

func countDelta(b bool) int {
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
	list := sortedAccess(access)
	p := &t.pools[at]
	if p.accessKnown && slices.Equal(p.access, list) {
		return dst
	}
	p.accessKnown, p.access = true, list
	dst = append(dst, Effect{Kind: SetAccess, Pool: p.id.Share(0), Access: slices.Clone(list)})
	for i := range t.lists {
		if l := &t.lists[i]; l.share != 0 && l.share.Pool() == p.id {
			dst = append(dst, t.shareAccess(p, l))
		}
	}
	return dst
}

// makeRoomForPool forgets the access list of the pool with the smallest id among those without blocks. The
// feeds never report that a pool is gone, and pool ids may be new each time.
func (t *Table) makeRoomForPool(dst []Effect) []Effect {
	found := int32(noEntry)
	for i := range t.pools {
		if p := &t.pools[i]; p.used && p.blocks == 0 && (found < 0 || p.id < t.pools[found].id) {
			found = int32(i)
		}
	}
	if found < 0 {
		return dst
	}
	return t.DropPool(t.pools[found].id, dst)
}

// emptyPool evicts all blocks of a pool.
func (t *Table) emptyPool(now kv.Mono, w kv.Worker, pool int32, dst []Effect) []Effect {
	p := &t.pools[pool]
	for at := t.transit.first; p.inTransit > 0; {
		next := t.entries[at].stateLink.next
		if t.entries[at].pool == pool {
			dst = t.evictCleared(now, at, w, dst)
		}
		at = next
	}
	for p.pooled.len > 0 {
		dst = t.evictCleared(now, p.pooled.first, w, dst)
	}
	return dst
}

// evictCleared evicts a block because w emptied its pool.
func (t *Table) evictCleared(now kv.Mono, at entryID, w kv.Worker, dst []Effect) []Effect {
	t.counts.Moved++
	dst = t.evictBlock(now, at, dst)
	t.setMover(at, w)
	return dst
}

// withdrawMover forgets what w moved in a pool, except evicted blocks.
func (t *Table) withdrawMover(w kv.Worker, pool int32, dst []Effect) []Effect {
	m, ok := t.byWorker[w]
	if !ok {
		return dst
	}
	for at := t.movers[m].entries.first; at != noEntry; {
		next := t.entries[at].moverLink.next
		if e := &t.entries[at]; e.pool == pool && e.state != kv.Evicted {
			t.counts.Moved++
			dst = t.displaceBlock(at, dst)
			t.forgetEntry(at)
		}
		at = next
	}
	return dst
}

// DropPool forgets a pool and all its blocks. Its effects say what the prefix index must forget.
func (t *Table) DropPool(id kv.PoolID, dst []Effect) []Effect {
	at, ok := t.byID[id]
	if !ok {
		return dst
	}
	for i := 0; i < len(t.entries) && t.pools[at].blocks > 0; i++ {
		if e := &t.entries[i]; e.state != 0 && e.pool == at {
			t.forgetEntry(entryID(i))
		}
	}
	if p := &t.pools[at]; p.used {
		p.accessKnown, p.access, p.attached, p.indexed = false, nil, nil, false
		t.releasePool(at)
	}
	return t.dropUnusedLists(append(dst, Effect{Kind: DropPool, Pool: id.Share(0)}))
}

// appendPlace appends that a pooled block is in the prefix index, with its label.
func (t *Table) appendPlace(dst []Effect, e *poolEntry) []Effect {
	dst = appendEffect(dst, Place, t.shareOf(e), e.seq)
	last := &dst[len(dst)-1]
	if last.Labels == nil {
		if e.label.Has == 0 {
			return dst
		}
		last.Labels = make([]kv.MoELabel, len(last.Seqs)-1, len(last.Seqs))
	}
	last.Labels = append(last.Labels, e.label)
	return dst
}

// appendEffect adds a block to the last effect if that has the same kind and pool, otherwise it appends an
// effect.
func appendEffect(dst []Effect, do EffectKind, id kv.PoolShare, seq kv.SeqHash) []Effect {
	if n := len(dst); n > 0 && dst[n-1].Kind == do && dst[n-1].Pool == id {
		dst[n-1].Seqs = append(dst[n-1].Seqs, seq)
		return dst
	}
	return append(dst, Effect{Kind: do, Pool: id, Seqs: []kv.SeqHash{seq}})
}
