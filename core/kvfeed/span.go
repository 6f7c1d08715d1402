package kvfeed

import (
	"encoding/binary"
	"fmt"
	"math"

	"penstock/core/kv"
)

// Span names consecutive events of one worker's feed, as a [Tracker] needs to know them.
type Span struct {
	Worker kv.Worker
	// Epoch identifies the worker's incarnation; a restarted worker has a larger one.
	Epoch uint64
	// First is the number of the first event, at least 1; without events it is that of the next one.
	First uint64
	Count int // of events
}

// nextSeq returns the number after the last event.
func (s *Span) nextSeq() uint64 { return s.First + uint64(s.Count) }

// Numbered is a record of any kind of cache whose events are numbered as this package says: [Record], or that of
// package embfeed.
type Numbered interface {
	Span() Span
	// IsCleared reports whether an event, by its index in the record, says that a description of the whole cache
	// begins.
	IsCleared(event int) bool
}

// arrival is a record which a Tracker judges.
type arrival struct {
	Span
	record Numbered // nil without events
}

// isEpochStart reports whether a record may be the first one of an epoch.
func (a *arrival) isEpochStart() bool { return a.Count > 0 && a.record.IsCleared(0) }

// findCleared returns the index of the first Cleared event whose number is at least least.
func (a *arrival) findCleared(least uint64) (from int, ok bool) {
	for i := range a.Count {
		if a.First+uint64(i) >= least && a.record.IsCleared(i) {
			return i, true
		}
	}
	return 0, false
}

// HeaderSize is the size of a [Header], in bytes.
const HeaderSize = 44

// Header begins a record of any feed; docs/format/kvevent.md has its bytes.
type Header struct {
	Span
	// Flags say what follows the events.
	Flags byte
	// Unit is a number of the feed's own: of KV events the number of tokens in a block.
	Unit uint32
	// Length is the size of the events, in bytes.
	Length int
}

// AppendHeader appends the encoding of h to dst. magic says which feed it is.
func AppendHeader(dst []byte, magic byte, h *Header) []byte {
	le := binary.LittleEndian
	dst = append(dst, magic, version, h.Flags, 0)
	dst = le.AppendUint32(dst, h.Worker.Rank)
	dst = le.AppendUint64(dst, uint64(h.Worker.ID))
	dst = le.AppendUint64(dst, h.Epoch)
	dst = le.AppendUint64(dst, h.First)
	dst = le.AppendUint32(dst, h.Unit)
	dst = le.AppendUint32(dst, uint32(h.Count))
	return le.AppendUint32(dst, uint32(h.Length))
}

// DecodeHeader decodes the header of a record of the feed magic, whose events have at least least bytes each. The
// events are the Length bytes behind it, which are there.
func DecodeHeader(data []byte, magic byte, least int) (h Header, err error) {
	le := binary.LittleEndian
	switch {
	case len(data) < HeaderSize:
		return h, fmt.Errorf("%d bytes are shorter than a header", len(data))
	case data[0] != magic:
		return h, fmt.Errorf("first byte is %#x, not %#x", data[0], magic)
	case data[1] != version:
		return h, fmt.Errorf("%w %d", ErrVersion, data[1])
	}
	h.Flags = data[2]
	h.Worker = kv.Worker{ID: kv.WorkerID(le.Uint64(data[8:])), Rank: le.Uint32(data[4:])}
	h.Epoch, h.First, h.Unit = le.Uint64(data[16:]), le.Uint64(data[24:]), le.Uint32(data[32:])
	count, length := uint64(le.Uint32(data[36:])), uint64(le.Uint32(data[40:]))
	switch {
	case h.Worker.ID > kv.MaxWorkerID:
		return h, fmt.Errorf("worker id %d is too large", h.Worker.ID)
	case h.First == 0 || h.First > math.MaxUint64-MaxEvents:
		return h, fmt.Errorf("sequence number %d is out of range", h.First)
	case count > MaxEvents:
		return h, fmt.Errorf("%d events, more than %d", count, MaxEvents)
	case length > uint64(len(data)-HeaderSize):
		return h, fmt.Errorf("events of %d bytes in %d", length, len(data)-HeaderSize)
	case count*uint64(least) > length:
		return h, fmt.Errorf("%d events do not fit %d bytes", count, length)
	}
	h.Count, h.Length = int(count), int(length)
	return h, nil
}
