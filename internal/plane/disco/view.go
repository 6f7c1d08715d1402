package disco

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// view is what one watcher knows of the instances of one kind. It is a machine:
// the watch tells it what the store said and what time it is, and asks for the
// set and for what is to be removed.
//
// An instance is shown while its record and a liveness key are there. When
// either vanishes it is gone at once, unless that may be the store's doing: what
// is missing when contact returns, and any liveness key that runs out within one
// TTL afterwards, leaves the instance shown as unconfirmed for one TTL more. A
// record that is removed in plain sight is gone at once in any case: somebody
// released it.
//
// Whose liveness key it is does not matter: when a newer life takes over, its
// key comes before its record, and the old one is shown until then. A record that
// cannot be read changes nothing: what was known stays.
//
// A liveness key that is there but is not refreshed is overdue: the store has lost
// its expiry. The view reports it, and the store, asked to remove that revision,
// decides whether it is dead: it may hold a refresh that the watcher has not read.
type view struct {
	ttl      time.Duration
	entries  map[kv.WorkerID]*viewEntry
	contact  contact
	complete bool // everything was read once
	// trustless is until when a liveness key that runs out proves nothing.
	trustless time.Time
	// touched is set by whatever may change set, next or garbage; refreshes of
	// what is confirmed do not. The watch resets it.
	touched bool
}

// contact is the state of the connection to the store.
type contact uint8

const (
	never   contact = iota // nothing was ever read
	lost                   // what is shown is what was last known
	reading                // the store is telling everything that it has
	live
)

// viewEntry is one instance. It exists while it is shown or its record exists.
type viewEntry struct {
	instance Instance
	revision uint64 // of the record
	record   bool   // the record is there; while reading: was seen
	alive    bool   // the liveness key is there; while reading: was seen
	shown    bool
	doubt    bool      // shown as unconfirmed
	deadline time.Time // of the doubt; zero while contact is lost
	idle     time.Time // since when a record is without liveness key

	// lease is the revision of the liveness key, 0 if the store has none and
	// judges liveness itself; renewed is when the watch first read that revision,
	// or when contact with the store returned.
	lease   uint64
	renewed time.Time
}

func newView(ttl time.Duration) *view {
	return &view{ttl: ttl, entries: make(map[kv.WorkerID]*viewEntry)}
}

// begin notes that the store begins to tell everything.
func (v *view) begin() {
	v.disconnect()
	v.contact = reading
}

// disconnect notes that the store is out of reach.
func (v *view) disconnect() {
	for _, e := range v.entries {
		e.record, e.alive = false, false
		e.doubt, e.deadline = e.shown, time.Time{}
	}
	v.touched = true
	if v.contact != never {
		v.contact = lost
	}
}

// synced notes that the store has told everything. The first time what has no
// liveness key is dead; after an interruption it gets one more TTL.
func (v *view) synced(now time.Time) {
	v.touched = true
	v.contact = live
	if v.complete {
		v.trustless = now.Add(v.ttl)
	}
	v.complete = true
	for id, e := range v.entries {
		e.idle, e.renewed = now, now
		v.settle(id, e, now)
	}
}

// put notes a record.
func (v *view) put(now time.Time, in Instance, revision uint64) {
	e := v.entry(in.ID)
	e.instance, e.revision, e.record = in, revision, true
	if !e.alive {
		e.idle = now
	}
	v.touched = true
	v.settle(in.ID, e, now)
}

// keep notes a record that cannot be read: what was known of it stays.
func (v *view) keep(now time.Time, id kv.WorkerID) {
	e := v.entries[id]
	if e == nil || e.instance.Kind == "" {
		return // nothing was known
	}
	e.record, v.touched = true, true
	v.settle(id, e, now)
}

// removed notes that a record is gone because somebody removed it.
func (v *view) removed(id kv.WorkerID) {
	e := v.entries[id]
	if e == nil {
		return
	}
	v.touched = true
	e.record, e.shown, e.doubt, e.deadline = false, false, false, time.Time{}
	v.discard(id, e)
}

// refresh notes a liveness key of the given revision. It comes before the record
// of a new instance, and again and again afterwards. Revision 0 is never overdue.
func (v *view) refresh(now time.Time, id kv.WorkerID, revision uint64) {
	e := v.entry(id)
	e.lease, e.renewed = revision, now
	if e.alive && e.record && !e.doubt {
		return // by far the most frequent case
	}
	e.alive, v.touched = true, true
	v.settle(id, e, now)
}

// expired notes that a liveness key is gone.
func (v *view) expired(now time.Time, id kv.WorkerID) {
	e := v.entries[id]
	if e == nil {
		return
	}
	if e.alive {
		e.alive, e.idle = false, now
	}
	v.touched = true
	v.settle(id, e, now)
}

// settle decides how an entry is shown; only what a live store says counts,
// except that what it confirms while reading is confirmed.
func (v *view) settle(id kv.WorkerID, e *viewEntry, now time.Time) {
	switch {
	case e.record && e.alive:
		e.shown, e.doubt = true, false
	case v.contact != live || !e.shown:
	case e.doubt && !e.deadline.IsZero(): // decided already
	case now.Before(v.trustless):
		e.doubt, e.deadline = true, now.Add(v.ttl)
	default:
		e.shown, e.doubt = false, false
	}
	if !e.doubt {
		e.deadline = time.Time{}
	}
	v.discard(id, e)
}

// tick drops what has been in doubt for too long.
func (v *view) tick(now time.Time) {
	for id, e := range v.entries {
		if e.doubt && !e.deadline.IsZero() && !now.Before(e.deadline) {
			e.shown, e.doubt, e.deadline = false, false, time.Time{}
			v.touched = true
			v.discard(id, e)
		}
	}
}

// next returns when tick, garbage or overdue will have something to do; zero if never.
func (v *view) next() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, e := range v.entries {
		if e.doubt && !e.deadline.IsZero() {
			earlier(e.deadline)
		}
		if v.isGarbage(e) {
			earlier(e.idle.Add(2 * v.ttl))
		}
		if v.isLeased(e) {
			earlier(e.renewed.Add(v.overdueAfter()))
		}
	}
	return next
}

// deadRecord is a record whose holder is gone.
type deadRecord struct {
	id       kv.WorkerID
	revision uint64
}

// garbage returns the records that have had no liveness key for two TTLs, in
// order, each once: someone has to remove what a crashed process left behind.
func (v *view) garbage(now time.Time) []deadRecord {
	var dead []deadRecord
	for id, e := range v.entries {
		if v.isGarbage(e) && !now.Before(e.idle.Add(2*v.ttl)) {
			dead = append(dead, deadRecord{id, e.revision})
			e.idle, v.touched = now, true // should the removal fail
		}
	}
	slices.SortFunc(dead, func(a, b deadRecord) int { return cmp.Compare(a.id, b.id) })
	return dead
}

func (v *view) isGarbage(e *viewEntry) bool {
	return v.contact == live && e.record && !e.alive
}

// deadLease is a liveness key that is no longer refreshed.
type deadLease struct {
	id       kv.WorkerID
	revision uint64
}

// overdueAfter is how long a liveness key may stay unchanged: the three refreshes
// of a TTL, after which the store should have removed it, and half as much again,
// so that it can.
func (v *view) overdueAfter() time.Duration { return v.ttl * 3 / 2 }

// overdue returns the liveness keys that the store should have removed, in order,
// each once in that time: watchers remove those that it has no expiry for.
func (v *view) overdue(now time.Time) []deadLease {
	var dead []deadLease
	for id, e := range v.entries {
		if v.isLeased(e) && !now.Before(e.renewed.Add(v.overdueAfter())) {
			dead = append(dead, deadLease{id, e.lease})
			e.renewed, v.touched = now, true // should the removal fail
		}
	}
	slices.SortFunc(dead, func(a, b deadLease) int { return cmp.Compare(a.id, b.id) })
	return dead
}

func (v *view) isLeased(e *viewEntry) bool {
	return v.contact == live && e.alive && e.lease != 0
}

// set returns what is shown, ordered by ID.
func (v *view) set() []Instance {
	var set []Instance
	for _, e := range v.entries {
		if e.shown {
			in := e.instance
			in.Unconfirmed = e.doubt
			set = append(set, in)
		}
	}
	slices.SortFunc(set, func(a, b Instance) int { return cmp.Compare(a.ID, b.ID) })
	return cloneSet(set)
}

func (v *view) entry(id kv.WorkerID) *viewEntry {
	e := v.entries[id]
	if e == nil {
		e = &viewEntry{}
		v.entries[id] = e
	}
	return e
}

// discard forgets an entry of which nothing is left.
func (v *view) discard(id kv.WorkerID, e *viewEntry) {
	if !e.shown && !e.record && !e.alive {
		delete(v.entries, id)
	}
}

// Check states the invariants.
func (v *view) Check() error {
	for id, e := range v.entries {
		switch {
		case e.doubt && !e.shown:
			return fmt.Errorf("instance %d is in doubt and not shown", id)
		case !e.deadline.IsZero() && !e.doubt:
			return fmt.Errorf("instance %d has a deadline and no doubt", id)
		case v.contact == live && e.doubt && e.deadline.IsZero():
			return fmt.Errorf("instance %d would stay in doubt for ever", id)
		case v.contact == live && e.shown && !e.doubt && !(e.record && e.alive):
			return fmt.Errorf("instance %d is shown as confirmed without record and liveness key", id)
		case v.contact == live && !e.shown && !e.record && !e.alive:
			return fmt.Errorf("instance %d is kept for nothing", id)
		case e.shown && e.instance.ID != id:
			return fmt.Errorf("instance %d is shown as %d", id, e.instance.ID)
		}
	}
	return nil
}
