package residency

import "penstock/core/kv"

// listLink holds the neighbours of an entry in a list.
type link struct{ prev, next place }

// entryList is a list of entries, linked by one of their links.
type list struct {
	first, last place
	len         int
}

func newList() list { return list{first: none, last: none} }

// linkSelector selects the link of a list.
type which func(*entry) *link

func ring(e *entry) *link { return &e.ring }
func own(e *entry) *link  { return &e.own }

// pushEntry appends an entry to l.
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

// removeEntry removes an entry from l, which contains it.
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

// stateList returns the list which holds an entry because of its state.
func (t *Table) stateList(e *entry) *list {
	switch e.state {
	case kv.InTransit:
		return &t.transit
	case kv.Pooled:
		return &t.pools[e.pool].pooled
	}
	return &t.evicted
}
