package residency

import (
	"slices"

	"penstock/core/kv"
)

// Tick applies the timeouts and appends the changes of the prefix index to dst.
func (t *Table) Tick(now kv.Mono, dst []Effect) []Effect {
	for t.transit.len > 0 && now.Sub(t.entries[t.transit.first].since) >= t.cfg.Transit {
		t.counts.Stuck++
		dst = t.evict(now, t.transit.first, dst)
	}
	for len(t.doubts) > 0 && now.Sub(t.movers[t.doubts[0]].since) >= t.cfg.Doubt {
		t.counts.Forgotten += uint64(t.forgetDoubtful(t.doubts[0]))
	}
	for t.evicted.len > 0 && now.Sub(t.entries[t.evicted.first].since) >= t.cfg.Retain {
		t.forget(t.evicted.first)
	}
	return dst
}

// Next returns when Tick is due. ok is false if no timeout is pending.
func (t *Table) Next() (at kv.Mono, ok bool) {
	due := func(m kv.Mono) {
		if !ok || m < at {
			at, ok = m, true
		}
	}
	if t.transit.len > 0 {
		due(t.entries[t.transit.first].since.Add(t.cfg.Transit))
	}
	if t.evicted.len > 0 {
		due(t.entries[t.evicted.first].since.Add(t.cfg.Retain))
	}
	if len(t.doubts) > 0 {
		due(t.movers[t.doubts[0]].since.Add(t.cfg.Doubt))
	}
	return at, ok
}

// SuspectWorker records that events of w may have been lost: blocks which only w vouches for are removed
// from the prefix index. A restart or death of a worker is no reason to call it, because the pools still
// exist.
func (t *Table) Doubt(now kv.Mono, w kv.Worker, dst []Effect) []Effect {
	m, ok := t.byName[w]
	if !ok {
		return dst
	}
	found := false
	for at := t.movers[m].own.first; at != none; at = t.entries[at].own.next {
		e := &t.entries[at]
		if e.state != kv.Pooled {
			continue
		}
		found = true
		dst = t.displace(at, dst)
		t.uncertain(e, true)
		t.setParked(e, false)
	}
	if found {
		t.settle(m)
		t.movers[m].doubt, t.movers[m].since = true, now
		t.doubts = append(t.doubts, m)
	}
	return dst
}

// TrustWorker records that no event of w is missing any more.
func (t *Table) Trust(w kv.Worker, dst []Effect) []Effect {
	m, ok := t.byName[w]
	if !ok || !t.movers[m].doubt {
		return dst
	}
	t.settle(m)
	for at := t.movers[m].own.first; at != none; at = t.entries[at].own.next {
		if e := &t.entries[at]; e.doubt {
			t.uncertain(e, false)
			dst = effect(dst, Place, t.pools[e.pool].id, e.seq)
		}
	}
	return dst
}

// ForgetLost records that the missing events of w will not arrive: suspect blocks are forgotten until they
// are reported again.
func (t *Table) Lost(w kv.Worker) {
	if m, ok := t.byName[w]; ok {
		t.counts.Forgotten += uint64(t.forgetDoubtful(m))
	}
}

// clearSuspect ends the suspicion of a mover, not that of its blocks.
func (t *Table) settle(m int32) {
	if t.movers[m].doubt {
		t.movers[m].doubt = false
		t.doubts = slices.DeleteFunc(t.doubts, func(o int32) bool { return o == m })
	}
}

// forgetSuspects forgets the suspect blocks of a mover, and returns their number.
func (t *Table) forgetDoubtful(m int32) int {
	t.settle(m)
	n := 0
	for at := t.movers[m].own.first; at != none; {
		next := t.entries[at].own.next
		if t.entries[at].doubt {
			t.forget(at)
			n++
		}
		at = next
	}
	return n
}

// RetryParked finds parked blocks among those of a Stored event which the prefix index has applied, and
// appends their placement to dst.
func (t *Table) Stored(ev *kv.Event, dst []Effect) []Effect {
	if t.parked == 0 || ev.Kind != kv.Stored {
		return dst
	}
	seq := ev.Parent
	for i, b := range ev.Blocks {
		seq = kv.Extend(seq, ev.Start+uint32(i), b)
		at, ok := t.where[seq]
		if !ok {
			continue
		}
		for ; at != none; at = t.entries[at].other {
			if e := &t.entries[at]; e.parked {
				t.setParked(e, false)
				dst = effect(dst, Place, t.pools[e.pool].id, seq)
			}
		}
	}
	return dst
}
