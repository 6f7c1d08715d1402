package residency

import "penstock/core/kv"

// link are the neighbours of an entry in a list.
type link struct{ prev, next place }

// list is a list of entries, linked by one of their links.
type list struct {
	first, last place
	len         int
}

func newList() list { return list{first: none, last: none} }

// which picks the link of a list: ring or own.
type which func(*entry) *link

func ring(e *entry) *link { return &e.ring }
func own(e *entry) *link  { return &e.own }

// push adds an entry at the end of l.
func (t *Table) push(l *list, at place, of which) {
	*of(&t.entries[at]) = link{prev: l.last, next: none}
	if l.last == none {
		l.first = at
	} else {
		of(&t.entries[l.last]).next = at
	}
	l.last = at
	l.len++
}

// take removes an entry from l, which it is in.
func (t *Table) take(l *list, at place, of which) {
	k := of(&t.entries[at])
	if k.prev == none {
		l.first = k.next
	} else {
		of(&t.entries[k.prev]).next = k.next
	}
	if k.next == none {
		l.last = k.prev
	} else {
		of(&t.entries[k.next]).prev = k.prev
	}
	*k = link{none, none}
	l.len--
}

// stateList returns the list that an entry is in by its state.
func (t *Table) stateList(e *entry) *list {
	switch e.state {
	case kv.InTransit:
		return &t.transit
	case kv.Pooled:
		return &t.pools[e.pool].pooled
	}
	return &t.evicted
}
