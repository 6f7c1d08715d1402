// Package embcache is the multimodal embedding cache: it decides which rows of media encoders are kept in a
// region of memory, and where. It is neither a cache of decoded media nor the KV cache.
//
// [RowCache] never touches the memory, which belongs to its shell. An encoder's output enters in two steps, so
// that the shell copies it without a lock: Reserve finds a slot, evicts what is in its place, and Commit makes
// it readable. A reader gets a slot with Get. Each of the two holds a pin until Release, and pinned bytes are
// neither evicted nor used again.
//
// What enters and leaves is appended to a list of [Change] in the order in which it happened. A change to
// Added comes after the bytes were written, one to Evicted before they are written over.
//
// # Memory
//
// Slots are multiples of [Unit] bytes of one region. Free memory is in lists by size class, eight classes for
// each power of two: a slot is cut from the first segment of its own class that is large enough, or from the
// next class with an entry. Adjacent free memory is joined. Eviction is by last use alone, so a large entry can
// cost several small ones elsewhere before enough adjacent memory is free. TestFragmentation measures the share
// of a full region that readable entries fill, on average, when nothing is pinned: 0.99 if they have one size,
// 0.98 with sizes of 1/65536 to 1/64 of the region, 0.91 (at worst above 0.6) with sizes of 1/1024 to 1/16 of it.
package embcache

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// RowKey says what rows are of. Rows of equal keys are equal, bit for bit. It is compared in full.
type RowKey struct {
	// Salt is the namespace of the request's cache salt. Its entries serve no other.
	Salt string
	// Kind and Digest are the object's: media.Kind and media.Key. A zero digest identifies nothing: callers
	// must not use it.
	Kind   uint8
	Digest kv.Digest
	// Encoder is the fingerprint of the encoder, see media.EncoderRows, and Type its media.ElementType.
	Encoder string
	Type    uint8
	// Reduction says what was left out of the object before it was encoded, such as frames of a video; "" is
	// nothing that Digest does not cover.
	Reduction string
}

// Shape is the shape of rows: layers, rows and the width of a row, and the grid of patches, see
// media.EncoderRows. The cache only keeps it.
type Shape struct {
	Layers, Rows, Width int
	Grid                [3]int
}

// Item is what is to be kept.
type Item struct {
	Key   RowKey
	Shape Shape
	// Bytes is the size of the rows.
	Bytes int
	// Until is when the entry ends: for an object known by its URL, the end of the period for which the URL
	// counts as showing the same. 0 is never.
	Until kv.Mono
}

// Slot is a place in the region, in bytes. Offset is a multiple of [Unit].
type Slot struct{ Offset, Length int }

// Entry is a pinned entry.
type Entry struct {
	Ref   Ref
	Slot  Slot
	Shape Shape
}

// Ref names a pin on an entry; the zero Ref names none.
type Ref struct {
	index      int32
	generation uint32
}

// Refusal says why there is no slot for an item. Nothing is evicted then.
type Refusal uint8

// The refusals.
const (
	NotRefused Refusal = iota
	TooLarge           // larger than the region
	InUse              // there would be room without the pinned entries
	Ended              // its Until has passed
)

// String returns the refusal in words.
func (r Refusal) String() string {
	return [...]string{"not refused", "too large", "in use", "ended"}[r]
}

// Cause says why an entry left, or that it came.
type Cause uint8

// The causes.
const (
	Added    Cause = iota // it is readable
	Evicted               // it made room: it was the least recently used
	Replaced              // a newer entry has its key; the change to Added follows
	Expired               // its Until has passed
	Removed               // Remove was called
)

// String returns the cause in words.
func (c Cause) String() string {
	return [...]string{"added", "evicted", "replaced", "expired", "removed"}[c]
}

// Change is an entry that became readable, or is no longer.
type Change struct {
	Cause Cause
	Item  Item
	Slot  Slot
}

// Stats are figures of a cache. They count the bytes of whole slots, which are multiples of [Unit].
type Stats struct {
	Capacity int // bytes of the region
	Entries  int // readable
	Bytes    int // of readable entries
	// HeldBytes are of entries that are being written, or were evicted while they were in use. Bytes and
	// HeldBytes together are what is not free.
	HeldBytes int
	// PinnedBytes are of entries with a pin, readable or not.
	PinnedBytes int
	// LargestFree is the largest free piece of the region in bytes, exact to one eighth.
	LargestFree int
	// Since the start: results of Get, slots refused, and changes by cause; Replacements are not Evictions.
	Hits, Misses, Refusals                                    uint64
	Additions, Evictions, Replacements, Expirations, Removals uint64
}

// Add adds the figures of another cache. LargestFree becomes the larger of both.
func (s *Stats) Add(o Stats) {
	s.Capacity += o.Capacity
	s.Entries += o.Entries
	s.Bytes += o.Bytes
	s.HeldBytes += o.HeldBytes
	s.PinnedBytes += o.PinnedBytes
	s.LargestFree = max(s.LargestFree, o.LargestFree)
	s.Hits += o.Hits
	s.Misses += o.Misses
	s.Refusals += o.Refusals
	s.Additions += o.Additions
	s.Evictions += o.Evictions
	s.Replacements += o.Replacements
	s.Expirations += o.Expirations
	s.Removals += o.Removals
}

// RowCache is an embedding cache. It is not safe for concurrent use. Get, Pin, Contains and Release allocate
// nothing.
type RowCache struct {
	region region
	// entries[0] is none: it is the head of the ring of readable entries without pins, by last use. The next newer
	// one is the least recently used, the next older one the most.
	entries []entry
	unused  []int32 // of entries
	byKey   map[RowKey]int32
	ending  []int32 // readable entries with an end, the first to end first
	stats   Stats
}

type entryState uint8

const (
	unusedEntry entryState = iota
	writing                // reserved and not committed; it has the pin of Reserve
	readable
	unreadable // no longer found, and pinned
)

type entry struct {
	item         Item
	segment      int32 // of the region
	older, newer int32 // in the ring
	pins         int32
	generation   uint32
	state        entryState
}

// New returns an empty cache for a region of capacity bytes, of which it uses whole units. Without one nothing
// fits.
func New(capacity int) *RowCache {
	c := &RowCache{byKey: map[RowKey]int32{}, entries: make([]entry, 1)}
	c.region.reset(max(0, capacity) / Unit * Unit)
	c.stats.Capacity = c.region.size
	return c
}

// Get returns the entry of a key and pins it. It counts a hit, or a miss.
func (c *RowCache) Get(key *RowKey, now kv.Mono) (Entry, bool) {
	e, ok := c.Pin(key, now)
	if ok {
		c.stats.Hits++
	} else {
		c.stats.Misses++
	}
	return e, ok
}

// Pin is Get without counting, for a look-up that was counted as a miss and is repeated.
func (c *RowCache) Pin(key *RowKey, now kv.Mono) (Entry, bool) {
	i, ok := c.find(key, now)
	if !ok {
		return Entry{}, false
	}
	e := &c.entries[i]
	if e.pins == 0 {
		c.unlink(i)
		c.stats.PinnedBytes += c.sizeOf(e)
	}
	e.pins++
	return c.describe(i), true
}

// Contains reports whether Get would return an entry. It changes and counts nothing.
func (c *RowCache) Contains(key *RowKey, now kv.Mono) bool {
	_, ok := c.find(key, now)
	return ok
}

func (c *RowCache) find(key *RowKey, now kv.Mono) (int32, bool) {
	i, ok := c.byKey[*key]
	return i, ok && !c.entries[i].item.hasEnded(now)
}

// Reserve finds a slot for an item and pins it. To make room it ends what has passed and evicts the least
// recently used entries without pins. The entry is readable after Commit; Release without Commit gives the
// slot back.
func (c *RowCache) Reserve(item *Item, now kv.Mono, out []Change) (Entry, Refusal, []Change) {
	out = c.Expire(now, out)
	if refused := c.checkRoom(item, now); refused != NotRefused {
		c.stats.Refusals++
		return Entry{}, refused, out
	}
	segment, ok := c.region.allocate(item.Bytes)
	for !ok {
		c.stats.Evictions++
		out = c.retire(c.entries[0].newer, Evicted, out)
		segment, ok = c.region.allocate(item.Bytes)
	}
	i := takeIndex(&c.entries, &c.unused)
	e := &c.entries[i]
	e.item, e.segment, e.pins, e.state = *item, segment, 1, writing
	c.region.segments[segment].owner = i
	c.stats.HeldBytes += c.sizeOf(e)
	c.stats.PinnedBytes += c.sizeOf(e)
	return c.describe(i), NotRefused, out
}

// checkRoom says why an item cannot have a slot, whatever is evicted.
func (c *RowCache) checkRoom(item *Item, now kv.Mono) Refusal {
	switch {
	case item.hasEnded(now):
		return Ended
	case max(1, item.Bytes) > c.region.size: // which is a multiple of Unit
		return TooLarge
	case c.stats.PinnedBytes > 0 && c.region.longestRun(c.isFreeable) < roundUp(item.Bytes):
		return InUse
	}
	return NotRefused
}

// isFreeable reports whether the memory of an entry can be had.
func (c *RowCache) isFreeable(i int32) bool { return c.entries[i].pins == 0 }

// Commit makes an entry of Reserve readable, in place of an earlier one with its key. It keeps the pin.
func (c *RowCache) Commit(ref Ref, out []Change) []Change {
	e := c.entryOf(ref)
	if e.state != writing {
		panic("embcache: Commit of an entry which is not reserved")
	}
	if old, ok := c.byKey[e.item.Key]; ok {
		c.stats.Replacements++
		out = c.retire(old, Replaced, out)
	}
	e.state = readable
	c.byKey[e.item.Key] = ref.index
	if e.item.Until != 0 {
		at, _ := slices.BinarySearchFunc(c.ending, ref.index, c.compareEnds)
		c.ending = slices.Insert(c.ending, at, ref.index)
	}
	c.stats.Entries++
	c.stats.Bytes += c.sizeOf(e)
	c.stats.HeldBytes -= c.sizeOf(e)
	c.stats.Additions++
	return append(out, Change{Cause: Added, Item: e.item, Slot: c.slotOf(e)})
}

// Release gives a pin back. An entry is the most recently used one after its last pin.
func (c *RowCache) Release(ref Ref) {
	e := c.entryOf(ref)
	if e.pins--; e.pins > 0 {
		return
	}
	c.stats.PinnedBytes -= c.sizeOf(e)
	if e.state == readable {
		c.linkNewest(ref.index)
		return
	}
	c.stats.HeldBytes -= c.sizeOf(e)
	c.freeEntry(ref.index)
}

// Remove ends the entry of a key, if there is one.
func (c *RowCache) Remove(key *RowKey, out []Change) []Change {
	i, ok := c.byKey[*key]
	if !ok {
		return out
	}
	c.stats.Removals++
	return c.retire(i, Removed, out)
}

// Expire ends the entries whose Until has passed, in the order in which they end.
func (c *RowCache) Expire(now kv.Mono, out []Change) []Change {
	for len(c.ending) > 0 && c.entries[c.ending[0]].item.hasEnded(now) {
		c.stats.Expirations++
		out = c.retire(c.ending[0], Expired, out)
	}
	return out
}

// NextEnd returns when the next entry ends; 0 if none does.
func (c *RowCache) NextEnd() kv.Mono {
	if len(c.ending) == 0 {
		return 0
	}
	return c.entries[c.ending[0]].item.Until
}

// AppendItems appends the readable entries to dst, in no order that means anything.
func (c *RowCache) AppendItems(dst []Item) []Item {
	for i := range c.entries {
		if e := &c.entries[i]; e.state == readable {
			dst = append(dst, e.item)
		}
	}
	return dst
}

// Stats returns the figures of now.
func (c *RowCache) Stats() Stats {
	s := c.stats
	s.LargestFree = c.region.largestFree()
	return s
}

func (i *Item) hasEnded(now kv.Mono) bool { return i.Until != 0 && now >= i.Until }

// retire makes a readable entry unreadable, and frees its memory unless it is pinned.
func (c *RowCache) retire(i int32, cause Cause, out []Change) []Change {
	e := &c.entries[i]
	if e.state != readable {
		panic("embcache: the entry is not readable")
	}
	out = append(out, Change{Cause: cause, Item: e.item, Slot: c.slotOf(e)})
	delete(c.byKey, e.item.Key)
	if e.item.Until != 0 {
		at, _ := slices.BinarySearchFunc(c.ending, i, c.compareEnds)
		c.ending = slices.Delete(c.ending, at, at+1)
	}
	c.stats.Entries--
	c.stats.Bytes -= c.sizeOf(e)
	if e.pins > 0 {
		e.state = unreadable
		c.stats.HeldBytes += c.sizeOf(e)
		return out
	}
	c.unlink(i)
	c.freeEntry(i)
	return out
}

// compareEnds orders entries by their end.
func (c *RowCache) compareEnds(a, b int32) int {
	return cmp.Or(cmp.Compare(c.entries[a].item.Until, c.entries[b].item.Until), cmp.Compare(a, b))
}

// freeEntry frees the memory of an entry, which is not in the ring.
func (c *RowCache) freeEntry(i int32) {
	e := &c.entries[i]
	c.region.release(e.segment)
	*e = entry{generation: e.generation + 1}
	c.unused = append(c.unused, i)
}

// entryOf returns the entry of a pin. It panics if nothing holds that pin.
func (c *RowCache) entryOf(ref Ref) *entry {
	if int(ref.index) < len(c.entries) {
		if e := &c.entries[ref.index]; e.generation == ref.generation && e.pins > 0 {
			return e
		}
	}
	panic("embcache: the entry is not pinned")
}

func (c *RowCache) describe(i int32) Entry {
	e := &c.entries[i]
	return Entry{Ref: Ref{i, e.generation}, Slot: c.slotOf(e), Shape: e.item.Shape}
}

func (c *RowCache) slotOf(e *entry) Slot {
	return Slot{Offset: c.region.segments[e.segment].offset, Length: e.item.Bytes}
}

func (c *RowCache) sizeOf(e *entry) int { return c.region.segments[e.segment].size }

// linkNewest makes an entry the most recently used one of the ring.
func (c *RowCache) linkNewest(i int32) {
	newest := c.entries[0].older
	c.entries[i].older, c.entries[i].newer = newest, 0
	c.entries[newest].newer, c.entries[0].older = i, i
}

// unlink takes an entry out of the ring.
func (c *RowCache) unlink(i int32) {
	e := &c.entries[i]
	c.entries[e.older].newer, c.entries[e.newer].older = e.newer, e.older
}
