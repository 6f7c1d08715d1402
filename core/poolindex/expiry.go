package poolindex

import (
	"slices"

	"penstock/core/kv"
)

// Tick applies the timeouts and appends the changes of the prefix index to dst.
func (t *Table) Tick(now kv.Mono, dst []Effect) []Effect {
	for t.transit.len > 0 && now.Sub(t.entries[t.transit.first].since) >= t.cfg.TransitTimeout {
		t.counts.Stuck++
		dst = t.evictBlock(now, t.transit.first, dst)
	}
	for len(t.suspects) > 0 && now.Sub(t.movers[t.suspects[0]].since) >= t.cfg.SuspectTimeout {
		t.counts.Forgotten += uint64(t.forgetSuspects(t.suspects[0]))
	}
	for t.evicted.len > 0 && now.Sub(t.entries[t.evicted.first].since) >= t.cfg.EvictedRetention {
		t.forgetEntry(t.evicted.first)
	}
	return t.dropUnusedLists(dst)
}

// Deadline returns when Tick is due. ok is false if no timeout is pending.
func (t *Table) Deadline() (at kv.Mono, ok bool) {
	due := func(m kv.Mono) {
		if !ok || m < at {
			at, ok = m, true
		}
	}
	if t.transit.len > 0 {
		due(t.entries[t.transit.first].since.Add(t.cfg.TransitTimeout))
	}
	if t.evicted.len > 0 {
		due(t.entries[t.evicted.first].since.Add(t.cfg.EvictedRetention))
	}
	if len(t.suspects) > 0 {
		due(t.movers[t.suspects[0]].since.Add(t.cfg.SuspectTimeout))
	}
	return at, ok
}

// SuspectWorker records that events of w may have been lost: blocks which only w vouches for are removed
// from the prefix index. A restart or death of a worker is no reason to call it, because the pools still
// exist.
func (t *Table) SuspectWorker(now kv.Mono, w kv.Worker, dst []Effect) []Effect {
	m, ok := t.byWorker[w]
	if !ok {
		return dst
	}
	found := false
	for at := t.movers[m].entries.first; at != noEntry; at = t.entries[at].moverLink.next {
		e := &t.entries[at]
		if e.state != kv.Pooled {
			continue
		}
		found = true
		dst = t.displaceBlock(at, dst)
		t.setSuspect(e, true)
		t.setParked(e, false)
	}
	if found {
		t.clearSuspect(m)
		t.movers[m].suspect, t.movers[m].since = true, now
		t.suspects = append(t.suspects, m)
	}
	return dst
}

// TrustWorker records that no event of w is missing any more.
func (t *Table) TrustWorker(w kv.Worker, dst []Effect) []Effect {
	m, ok := t.byWorker[w]
	if !ok || !t.movers[m].suspect {
		return dst
	}
	t.clearSuspect(m)
	for at := t.movers[m].entries.first; at != noEntry; at = t.entries[at].moverLink.next {
		if e := &t.entries[at]; e.suspect {
			t.setSuspect(e, false)
			dst = t.appendPlace(dst, e)
		}
	}
	return dst
}

// ForgetLost records that the missing events of w will not arrive: suspect blocks are forgotten until they
// are reported again.
func (t *Table) ForgetLost(w kv.Worker) {
	if m, ok := t.byWorker[w]; ok {
		t.counts.Forgotten += uint64(t.forgetSuspects(m))
	}
}

// clearSuspect ends the suspicion of a mover, not that of its blocks.
func (t *Table) clearSuspect(m int32) {
	if t.movers[m].suspect {
		t.movers[m].suspect = false
		t.suspects = slices.DeleteFunc(t.suspects, func(o int32) bool { return o == m })
	}
}

// forgetSuspects forgets the suspect blocks of a mover, and returns their number.
func (t *Table) forgetSuspects(m int32) int {
	t.clearSuspect(m)
	n := 0
	for at := t.movers[m].entries.first; at != noEntry; {
		next := t.entries[at].moverLink.next
		if t.entries[at].suspect {
			t.forgetEntry(at)
			n++
		}
		at = next
	}
	return n
}

// RetryParked finds parked blocks among the blocks of a Stored event which the prefix index has applied, and
// appends their placement to dst.
func (t *Table) RetryParked(ev *kv.Event, dst []Effect) []Effect {
	if t.parkedCount == 0 || ev.Kind != kv.Stored {
		return dst
	}
	seq := ev.Parent
	for i, b := range ev.Blocks {
		seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
		at, ok := t.bySeq[seq]
		if !ok {
			continue
		}
		for ; at != noEntry; at = t.entries[at].other {
			if e := &t.entries[at]; e.parked {
				t.setParked(e, false)
				dst = t.appendPlace(dst, e)
			}
		}
	}
	return dst
}
