package embcache

import (
	"crypto/sha256"
	"fmt"

	"penstock/core/kv"
)

// TierUnit is the granularity in which a [Tier] counts bytes: a block of most file systems.
const TierUnit = 4096

// tierDomain is hashed before the parts, so that a tier key equals no other digest.
const tierDomain = "penstock embedding tier\x00"

// TierKey returns the name of an entry in tiers below memory: the SHA-256 of a domain, encoder, salt and reduction, each
// after its length as little-endian u64, kind and element type, a byte each, and the object's digest. So entries of two
// salts have two names, and neither the salt nor the digest of what its requests showed can be read in a tier.
func (k *RowKey) TierKey() kv.Digest {
	b := []byte(tierDomain)
	for _, part := range []string{k.Encoder, k.Salt, k.Reduction} {
		b = appendCounted(b, part)
	}
	b = append(b, k.Kind, k.Type)
	return sha256.Sum256(append(b, k.Digest[:]...))
}

// TierEntry is an entry of a tier.
type TierEntry struct {
	Key kv.Digest
	// Bytes is the size of its [TierRecord].
	Bytes int64
	// Until is when it ends, in nanoseconds of Unix time; 0 is never, or not known.
	Until int64
}

func (e *TierEntry) hasEnded(now int64) bool { return e.Until != 0 && now >= e.Until }

// TierStats are figures of a tier. Sizes are of entries rounded up to [TierUnit].
type TierStats struct {
	Capacity int64
	Entries  int   // readable
	Bytes    int64 // of readable entries
	// WritingBytes are of entries which are being written.
	WritingBytes int64
	// Since the start: look-ups by their end, entries which came, and which left by cause. Corrupt ones are no Removals.
	Hits, Misses                              uint64
	Additions, Evictions, Expirations         uint64
	Removals, Corrupt, Refusals, WriteFailure uint64
}

// LookupEnd says how a look-up in a tier ended.
type LookupEnd uint8

// The ends of look-ups. All but the first are misses.
const (
	LookupHit      LookupEnd = iota
	LookupAbsent             // the tier does not have the entry, or could not say so in time
	LookupVanished           // the tier should have it, and its store does not
	LookupCorrupt            // its bytes are not as they were written, or not of this entry
	LookupExpired            // its Until has passed
)

// Tier decides what a tier of the embedding cache below memory keeps, such as a directory or an object store: the most
// recently used entries within a capacity in bytes. Its shell has the bytes. Times are Unix times in nanoseconds.
//
// | state of an entry | from | to |
// |---|---|---|
// | writing | Reserve | readable by Commit, absent by Abort; it is never evicted |
// | readable | Commit, Observe | absent by eviction, expiry, EndLookup or Remove |
//
// It is not safe for concurrent use.
type Tier struct {
	// entries[0] is none: it is the head of the ring of readable entries by last use. The next newer one is the least
	// recently used, the next older one the most.
	entries []tierEntry
	unused  []int32
	byKey   map[kv.Digest]int32
	stats   TierStats
}

type tierEntry struct {
	TierEntry
	older, newer int32
	readable     bool
}

// NewTier returns an empty tier of a capacity in bytes.
func NewTier(capacity int64) *Tier {
	t := &Tier{entries: make([]tierEntry, 1), byKey: map[kv.Digest]int32{}}
	t.stats.Capacity = max(0, capacity) / TierUnit * TierUnit
	return t
}

// roundTier returns the size with which an entry counts.
func roundTier(bytes int64) int64 { return (max(1, bytes) + TierUnit - 1) / TierUnit * TierUnit }

// Find returns the readable entry of a key. What its shell makes of it counts with EndLookup.
func (t *Tier) Find(key kv.Digest) (TierEntry, bool) {
	i, ok := t.byKey[key]
	if !ok || !t.entries[i].readable {
		return TierEntry{}, false
	}
	return t.entries[i].TierEntry, true
}

// EndLookup counts the end of a look-up. After a hit the entry is the most recently used one. One which is gone, corrupt
// or ended leaves the tier; remove says that the shell removes what it has of it.
func (t *Tier) EndLookup(key kv.Digest, end LookupEnd) (remove bool) {
	i, known := t.byKey[key]
	known = known && t.entries[i].readable
	if end == LookupHit {
		t.stats.Hits++
		if known {
			t.touch(i)
		}
		return false
	}
	t.stats.Misses++
	switch {
	case end == LookupAbsent:
		return false
	case end == LookupCorrupt:
		t.stats.Corrupt++
	case !known: // another look-up has removed it
		return false
	case end == LookupExpired:
		t.stats.Expirations++
	default:
		t.stats.Removals++
	}
	if known {
		t.drop(i)
	}
	return true
}

// Refresh makes a readable entry the most recently used one, and reports whether there is one. An entry of which another
// copy leaves the tier above needs no second one.
func (t *Tier) Refresh(key kv.Digest) bool {
	i, ok := t.byKey[key]
	if ok && t.entries[i].readable {
		t.touch(i)
	}
	return ok && t.entries[i].readable
}

// Reserve makes room for an entry which its shell then writes, and appends the evicted entries to out: the shell removes
// them first. The entry is readable after Commit. A refused one, or one which is there or being written, evicts nothing.
func (t *Tier) Reserve(e TierEntry, now int64, out []TierEntry) (Refusal, []TierEntry) {
	size, refused := roundTier(e.Bytes), NotRefused
	switch _, known := t.byKey[e.Key]; {
	case known:
		return InUse, out // it is no refusal: nothing is lost
	case e.hasEnded(now):
		refused = Ended
	case size > t.stats.Capacity:
		refused = TooLarge
	case size > t.stats.Capacity-t.stats.WritingBytes:
		refused = InUse
	}
	if refused != NotRefused {
		t.stats.Refusals++
		return refused, out
	}
	out = t.makeRoom(size, out)
	t.byKey[e.Key] = t.newEntry(e)
	t.stats.WritingBytes += size
	return NotRefused, out
}

// makeRoom evicts the least recently used entries until size bytes are free, or none is left.
func (t *Tier) makeRoom(size int64, out []TierEntry) []TierEntry {
	for t.stats.Bytes+t.stats.WritingBytes+size > t.stats.Capacity && t.entries[0].newer != 0 {
		i := t.entries[0].newer
		out = append(out, t.entries[i].TierEntry)
		t.stats.Evictions++
		t.drop(i)
	}
	return out
}

func (t *Tier) newEntry(e TierEntry) int32 {
	i := takeIndex(&t.entries, &t.unused)
	t.entries[i] = tierEntry{TierEntry: e}
	return i
}

// Commit makes an entry of Reserve readable.
func (t *Tier) Commit(key kv.Digest) {
	i := t.writingEntry(key)
	t.stats.WritingBytes -= roundTier(t.entries[i].Bytes)
	t.publish(i)
}

// Abort gives up an entry of Reserve: it could not be written.
func (t *Tier) Abort(key kv.Digest) {
	i := t.writingEntry(key)
	t.stats.WritingBytes -= roundTier(t.entries[i].Bytes)
	t.stats.WriteFailure++
	t.forget(i)
}

func (t *Tier) writingEntry(key kv.Digest) int32 {
	i, ok := t.byKey[key]
	if !ok || t.entries[i].readable {
		panic("embcache: the entry is not being written")
	}
	return i
}

// publish makes an entry readable and the most recently used one.
func (t *Tier) publish(i int32) {
	e := &t.entries[i]
	e.readable = true
	t.stats.Entries++
	t.stats.Bytes += roundTier(e.Bytes)
	t.stats.Additions++
	t.linkNewest(i)
}

// Observe takes in that an entry is there, which an earlier process or another one wrote or used: it becomes the most
// recently used one. Entries which that evicts are appended to out, perhaps itself.
func (t *Tier) Observe(e TierEntry, out []TierEntry) []TierEntry {
	i, known := t.byKey[e.Key]
	switch {
	case known && !t.entries[i].readable: // Commit follows
		return out
	case known:
		t.stats.Bytes += roundTier(e.Bytes) - roundTier(t.entries[i].Bytes)
		t.entries[i].TierEntry = e
		t.touch(i)
	default:
		i = t.newEntry(e)
		t.byKey[e.Key] = i
		t.publish(i)
	}
	return t.makeRoom(0, out)
}

// Remove takes in that an entry is gone.
func (t *Tier) Remove(key kv.Digest) {
	if i, ok := t.byKey[key]; ok && t.entries[i].readable {
		t.stats.Removals++
		t.drop(i)
	}
}

// Clear takes in that nothing is there: what is, is observed again. Entries which are being written stay.
func (t *Tier) Clear() {
	for t.entries[0].newer != 0 {
		t.drop(t.entries[0].newer)
	}
}

// Stats returns the figures of now.
func (t *Tier) Stats() TierStats { return t.stats }

// drop ends a readable entry.
func (t *Tier) drop(i int32) {
	t.stats.Entries--
	t.stats.Bytes -= roundTier(t.entries[i].Bytes)
	t.unlink(i)
	t.forget(i)
}

func (t *Tier) forget(i int32) {
	delete(t.byKey, t.entries[i].Key)
	t.entries[i] = tierEntry{}
	t.unused = append(t.unused, i)
}

func (t *Tier) touch(i int32) {
	t.unlink(i)
	t.linkNewest(i)
}

func (t *Tier) linkNewest(i int32) {
	newest := t.entries[0].older
	t.entries[i].older, t.entries[i].newer = newest, 0
	t.entries[newest].newer, t.entries[0].older = i, i
}

func (t *Tier) unlink(i int32) {
	e := &t.entries[i]
	t.entries[e.older].newer, t.entries[e.newer].older = e.newer, e.older
}

// Check returns an error if an invariant does not hold: each entry is in the table and, if it is readable, in the ring,
// and the statistics are the sums over the entries, within the capacity.
func (t *Tier) Check() error {
	var sum TierStats
	ring := 0
	for last, i := int32(0), t.entries[0].newer; ; last, i = i, t.entries[i].newer {
		if t.entries[i].older != last {
			return fmt.Errorf("embcache: tier entry %d is behind %d in the ring", i, last)
		}
		if i == 0 {
			break
		}
		if ring++; ring > len(t.byKey) || !t.entries[i].readable {
			return fmt.Errorf("embcache: tier entry %d is in the ring, the %dth of %d", i, ring, len(t.byKey))
		}
	}
	for key, i := range t.byKey { // the order does not matter: any error is a defect
		switch e := &t.entries[i]; {
		case e.Key != key:
			return fmt.Errorf("embcache: tier entry %x is found as %x", e.Key, key)
		case e.readable:
			sum.Entries++
			sum.Bytes += roundTier(e.Bytes)
		default:
			sum.WritingBytes += roundTier(e.Bytes)
		}
	}
	s := t.stats
	switch {
	case s.Entries != sum.Entries || s.Bytes != sum.Bytes || s.WritingBytes != sum.WritingBytes || ring != sum.Entries:
		return fmt.Errorf("embcache: tier statistics %+v, the entries are %+v, %d in the ring", s, sum, ring)
	case s.Bytes+s.WritingBytes > s.Capacity:
		return fmt.Errorf("embcache: a tier of %d bytes has %d, and %d being written", s.Capacity, s.Bytes, s.WritingBytes)
	case len(t.byKey)+len(t.unused)+1 != len(t.entries):
		return fmt.Errorf("embcache: %d tier entries, %d used and %d unused", len(t.entries), len(t.byKey), len(t.unused))
	}
	return nil
}
