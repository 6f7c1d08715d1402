package disco

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// instanceView is what one watcher knows about the instances of one kind. It is a state machine:
// the watch feeds it the changes of the store and the time, and asks it for the current set and for
// keys to remove.
//
// An instance is shown while it has a record and a liveness key. When either vanishes, the instance
// is removed at once, unless the store may be the cause: if a record or key is missing after a
// reconnection, or a liveness key expires within one TTL after it, the instance stays shown as
// unconfirmed for one more TTL. A record whose removal was observed is removed at once in any case,
// because it was released.
//
// The holder of the liveness key does not matter: a newer incarnation writes its key before its
// record, and the old one is shown until then. An unreadable record changes nothing: the last known
// state stays.
//
// A liveness key which exists but is not refreshed is overdue: the store has lost its expiry. The
// view reports it, and the watch asks the store to remove that revision. The store then decides
// whether the instance is dead, because it may hold a refresh which the watcher has not read.
//
// The states of the connection, see storeContact:
//
//	contactNever    nothing read yet          startReading -> contactReading
//	contactReading  the store sends all keys  finishReading -> contactLive
//	contactLive     changes arrive            markDisconnected -> contactLost
//	contactLost     the last set is kept      startReading -> contactReading
type view struct {
	ttl      time.Duration
	entries  map[kv.WorkerID]*viewEntry
	contact  contact
	complete bool // everything was read at least once
	// untrustedUntil: before this time an expired liveness key does not prove that its instance is
	// dead.
	trustless time.Time
	// changed is set by every input that may change shownInstances, nextDeadline or takeGarbage;
	// refreshes of confirmed instances do not set it. The watch resets it.
	touched bool
}

// storeContact is the state of the connection to the store.
type contact uint8

const (
	never   contact = iota // nothing was ever read
	lost                   // the last known set is shown
	reading                // the store is sending everything it has
	live
)

// viewEntry is one instance. It exists while the instance is shown or has a record or a liveness
// key.
type viewEntry struct {
	instance Instance
	revision uint64 // of the record
	record   bool   // the record exists; while reading: was seen
	alive    bool   // the liveness key exists; while reading: was seen
	shown    bool
	doubt    bool      // shown as unconfirmed
	deadline time.Time // when an unconfirmed instance is dropped; zero while contact is lost
	idle     time.Time // since when the record has no liveness key

	// leaseRevision is the revision of the liveness key, or 0 if the store has no such key and
	// judges liveness itself. renewedAt is when the watch first read that revision, or when contact
	// with the store returned.
	lease   uint64
	renewed time.Time
}

func newView(ttl time.Duration) *view {
	return &view{ttl: ttl, entries: make(map[kv.WorkerID]*viewEntry)}
}

// startReading records that the store starts to send everything.
func (v *view) begin() {
	v.disconnect()
	v.contact = reading
}

// markDisconnected records that the store is unreachable.
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

// finishReading records that the store has sent everything. The first time, an instance without
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

// putRecord records a new or changed record.
func (v *view) put(now time.Time, in Instance, revision uint64) {
	e := v.entry(in.ID)
	e.instance, e.revision, e.record = in, revision, true
	if !e.alive {
		e.idle = now
	}
	v.touched = true
	v.settle(in.ID, e, now)
}

// keepRecord records that a record is unreadable: its last known content stays.
func (v *view) keep(now time.Time, id kv.WorkerID) {
	e := v.entries[id]
	if e == nil || e.instance.Kind == "" {
		return // no earlier content is known
	}
	e.record, v.touched = true, true
	v.settle(id, e, now)
}

// removeRecord records that a record was removed explicitly.
func (v *view) removed(id kv.WorkerID) {
	e := v.entries[id]
	if e == nil {
		return
	}
	v.touched = true
	e.record, e.shown, e.doubt, e.deadline = false, false, false, time.Time{}
	v.discard(id, e)
}

// refreshLease records a liveness key of the given revision. For a new instance it precedes the
// record, and it repeats with each refresh. Revision 0 is never overdue.
func (v *view) refresh(now time.Time, id kv.WorkerID, revision uint64) {
	e := v.entry(id)
	e.lease, e.renewed = revision, now
	if e.alive && e.record && !e.doubt {
		return // by far the most frequent case
	}
	e.alive, v.touched = true, true
	v.settle(id, e, now)
}

// expireLease records that a liveness key is gone.
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

// updateEntry decides how an entry is shown. Only a live store's data counts, except that a record
// and key seen while reading confirm the instance.
func (v *view) settle(id kv.WorkerID, e *viewEntry, now time.Time) {
	switch {
	case e.record && e.alive:
		e.shown, e.doubt = true, false
	case v.contact != live || !e.shown:
	case e.doubt && !e.deadline.IsZero(): // already decided
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

// dropUnconfirmed removes the instances which have been unconfirmed for too long.
func (v *view) tick(now time.Time) {
	for id, e := range v.entries {
		if e.doubt && !e.deadline.IsZero() && !now.Before(e.deadline) {
			e.shown, e.doubt, e.deadline = false, false, time.Time{}
			v.touched = true
			v.discard(id, e)
		}
	}
}

// nextDeadline returns when dropUnconfirmed, takeGarbage or takeOverdue will have work; zero if
// never.
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

// deadRecord is a record whose process is dead.
type deadRecord struct {
	id       kv.WorkerID
	revision uint64
}

// takeGarbage returns the records which have had no liveness key for two TTLs, ordered by id, each
// once: watchers remove what crashed processes left behind.
func (v *view) garbage(now time.Time) []deadRecord {
	var dead []deadRecord
	for id, e := range v.entries {
		if v.isGarbage(e) && !now.Before(e.idle.Add(2*v.ttl)) {
			dead = append(dead, deadRecord{id, e.revision})
			e.idle, v.touched = now, true // retry later in case the removal fails
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

// overdueAfter is how long a liveness key may stay unchanged: the three refreshes of a TTL, after
// which the store should have removed it, and half a TTL more for the store to do so.
func (v *view) overdueAfter() time.Duration { return v.ttl * 3 / 2 }

// takeOverdue returns the liveness keys which the store should have removed, ordered by id, each
// once per overdueAfter: watchers remove the keys whose expiry the store has lost.
func (v *view) overdue(now time.Time) []deadLease {
	var dead []deadLease
	for id, e := range v.entries {
		if v.isLeased(e) && !now.Before(e.renewed.Add(v.overdueAfter())) {
			dead = append(dead, deadLease{id, e.lease})
			e.renewed, v.touched = now, true // retry later in case the removal fails
		}
	}
	slices.SortFunc(dead, func(a, b deadLease) int { return cmp.Compare(a.id, b.id) })
	return dead
}

func (v *view) isLeased(e *viewEntry) bool {
	return v.contact == live && e.alive && e.lease != 0
}

// shownInstances returns the shown instances, ordered by ID.
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

// discardEmpty deletes an entry which has no content left.
func (v *view) discard(id kv.WorkerID, e *viewEntry) {
	if !e.shown && !e.record && !e.alive {
		delete(v.entries, id)
	}
}

// Check verifies the invariants.
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
