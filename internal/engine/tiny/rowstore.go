package tiny

import (
	"strings"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/kvfeed/embfeed"
	"penstock/core/media"
	"penstock/internal/embregion"
	"penstock/internal/engine/watch"
	"penstock/internal/plane/xfer"
)

// rowStore keeps the rows of encoded objects for later requests: the memory, the clock and the lock of an
// [embcache.RowCache].
type rowStore struct {
	encoder   string // its fingerprint
	width     int    // elements of a row
	urlTTL    time.Duration
	startedAt time.Time // monotonic times count from here
	watchers  *watch.Broadcaster[embfeed.Event]
	tiers     RowTiers         // nil if there are none
	shared    SharedRows       // of other workers of the host; nil if none are read
	region    *embregion.Owner // in which others read what is kept; nil if none do
	// allocating is done once, before the first rows.
	allocating sync.Once
	// demoting is held from an eviction until what was evicted is copied to the tiers: nothing else is written there
	// meanwhile. Look-ups do not take it.
	demoting sync.Mutex

	mu struct {
		sync.Mutex
		cache *embcache.RowCache
		// memory is the cache's region; nil before the first rows.
		memory  []float32
		digest  xfer.Digest       // of the rows of the entry that is being added, if others read them
		changes []embcache.Change // scratch
		events  []embfeed.Event   // scratch
		leased  []embcache.RowKey // scratch
	}
}

// storedRows are the rows of an object: one for each of its pads, and its grid of patches. They must not be
// changed, and not be read after they were given back to the store.
type storedRows struct {
	rows []float32
	grid [3]int
	// raised says that a tier below memory had them, or the memory of another worker.
	raised bool

	pin     embcache.Ref   // zero if the store does not have them
	shared  *rowRun        // which holds the pin; nil if these do
	request *encodeRequest // which stages them, and ends when they are given back; nil if none does
}

// isCached reports whether the store has the rows.
func (r *storedRows) isCached() bool {
	return r.pin != embcache.Ref{} || r.shared != nil && r.shared.rows.pin != embcache.Ref{}
}

// elementBytes is the size of an element of a row.
const elementBytes = 4

func newRowStore(cfg *Config, encoder string, width int) *rowStore {
	s := &rowStore{encoder: encoder, width: width, urlTTL: cfg.URLTTL, startedAt: time.Now(), watchers: newRowWatchers(), tiers: cfg.Tiers, shared: cfg.Shared}
	if cfg.Region != nil && *cfg.EmbeddingCache > 0 {
		s.region = cfg.Region()
	}
	s.mu.cache = embcache.New(*cfg.EmbeddingCache)
	return s
}

// keyOf returns the key of an object's rows for requests of a namespace.
func (s *rowStore) keyOf(o *media.Object, namespace string) embcache.RowKey {
	return embcache.RowKey{Salt: namespace, Kind: uint8(o.Kind), Digest: o.Key.Digest, Encoder: s.encoder, Type: uint8(media.Float32)}
}

// identifies reports whether a key identifies an object: 64 bits do not.
func identifies(key *embcache.RowKey) bool { return key.Digest != kv.Digest{} }

// now returns the time since the store was made, from 1 on: 0 is no time.
func (s *rowStore) now() kv.Mono { return kv.Mono(time.Since(s.startedAt)) + 1 }

// hasRows reports whether there are rows for a key. It counts nothing.
func (s *rowStore) hasRows(key *embcache.RowKey) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return identifies(key) && s.mu.cache.Contains(key, now)
}

// lookupRows returns the rows of an object with the given number of pads, 0 for any, and counts a hit or a miss.
func (s *rowStore) lookupRows(key *embcache.RowKey, pads int) (storedRows, bool) {
	return s.findRows(key, pads, true)
}

// repeatLookup is lookupRows without counting.
func (s *rowStore) repeatLookup(key *embcache.RowKey, pads int) (storedRows, bool) {
	return s.findRows(key, pads, false)
}

func (s *rowStore) findRows(key *embcache.RowKey, pads int, counted bool) (storedRows, bool) {
	if !identifies(key) {
		return storedRows{}, false
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.changes = s.mu.cache.Expire(now, s.mu.changes[:0])
	s.publishChangesLocked()
	var e embcache.Entry
	ok := false
	if counted {
		e, ok = s.mu.cache.Get(key, now)
	} else {
		e, ok = s.mu.cache.Pin(key, now)
	}
	switch {
	case !ok:
		return storedRows{}, false
	case pads != 0 && e.Shape.Rows != pads || e.Shape.Width != s.width: // what is computed says what is wrong
		s.mu.cache.Release(e.Ref)
		return storedRows{}, false
	}
	return storedRows{rows: s.slotLocked(e.Slot), grid: e.Shape.Grid, pin: e.Ref}, true
}

// storeRows keeps rows, which the encoder has computed for an object, and returns them: from the store if it
// has room, else as they are.
func (s *rowStore) storeRows(key *embcache.RowKey, o *media.Object, rows []float32, grid [3]int) storedRows {
	r, ok := s.reserveRows(key, o, len(rows), grid)
	if !ok {
		return storedRows{rows: rows, grid: grid}
	}
	if s.region == nil {
		copy(r.rows, rows)
		return s.commitRows(&r, 0)
	}
	return s.commitRows(&r, xfer.CopyDigest(bytesOf(r.rows), bytesOf(rows)))
}

// reserveRows returns room in the store for the elements of an object's rows, which the caller writes and then commits, or
// gives back with releaseRows; false if there is none.
func (s *rowStore) reserveRows(key *embcache.RowKey, o *media.Object, elements int, grid [3]int) (storedRows, bool) {
	until, ok := s.endOf(o)
	if !ok || !identifies(key) {
		return storedRows{}, false
	}
	item := embcache.Item{
		Key: *key, Bytes: elementBytes * elements, Until: until,
		Shape: embcache.Shape{Layers: 1, Rows: elements / s.width, Width: s.width, Grid: grid},
	}
	item.Key.Salt = strings.Clone(key.Salt) // a request may have it in a larger text
	slot, e, ok := s.reserveAndDemote(&item)
	return storedRows{rows: slot, grid: grid, pin: e.Ref}, ok
}

// commitRows makes reserved rows readable. digest is that of their bytes, if others read them.
func (s *rowStore) commitRows(r *storedRows, digest xfer.Digest) storedRows {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.digest = digest
	s.mu.changes = s.mu.cache.Commit(r.pin, s.mu.changes[:0])
	s.publishChangesLocked()
	return *r
}

// reserveSlot reserves a slot, and appends what that evicted to evicted.
func (s *rowStore) reserveSlot(item *embcache.Item, evicted *[]embcache.Change) (slot []float32, e embcache.Entry, ok bool) {
	s.allocating.Do(s.allocateMemory) // most models that accept media see none
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused embcache.Refusal
	e, refused, s.mu.changes = s.reserveLocked(item, now, s.mu.changes[:0])
	s.publishChangesLocked()
	if evicted != nil {
		*evicted = append(*evicted, s.mu.changes...)
	}
	if refused != embcache.NotRefused {
		return nil, e, false
	}
	return s.slotLocked(e.Slot), e, true
}

// allocateMemory takes the memory of the cache from the system, which may take a while.
func (s *rowStore) allocateMemory() {
	capacity := s.capacity()
	memory := s.allocateRegion(capacity)
	if memory == nil {
		memory = make([]float32, capacity/elementBytes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.memory = memory
}

// slotLocked returns the elements in a slot.
func (s *rowStore) slotLocked(at embcache.Slot) []float32 {
	start, end := at.Offset/elementBytes, (at.Offset+at.Length)/elementBytes
	return s.mu.memory[start:end:end]
}

// endOf returns until when the rows of an object are kept, 0 for ever; false if that time has passed. An
// object known by its URL is another one in the URL's next period.
func (s *rowStore) endOf(o *media.Object) (until kv.Mono, ok bool) {
	if o.Identity != media.ByURL || s.urlTTL == 0 {
		return 0, true
	}
	now := time.Now()
	period, end := media.URLPeriod(o.Source, now.UnixNano(), s.urlTTL)
	if o.Key == media.URLKey(o.Source, period-1) {
		return 0, false
	}
	return s.now() + kv.Mono(end-now.UnixNano()), true
}

// releaseRows gives rows back.
func (s *rowStore) releaseRows(r *storedRows) {
	if q := r.request; q != nil {
		*r = storedRows{}
		q.endRequest()
		return
	}
	if run := r.shared; run != nil {
		*r = storedRows{}
		run.leave()
		return
	}
	if r.pin == (embcache.Ref{}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cache.Release(r.pin)
	*r = storedRows{}
}

func (s *rowStore) capacity() int { return s.stats().Capacity }

func (s *rowStore) stats() embcache.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.cache.Stats()
}
