package residency

import (
	"slices"

	"penstock/core/kv"
)

// Tick does what time alone brings about and appends to dst what is to be changed in the
// index.
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

// Next returns when Tick has something to do next; ok is false if time alone changes
// nothing.
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

// Doubt says that events of w may have been lost: what it alone vouches for leaves the
// index. That a worker restarted or died is no reason for doubt: its pools are still there.
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

// Trust says that nothing of w was lost after all, or that what was lost has come.
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

// Lost says that what was missing of w will not come: what is in doubt is forgotten, until
// it is said again.
func (t *Table) Lost(w kv.Worker) {
	if m, ok := t.byName[w]; ok {
		t.counts.Forgotten += uint64(t.forgetDoubtful(m))
	}
}

// settle ends the doubt about a mover, not that about its blocks.
func (t *Table) settle(m int32) {
	if t.movers[m].doubt {
		t.movers[m].doubt = false
		t.doubts = slices.DeleteFunc(t.doubts, func(o int32) bool { return o == m })
	}
}

// forgetDoubtful forgets the blocks of a mover that are in doubt, and returns how many
// there were.
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

// Stored looks for blocks that wait for their place among those of a Stored event,
// which the index has applied, and appends to dst what is to be placed now.
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
