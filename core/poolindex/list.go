package poolindex

import "penstock/core/kv"

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
