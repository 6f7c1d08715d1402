package residency

import (
	"errors"
	"fmt"

	"penstock/core/kv"
)

// Check returns the first broken invariant, nil if all hold. It is for tests: it walks everything.
func (t *Table) Check() error {
	for _, check := range []func() error{t.checkLists, t.checkChains, t.checkMovers, t.checkPools} {
		if err := check(); err != nil {
			return fmt.Errorf("residency: %w", err)
		}
	}
	return nil
}

// walkList calls visit with the entries of l in order.
func (t *Table) walk(l *list, of which, visit func(place, *entry) error) error {
	n, last := 0, none
	for at := l.first; at != none; at = of(&t.entries[at]).next {
		e := &t.entries[at]
		if of(e).prev != last || n > len(t.entries) {
			return fmt.Errorf("entry %d is linked one way only", at)
		}
		if err := visit(at, e); err != nil {
			return err
		}
		last = at
		n++
	}
	if n != l.len || l.last != last {
		return fmt.Errorf("a list of %d counts %d", n, l.len)
	}
	return nil
}

// checkLists: every entry is in the list of its state, in order of time, and counted; the others are
// vacant.
func (t *Table) checkLists() error {
	total, parked, doubtful, pooled := 0, 0, 0, 0
	ordered := func(state kv.PoolState, pool int32) func(place, *entry) error {
		var last kv.Mono
		first := true
		return func(at place, e *entry) error {
			if e.state != state || pool >= 0 && e.pool != pool || !first && e.since < last {
				return fmt.Errorf("entry %d is %v since %d among those that are %v since %d", at, e.state, e.since, state, last)
			}
			if (e.doubt || e.parked) && state != kv.Pooled || e.doubt && e.parked {
				return fmt.Errorf("entry %d is %v, in doubt %t, parked %t", at, e.state, e.doubt, e.parked)
			}
			total++
			if e.parked {
				parked++
			}
			if e.doubt {
				doubtful++
			}
			last, first = e.since, false
			return nil
		}
	}
	errs := []error{
		t.walk(&t.transit, ring, ordered(kv.InTransit, -1)),
		t.walk(&t.evicted, ring, ordered(kv.Evicted, -1)),
	}
	for i := range t.pools {
		if p := &t.pools[i]; p.used {
			errs = append(errs, t.walk(&p.pooled, ring, ordered(kv.Pooled, int32(i))))
			pooled += p.pooled.len
		}
	}
	moving := make([]int, len(t.pools))
	for i := range t.entries {
		if e := &t.entries[i]; e.state == kv.InTransit {
			moving[e.pool]++
		}
	}
	for i := range t.pools {
		if p := &t.pools[i]; p.moving != moving[i] {
			errs = append(errs, fmt.Errorf("%d blocks are on their way to pool %d, %d are counted", moving[i], p.id, p.moving))
		}
	}
	vacant := 0
	for at := t.vacant; at != none; at = t.entries[at].other {
		vacant++
	}
	switch {
	case errors.Join(errs...) != nil:
		return errors.Join(errs...)
	case total+vacant != len(t.entries):
		return fmt.Errorf("%d entries and %d vacant ones are not %d", total, vacant, len(t.entries))
	case pooled != t.pooled || parked != t.parked || doubtful != t.doubtful:
		return fmt.Errorf("%d pooled, %d parked, %d in doubt; %d, %d, %d are counted", pooled, parked, doubtful, t.pooled, t.parked, t.doubtful)
	case t.transit.len+t.pooled > t.cfg.MaxBlocks || t.evicted.len > t.cfg.MaxEvicted:
		return fmt.Errorf("%d blocks in transit, %d pooled, %d evicted are too many", t.transit.len, t.pooled, t.evicted.len)
	}
	return nil
}

// checkChains: every entry is in the chain of its block, once per pool, in order.
func (t *Table) checkChains() error {
	n := 0
	for seq, at := range t.where {
		pools := map[int32]bool{}
		for last := none; at != none; last, at = at, t.entries[at].other {
			e := &t.entries[at]
			if e.seq != seq || e.state == 0 || pools[e.pool] || last != none && !t.later(&t.entries[last], e) {
				return fmt.Errorf("entry %d is not in its place among those of block %x", at, seq)
			}
			pools[e.pool] = true
			n++
		}
	}
	if want := t.transit.len + t.evicted.len + t.pooled; n != want {
		return fmt.Errorf("%d entries are found by block, %d are there", n, want)
	}
	return nil
}

// checkMovers: every entry is in the list of its mover, which byName finds; blocks are suspect only while
// their mover is.
func (t *Table) checkMovers() error {
	n, doubts := 0, 0
	for i := range t.movers {
		m := &t.movers[i]
		if m.own.len == 0 {
			continue
		}
		if t.byName[m.worker] != int32(i) {
			return fmt.Errorf("mover %v is not known by its name", m.worker)
		}
		if m.doubt {
			doubts++
		}
		err := t.walk(&m.own, own, func(at place, e *entry) error {
			n++
			if e.mover != int32(i) || e.doubt && !m.doubt {
				return fmt.Errorf("entry %d of mover %d is with %d; in doubt %t, mover %t", at, e.mover, i, e.doubt, m.doubt)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i, m := range t.doubts {
		if !t.movers[m].doubt || i > 0 && t.movers[m].since < t.movers[t.doubts[i-1]].since {
			return fmt.Errorf("mover %d is not in its place among those in doubt", m)
		}
	}
	switch want := t.transit.len + t.evicted.len + t.pooled; {
	case n != want:
		return fmt.Errorf("%d entries are with movers, %d are there", n, want)
	case doubts != len(t.doubts):
		return fmt.Errorf("%d movers are in doubt, %d in the list of them", doubts, len(t.doubts))
	case len(t.byName)+len(t.idle) != len(t.movers):
		return fmt.Errorf("%d movers and %d vacant are not %d", len(t.byName), len(t.idle), len(t.movers))
	}
	return nil
}

// checkPools: a slot is used if its pool has entries or a known access list, and no pool is over capacity.
func (t *Table) checkPools() error {
	blocks := make([]int, len(t.pools))
	for _, at := range t.where {
		for ; at != none; at = t.entries[at].other {
			blocks[t.entries[at].pool]++
		}
	}
	used := 0
	for i := range t.pools {
		p := &t.pools[i]
		if p.used {
			used++
		}
		switch {
		case p.blocks != blocks[i]:
			return fmt.Errorf("pool %d has %d blocks, counts %d", p.id, blocks[i], p.blocks)
		case p.used != (p.blocks > 0 || p.said):
			return fmt.Errorf("pool %d with %d blocks is used: %t", p.id, p.blocks, p.used)
		case p.used && t.byID[p.id] != int32(i):
			return fmt.Errorf("pool %d is not known by its id", p.id)
		case t.cfg.Capacity > 0 && p.pooled.len > t.cfg.Capacity:
			return fmt.Errorf("pool %d has %d blocks in it, more than its capacity", p.id, p.pooled.len)
		}
	}
	if used != len(t.byID) || used > t.cfg.MaxPools {
		return fmt.Errorf("%d pools are used, %d known by id", used, len(t.byID))
	}
	return nil
}
