package poolindex

import (
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Check returns the first broken invariant, nil if all hold. It is for tests: it walks everything.
func (t *Table) Check() error {
	for _, check := range []func() error{t.checkLists, t.checkChains, t.checkMovers, t.checkPools, t.checkListsOfBlocks} {
		if err := check(); err != nil {
			return fmt.Errorf("poolindex: %w", err)
		}
	}
	return nil
}

// walkList calls visit with the entries of l in order.
func (t *Table) walkList(l *entryList, of linkSelector, visit func(entryID, *poolEntry) error) error {
	n, last := 0, noEntry
	for at := l.first; at != noEntry; at = of(&t.entries[at]).next {
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
	ordered := func(state kv.PoolState, pool int32) func(entryID, *poolEntry) error {
		var last kv.Mono
		first := true
		return func(at entryID, e *poolEntry) error {
			if e.state != state || pool >= 0 && e.pool != pool || !first && e.since < last {
				return fmt.Errorf("entry %d is %v since %d among those that are %v since %d", at, e.state, e.since, state, last)
			}
			if (e.suspect || e.parked) && state != kv.Pooled || e.suspect && e.parked {
				return fmt.Errorf("entry %d is %v, in doubt %t, parked %t", at, e.state, e.suspect, e.parked)
			}
			total++
			if e.parked {
				parked++
			}
			if e.suspect {
				doubtful++
			}
			last, first = e.since, false
			return nil
		}
	}
	errs := []error{
		t.walkList(&t.transit, stateLinkOf, ordered(kv.InTransit, -1)),
		t.walkList(&t.evicted, stateLinkOf, ordered(kv.Evicted, -1)),
	}
	for i := range t.pools {
		if p := &t.pools[i]; p.used {
			errs = append(errs, t.walkList(&p.pooled, stateLinkOf, ordered(kv.Pooled, int32(i))))
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
		if p := &t.pools[i]; p.inTransit != moving[i] {
			errs = append(errs, fmt.Errorf("%d blocks are on their way to pool %d, %d are counted", moving[i], p.id, p.inTransit))
		}
	}
	vacant := 0
	for at := t.freeEntry; at != noEntry; at = t.entries[at].other {
		vacant++
	}
	switch {
	case errors.Join(errs...) != nil:
		return errors.Join(errs...)
	case total+vacant != len(t.entries):
		return fmt.Errorf("%d entries and %d vacant ones are not %d", total, vacant, len(t.entries))
	case pooled != t.pooledCount || parked != t.parkedCount || doubtful != t.suspectCount:
		return fmt.Errorf("%d pooled, %d parked, %d in doubt; %d, %d, %d are counted", pooled, parked, doubtful, t.pooledCount, t.parkedCount, t.suspectCount)
	case t.transit.len+t.pooledCount > t.cfg.MaxBlocks || t.evicted.len > t.cfg.MaxEvicted:
		return fmt.Errorf("%d blocks in transit, %d pooled, %d evicted are too many", t.transit.len, t.pooledCount, t.evicted.len)
	}
	return nil
}

// checkChains: every entry is in the chain of its block, once per pool, in order.
func (t *Table) checkChains() error {
	n := 0
	for seq, at := range t.bySeq {
		pools := map[int32]bool{}
		for last := noEntry; at != noEntry; last, at = at, t.entries[at].other {
			e := &t.entries[at]
			if e.seq != seq || e.state == 0 || pools[e.pool] || last != noEntry && !t.precedes(&t.entries[last], e) {
				return fmt.Errorf("entry %d is not in its place among those of block %x", at, seq)
			}
			pools[e.pool] = true
			n++
		}
	}
	if want := t.transit.len + t.evicted.len + t.pooledCount; n != want {
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
		if m.entries.len == 0 {
			continue
		}
		if t.byWorker[m.worker] != int32(i) {
			return fmt.Errorf("mover %v is not known by its name", m.worker)
		}
		if m.suspect {
			doubts++
		}
		err := t.walkList(&m.entries, moverLinkOf, func(at entryID, e *poolEntry) error {
			n++
			if e.mover != int32(i) || e.suspect && !m.suspect {
				return fmt.Errorf("entry %d of mover %d is with %d; in doubt %t, mover %t", at, e.mover, i, e.suspect, m.suspect)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i, m := range t.suspects {
		if !t.movers[m].suspect || i > 0 && t.movers[m].since < t.movers[t.suspects[i-1]].since {
			return fmt.Errorf("mover %d is not in its place among those in doubt", m)
		}
	}
	switch want := t.transit.len + t.evicted.len + t.pooledCount; {
	case n != want:
		return fmt.Errorf("%d entries are with movers, %d are there", n, want)
	case doubts != len(t.suspects):
		return fmt.Errorf("%d movers are in doubt, %d in the list of them", doubts, len(t.suspects))
	case len(t.byWorker)+len(t.freeMovers) != len(t.movers):
		return fmt.Errorf("%d movers and %d vacant are not %d", len(t.byWorker), len(t.freeMovers), len(t.movers))
	}
	return nil
}

// checkListsOfBlocks: every access list has as many blocks as it counts, all of its pool and not evicted; lists
// without blocks are waiting to be dropped.
func (t *Table) checkListsOfBlocks() error {
	blocks := make([]int, len(t.lists))
	for i := range t.entries {
		e := &t.entries[i]
		if e.state == 0 || e.list == noList {
			continue
		}
		if e.state == kv.Evicted || t.lists[e.list].share.Pool() != t.pools[e.pool].id {
			return fmt.Errorf("entry %d, which is %v in pool %d, has an access list of %x", i, e.state, t.pools[e.pool].id, t.lists[e.list].share)
		}
		blocks[e.list]++
	}
	used := 0
	for i := range t.lists {
		l := &t.lists[i]
		if l.share == 0 {
			continue
		}
		used++
		if l.blocks != blocks[i] || l.blocks == 0 && !slices.Contains(t.unusedLists, listID(i)) || t.byList[listKey(l.share.Pool(), l.workers)] != listID(i) {
			return fmt.Errorf("access list %x has %d blocks, counts %d", l.share, blocks[i], l.blocks)
		}
	}
	if used != len(t.byList) || used+len(t.freeLists) != len(t.lists) {
		return fmt.Errorf("%d access lists and %d vacant ones, of %d; %d are found", used, len(t.freeLists), len(t.lists), len(t.byList))
	}
	return nil
}

// checkPools: a slot is used if its pool has entries, a known access list or attached workers, and no pool is over capacity.
func (t *Table) checkPools() error {
	blocks := make([]int, len(t.pools))
	for _, at := range t.bySeq {
		for ; at != noEntry; at = t.entries[at].other {
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
		case p.used != (p.blocks > 0 || p.accessKnown || len(p.attached) > 0):
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
