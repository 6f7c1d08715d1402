// Package embfeed encodes the events of an embedding cache: which encoder rows a worker holds. Their records are
// numbered, repaired and described as package kvfeed says; a kvfeed.Tracker judges them.
//
// docs/format/embedding-event.md has the bytes.
package embfeed

import (
	"encoding/binary"
	"fmt"
	"slices"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

// Kind says what happened to an entry. The format has the same numbers.
type Kind uint8

// The kinds.
const (
	Added    Kind = iota + 1 // it can be read
	Evicted                  // it made room
	Cleared                  // nothing of before is known; a description of the whole cache follows
	Replaced                 // a newer entry takes its place: the next event adds that one
	Expired                  // its time has passed: the URL by which it is known may show something else
	Removed                  // it was taken out
	kinds    = iota + 1
)

var kindNames = [kinds]string{"kind?", "added", "evicted", "cleared", "replaced", "expired", "removed"}

// String returns the kind's name as metrics and tables print it.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return kindNames[0]
}

// Event is one change of an embedding cache.
type Event struct {
	Kind Kind
	// Key names the entry, see embcache.EventKey. It is zero if Kind is Cleared, and so are the others.
	Key kv.Digest
	// Rows is the number of rows of the entry, one for each token of its object, and Bytes their size.
	Rows  uint32
	Bytes uint64
}

// EventRecord is a sequence of consecutive events of one worker, as published.
type EventRecord struct {
	Worker kv.Worker
	// Epoch and First are as in kvfeed.Span: First is the number of Events[0], or of the next event.
	Epoch, First uint64
	Events       []Event
}

// Span implements [kvfeed.Numbered].
func (r *EventRecord) Span() kvfeed.Span {
	return kvfeed.Span{Worker: r.Worker, Epoch: r.Epoch, First: r.First, Count: len(r.Events)}
}

// IsCleared implements [kvfeed.Numbered].
func (r *EventRecord) IsCleared(event int) bool { return r.Events[event].Kind == Cleared }

var _ kvfeed.Numbered = (*EventRecord)(nil)

const (
	magic     = 0xED
	eventSize = 1 + 3 + 4 + 8 + 32 // kind, zeros, rows, bytes, key
	// MaxRecordEvents is how many events a publisher puts into one record: 48 KiB, far below the limit of a message.
	MaxRecordEvents = 1024
)

// AppendRecord appends the encoding of r to dst. It allocates only if dst must grow. It does not check for what
// DecodeRecord refuses, which would be the caller's defect.
func AppendRecord(dst []byte, r *EventRecord) []byte {
	size := eventSize * len(r.Events)
	dst = slices.Grow(dst, kvfeed.HeaderSize+size)
	dst = kvfeed.AppendHeader(dst, magic, &kvfeed.Header{Span: r.Span(), Length: size})
	le := binary.LittleEndian
	for i := range r.Events {
		ev := &r.Events[i]
		dst = append(dst, byte(ev.Kind), 0, 0, 0)
		dst = le.AppendUint32(dst, ev.Rows)
		dst = le.AppendUint64(dst, ev.Bytes)
		dst = append(dst, ev.Key[:]...)
	}
	return dst
}

// DecodeRecord decodes data into r, reusing r's memory; it keeps no part of data. After an error r must not be used.
// It ignores bytes after the events: a later version may add some.
func DecodeRecord(r *EventRecord, data []byte) error {
	if err := decodeRecord(r, data); err != nil {
		return fmt.Errorf("embfeed: decode record of %d bytes: %w", len(data), err)
	}
	return nil
}

func decodeRecord(r *EventRecord, data []byte) error {
	h, err := kvfeed.DecodeHeader(data, magic, eventSize)
	if err != nil {
		return err
	}
	if h.Length != h.Count*eventSize {
		return fmt.Errorf("%d events in %d bytes", h.Count, h.Length)
	}
	r.Worker, r.Epoch, r.First = h.Worker, h.Epoch, h.First
	r.Events = slices.Grow(r.Events[:0], h.Count)
	le := binary.LittleEndian
	for data = data[kvfeed.HeaderSize:][:h.Length]; len(data) > 0; data = data[eventSize:] {
		ev := Event{Kind: Kind(data[0]), Rows: le.Uint32(data[4:]), Bytes: le.Uint64(data[8:]), Key: kv.Digest(data[16:eventSize])}
		switch named := ev.Key != (kv.Digest{}); {
		case ev.Kind == 0 || ev.Kind >= kinds:
			return fmt.Errorf("event %d: unknown kind %d", len(r.Events), ev.Kind)
		case named == (ev.Kind == Cleared):
			return fmt.Errorf("event %d: %v with the key %x", len(r.Events), ev.Kind, ev.Key)
		}
		r.Events = append(r.Events, ev)
	}
	return nil
}
