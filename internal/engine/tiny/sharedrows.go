package tiny

import (
	"time"
	"unsafe"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/internal/embregion"
)

// SharedRows reads rows in the embedding caches of other workers of the host. It is called from several goroutines.
type SharedRows interface {
	// ReadShared copies rows of a number and a width, if another cache has them. It sends nothing and does not wait.
	// into provides the memory for them, see embregion.Readers.
	ReadShared(key *embcache.RowKey, rows, width int, into func(grid [3]int) []byte) (embregion.Found, bool)
}

// readSharedRows looks rows up in the caches of other workers of the host. They are copied once, into the store.
func (s *mediaEncoders) readSharedRows(w *rowRequest, key *embcache.RowKey) (storedRows, bool) {
	if s.rows.shared == nil || !identifies(key) {
		return storedRows{}, false
	}
	n := w.pads
	if n == 0 { // another worker asks for them: the size of the object says how many there are
		layout, ok := s.layoutBySize(w.object)
		if !ok {
			return storedRows{}, false
		}
		n = layout.PadCount
	}
	var r storedRows
	found, ok := s.rows.shared.ReadShared(key, n, s.rows.width, func(grid [3]int) []byte {
		switch {
		case !s.fitsGrid(w.object, n, grid) || r.rows != nil && r.grid != grid:
			return nil
		case r.rows == nil:
			var kept bool
			if r, kept = s.rows.reserveRows(key, w.object, n*s.rows.width, grid); !kept {
				r = storedRows{rows: make([]float32, n*s.rows.width), grid: grid}
			}
		}
		return bytesOf(r.rows)
	})
	if !ok {
		s.rows.releaseRows(&r)
		return storedRows{}, false
	}
	r.raised = true
	if r.pin == (embcache.Ref{}) {
		return r, true
	}
	return s.rows.commitRows(&r, found.Digest), true
}

// Region returns where other workers of the host read the embedding cache, which is that of all engines made with this
// one; nil if they cannot.
func (e *Engine) Region() *embregion.Owner { return e.cpu.encoders.region() }

// Region returns where other workers of the host read the encoder's embedding cache; nil if they cannot.
func (e *RowEncoder) Region() *embregion.Owner { return e.encoders.region() }

func (s *mediaEncoders) region() *embregion.Owner {
	if s == nil {
		return nil
	}
	return s.rows.region
}

// allocateRegion returns memory that other workers of the host can read; nil if there is none.
func (s *rowStore) allocateRegion(capacity int) []float32 {
	if s.region == nil {
		return nil
	}
	b := s.region.Allocate(capacity)
	if b == nil {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/elementBytes)
}

// listChangesLocked tells the readers of the region of mu.changes.
func (s *rowStore) listChangesLocked() {
	if s.region == nil {
		return
	}
	for i := range s.mu.changes {
		c := &s.mu.changes[i]
		if c.Cause != embcache.Added {
			s.region.RemoveEntry(c.Slot)
			continue
		}
		added := embregion.Added{Item: &c.Item, Slot: c.Slot, Digest: s.mu.digest}
		if until := c.Item.Until; until != 0 {
			added.Until = time.Now().UnixNano() + int64(until-s.now())
		}
		s.region.AddEntry(&added)
	}
}

// reserveLocked reserves a slot. It spares the entries which other workers are copying, unless there is no room without
// them: then their copies are misses.
func (s *rowStore) reserveLocked(item *embcache.Item, now kv.Mono, changes []embcache.Change) (embcache.Entry, embcache.Refusal, []embcache.Change) {
	var pins []embcache.Ref
	if s.region != nil {
		s.mu.leased = s.region.AppendLeased(s.mu.leased[:0])
		for i := range s.mu.leased {
			if e, ok := s.mu.cache.Pin(&s.mu.leased[i], now); ok {
				pins = append(pins, e.Ref)
			}
		}
	}
	e, refused, changes := s.mu.cache.Reserve(item, now, changes)
	for _, pin := range pins {
		s.mu.cache.Release(pin)
	}
	if refused == embcache.InUse && len(pins) > 0 {
		e, refused, changes = s.mu.cache.Reserve(item, now, changes)
	}
	return e, refused, changes
}
