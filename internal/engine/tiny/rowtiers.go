package tiny

import (
	"context"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
)

// RowTiers keep entries of embedding caches below memory. It is called from several goroutines.
type RowTiers interface {
	// Has reports whether a tier is believed to have the entry of an embcache.RowKey.TierKey.
	Has(key kv.Digest) bool
	// Load returns an entry, and its elements as media.EncoderRows has them, in bounded time. One that accept refuses
	// leaves its tier.
	Load(ctx context.Context, key kv.Digest, accept func(*embcache.TierRecord, []byte) bool) (embcache.TierRecord, []byte, bool)
	// Demote takes an entry which memory has evicted. It does not wait, and does not keep elements.
	Demote(r *embcache.TierRecord, elements []byte)
}

// reserveAndDemote reserves a slot, and gives what that evicted to the tiers.
func (s *rowStore) reserveAndDemote(item *embcache.Item) (slot []float32, e embcache.Entry, ok bool) {
	if s.tiers == nil {
		return s.reserveSlot(item, nil)
	}
	s.demoting.Lock()
	defer s.demoting.Unlock()
	var changes []embcache.Change
	slot, e, ok = s.reserveSlot(item, &changes)
	for i := range changes {
		if c := &changes[i]; c.Cause == embcache.Evicted {
			s.demoteRows(c)
		}
	}
	return slot, e, ok
}

// demoteRows gives an evicted entry to the tiers. Its memory is as it was: the next entry in it waits for demoting.
func (s *rowStore) demoteRows(c *embcache.Change) {
	r := embcache.TierRecord{Key: c.Item.Key.TierKey(), Type: c.Item.Key.Type, Shape: c.Item.Shape}
	if until := c.Item.Until; until != 0 {
		r.Until = time.Now().UnixNano() + int64(until-s.now())
	}
	s.tiers.Demote(&r, littleBytes(s.memorySlot(c.Slot)))
}

// memorySlot returns the elements in a slot.
func (s *rowStore) memorySlot(at embcache.Slot) []float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slotLocked(at)
}

// isBelow reports whether a tier is believed to have rows.
func (s *rowStore) isBelow(key *embcache.RowKey) bool {
	return s.tiers != nil && identifies(key) && s.tiers.Has(key.TierKey())
}

// raiseRows looks rows up in the memory of other workers of the host and in the tiers, and stores what it finds in memory.
func (s *mediaEncoders) raiseRows(ctx context.Context, w *rowRequest, key *embcache.RowKey) (storedRows, bool) {
	if r, ok := s.readSharedRows(w, key); ok {
		return r, true
	}
	if s.rows.tiers == nil || !identifies(key) {
		return storedRows{}, false
	}
	r, elements, ok := s.rows.tiers.Load(ctx, key.TierKey(), func(r *embcache.TierRecord, elements []byte) bool {
		n := r.Shape.Rows
		return r.Type == uint8(media.Float32) && r.Shape.Layers == 1 && r.Shape.Width == s.rows.width && n > 0 &&
			len(elements) == elementBytes*n*s.rows.width && s.fitsGrid(w.object, n, r.Shape.Grid)
	})
	if !ok || w.pads != 0 && w.pads != r.Shape.Rows { // what is computed says what is wrong
		return storedRows{}, false
	}
	rows := make([]float32, r.Shape.Rows*s.rows.width)
	copy(bytesOf(rows), elements)
	swapUnlessLittle(rows)
	stored := s.rows.storeRows(key, w.object, rows, r.Shape.Grid)
	stored.raised = true
	return stored, true
}
