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
type instanceView struct {
	ttl      time.Duration
	entries  map[kv.WorkerID]*viewEntry
	contact  storeContact
	complete bool // everything was read at least once
	// untrustedUntil: before this time an expired liveness key does not prove that its instance is
	// dead.
	untrustedUntil time.Time
	// changed is set by every input that may change shownInstances, nextDeadline or takeGarbage;
	// refreshes of confirmed instances do not set it. The watch resets it.
	changed bool
}

// storeContact is the state of the connection to the store.
type storeContact uint8

const (
	contactNever   storeContact = iota // nothing was ever read
	contactLost                        // the last known set is shown
	contactReading                     // the store is sending everything it has
	contactLive
)

// viewEntry is one instance. It exists while the instance is shown or has a record or a liveness
// key.
type viewEntry struct {
	instance       Instance
	revision       uint64 // of the record
	hasRecord      bool   // the record exists; while reading: was seen
	hasLease       bool   // the liveness key exists; while reading: was seen
	shown          bool
	unconfirmed    bool      // shown as unconfirmed
	deadline       time.Time // when an unconfirmed instance is dropped; zero while contact is lost
	leaselessSince time.Time // since when the record has no liveness key

	// leaseRevision is the revision of the liveness key, or 0 if the store has no such key and
	// judges liveness itself. renewedAt is when the watch first read that revision, or when contact
	// with the store returned.
	leaseRevision uint64
	renewedAt     time.Time
}

func newInstanceView(ttl time.Duration) *instanceView {
	return &instanceView{ttl: ttl, entries: make(map[kv.WorkerID]*viewEntry)}
}

// startReading records that the store starts to send everything.
func (v *instanceView) startReading() {
	v.markDisconnected()
	v.contact = contactReading
}

// markDisconnected records that the store is unreachable.
func (v *instanceView) markDisconnected() {
	for _, e := range v.entries {
		e.hasRecord, e.hasLease = false, false
		e.unconfirmed, e.deadline = e.shown, time.Time{}
	}
	v.changed = true
	if v.contact != contactNever {
		v.contact = contactLost
	}
}

// finishReading records that the store has sent everything. The first time, an instance without
// liveness key is dead; after an interruption it gets one more TTL.
func (v *instanceView) finishReading(now time.Time) {
	v.changed = true
	v.contact = contactLive
	if v.complete {
		v.untrustedUntil = now.Add(v.ttl)
	}
	v.complete = true
	for id, e := range v.entries {
		e.leaselessSince, e.renewedAt = now, now
		v.updateEntry(id, e, now)
	}
}

// putRecord records a new or changed record.
func (v *instanceView) putRecord(now time.Time, in Instance, revision uint64) {
	e := v.ensureEntry(in.ID)
	e.instance, e.revision, e.hasRecord = in, revision, true
	if !e.hasLease {
		e.leaselessSince = now
	}
	v.changed = true
	v.updateEntry(in.ID, e, now)
}

// keepRecord records that a record is unreadable: its last known content stays.
func (v *instanceView) keepRecord(now time.Time, id kv.WorkerID) {
	e := v.entries[id]
	if e == nil || e.instance.Kind == "" {
		return // no earlier content is known
	}
	e.hasRecord, v.changed = true, true
	v.updateEntry(id, e, now)
}

// removeRecord records that a record was removed explicitly.
func (v *instanceView) removeRecord(id kv.WorkerID) {
	e := v.entries[id]
	if e == nil {
		return
	}
	v.changed = true
	e.hasRecord, e.shown, e.unconfirmed, e.deadline = false, false, false, time.Time{}
	v.discardEmpty(id, e)
}

// refreshLease records a liveness key of the given revision. For a new instance it precedes the
// record, and it repeats with each refresh. Revision 0 is never overdue.
func (v *instanceView) refreshLease(now time.Time, id kv.WorkerID, revision uint64) {
	e := v.ensureEntry(id)
	e.leaseRevision, e.renewedAt = revision, now
	if e.hasLease && e.hasRecord && !e.unconfirmed {
		return // by far the most frequent case
	}
	e.hasLease, v.changed = true, true
	v.updateEntry(id, e, now)
}

// expireLease records that a liveness key is gone.
func (v *instanceView) expireLease(now time.Time, id kv.WorkerID) {
	e := v.entries[id]
	if e == nil {
		return
	}
	if e.hasLease {
		e.hasLease, e.leaselessSince = false, now
	}
	v.changed = true
	v.updateEntry(id, e, now)
}

// updateEntry decides how an entry is shown. Only a live store's data counts, except that a record
// and key seen while reading confirm the instance.
func (v *instanceView) updateEntry(id kv.WorkerID, e *viewEntry, now time.Time) {
	switch {
	case e.hasRecord && e.hasLease:
		e.shown, e.unconfirmed = true, false
	case v.contact != contactLive || !e.shown:
	case e.unconfirmed && !e.deadline.IsZero(): // already decided
	case now.Before(v.untrustedUntil):
		e.unconfirmed, e.deadline = true, now.Add(v.ttl)
	default:
		e.shown, e.unconfirmed = false, false
	}
	if !e.unconfirmed {
		e.deadline = time.Time{}
	}
	v.discardEmpty(id, e)
}

// dropUnconfirmed removes the instances which have been unconfirmed for too long.
func (v *instanceView) dropUnconfirmed(now time.Time) {
	for id, e := range v.entries {
		if e.unconfirmed && !e.deadline.IsZero() && !now.Before(e.deadline) {
			e.shown, e.unconfirmed, e.deadline = false, false, time.Time{}
			v.changed = true
			v.discardEmpty(id, e)
		}
	}
}

// nextDeadline returns when dropUnconfirmed, takeGarbage or takeOverdue will have work; zero if
// never.
func (v *instanceView) nextDeadline() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, e := range v.entries {
		if e.unconfirmed && !e.deadline.IsZero() {
			earlier(e.deadline)
		}
		if v.isGarbage(e) {
			earlier(e.leaselessSince.Add(2 * v.ttl))
		}
		if v.isLeased(e) {
			earlier(e.renewedAt.Add(v.overdueAfter()))
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
func (v *instanceView) takeGarbage(now time.Time) []deadRecord {
	var dead []deadRecord
	for id, e := range v.entries {
		if v.isGarbage(e) && !now.Before(e.leaselessSince.Add(2*v.ttl)) {
			dead = append(dead, deadRecord{id, e.revision})
			e.leaselessSince, v.changed = now, true // retry later in case the removal fails
		}
	}
	slices.SortFunc(dead, func(a, b deadRecord) int { return cmp.Compare(a.id, b.id) })
	return dead
}

func (v *instanceView) isGarbage(e *viewEntry) bool {
	return v.contact == contactLive && e.hasRecord && !e.hasLease
}

// deadLease is a liveness key that is no longer refreshed.
type deadLease struct {
	id       kv.WorkerID
	revision uint64
}

// overdueAfter is how long a liveness key may stay unchanged: the three refreshes of a TTL, after
// which the store should have removed it, and half a TTL more for the store to do so.
func (v *instanceView) overdueAfter() time.Duration { return v.ttl * 3 / 2 }

// takeOverdue returns the liveness keys which the store should have removed, ordered by id, each
// once per overdueAfter: watchers remove the keys whose expiry the store has lost.
func (v *instanceView) takeOverdue(now time.Time) []deadLease {
	var dead []deadLease
	for id, e := range v.entries {
		if v.isLeased(e) && !now.Before(e.renewedAt.Add(v.overdueAfter())) {
			dead = append(dead, deadLease{id, e.leaseRevision})
			e.renewedAt, v.changed = now, true // retry later in case the removal fails
		}
	}
	slices.SortFunc(dead, func(a, b deadLease) int { return cmp.Compare(a.id, b.id) })
	return dead
}

func (v *instanceView) isLeased(e *viewEntry) bool {
	return v.contact == contactLive && e.hasLease && e.leaseRevision != 0
}

// shownInstances returns the shown instances, ordered by ID.
func (v *instanceView) shownInstances() []Instance {
	var set []Instance
	for _, e := range v.entries {
		if e.shown {
			in := e.instance
			in.Unconfirmed = e.unconfirmed
			set = append(set, in)
		}
	}
	slices.SortFunc(set, func(a, b Instance) int { return cmp.Compare(a.ID, b.ID) })
	return cloneSet(set)
}

func (v *instanceView) ensureEntry(id kv.WorkerID) *viewEntry {
	e := v.entries[id]
	if e == nil {
		e = &viewEntry{}
		v.entries[id] = e
	}
	return e
}

// discardEmpty deletes an entry which has no content left.
func (v *instanceView) discardEmpty(id kv.WorkerID, e *viewEntry) {
	if !e.shown && !e.hasRecord && !e.hasLease {
		delete(v.entries, id)
	}
}

// Check verifies the invariants.
func (v *instanceView) Check() error {
	for id, e := range v.entries {
		switch {
		case e.unconfirmed && !e.shown:
			return fmt.Errorf("instance %d is in doubt and not shown", id)
		case !e.deadline.IsZero() && !e.unconfirmed:
			return fmt.Errorf("instance %d has a deadline and no doubt", id)
		case v.contact == contactLive && e.unconfirmed && e.deadline.IsZero():
			return fmt.Errorf("instance %d would stay in doubt for ever", id)
		case v.contact == contactLive && e.shown && !e.unconfirmed && !(e.hasRecord && e.hasLease):
			return fmt.Errorf("instance %d is shown as confirmed without record and liveness key", id)
		case v.contact == contactLive && !e.shown && !e.hasRecord && !e.hasLease:
			return fmt.Errorf("instance %d is kept for nothing", id)
		case e.shown && e.instance.ID != id:
			return fmt.Errorf("instance %d is shown as %d", id, e.instance.ID)
		}
	}
	return nil
}
