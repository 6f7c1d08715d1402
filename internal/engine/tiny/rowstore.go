package tiny

import (
	"strings"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
)

// rowStore keeps the rows of encoded objects for later requests: the memory, the clock and the lock of an
// [embcache.RowCache].
type rowStore struct {
	encoder   string // its fingerprint
	width     int    // elements of a row
	urlTTL    time.Duration
	startedAt time.Time // monotonic times count from here

	mu struct {
		sync.Mutex
		cache *embcache.RowCache
		// memory is the cache's region; nil before the first rows.
		memory  []float32
		changes []embcache.Change // scratch
	}
}

// storedRows are the rows of an object: one for each of its pads, and its grid of patches. They must not be
// changed, and not be read after they were given back to the store.
type storedRows struct {
	rows []float32
	grid [3]int

	pin    embcache.Ref
	pinned bool // the store has them
}

// elementBytes is the size of an element of a row.
const elementBytes = 4

func newRowStore(cfg *Config, encoder string, width int) *rowStore {
	s := &rowStore{encoder: encoder, width: width, urlTTL: cfg.URLTTL, startedAt: time.Now()}
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

// lookupRows returns the rows of an object with the given number of pads, and counts a hit or a miss.
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
	case e.Shape.Rows != pads || e.Shape.Width != s.width: // what is computed says what is wrong
		s.mu.cache.Release(e.Ref)
		return storedRows{}, false
	}
	return storedRows{rows: s.slotLocked(e.Slot), grid: e.Shape.Grid, pin: e.Ref, pinned: true}, true
}

// storeRows keeps rows, which the encoder has computed for an object, and returns them: from the store if it
// has room, else as they are.
func (s *rowStore) storeRows(key *embcache.RowKey, o *media.Object, rows []float32, grid [3]int) storedRows {
	own := storedRows{rows: rows, grid: grid}
	until, ok := s.endOf(o)
	if !ok || !identifies(key) {
		return own
	}
	item := embcache.Item{
		Key: *key, Bytes: elementBytes * len(rows), Until: until,
		Shape: embcache.Shape{Layers: 1, Rows: len(rows) / s.width, Width: s.width, Grid: grid},
	}
	item.Key.Salt = strings.Clone(key.Salt) // a request may have it in a larger text
	slot, e, ok := s.reserveSlot(&item)
	if !ok {
		return own
	}
	copy(slot, rows)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.changes = s.mu.cache.Commit(e.Ref, s.mu.changes[:0])
	return storedRows{rows: slot, grid: grid, pin: e.Ref, pinned: true}
}

func (s *rowStore) reserveSlot(item *embcache.Item) (slot []float32, e embcache.Entry, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused embcache.Refusal
	e, refused, s.mu.changes = s.mu.cache.Reserve(item, now, s.mu.changes[:0])
	if refused != embcache.NotRefused {
		return nil, e, false
	}
	if s.mu.memory == nil { // most models that accept media see none
		s.mu.memory = make([]float32, s.mu.cache.Stats().Capacity/elementBytes)
	}
	return s.slotLocked(e.Slot), e, true
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
	if !r.pinned {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cache.Release(r.pin)
	*r = storedRows{}
}

func (s *rowStore) stats() embcache.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.cache.Stats()
}
