// Package kvfeed keeps one ordered feed of cache events per worker and rank consistent: of KV events, and, with the
// records of package embfeed, of the events of an embedding cache.
//
// A worker numbers its events from 1, consecutively, within an epoch: one incarnation of the worker. It
// publishes them in [Record]s. A [Tracker] checks each record which arrives and decides what may be applied
// to the index: nothing twice, nothing from an earlier epoch, and nothing at all after a loss, until the
// missing events have arrived or the worker has described its whole cache again. Such a description begins
// with a Cleared event and continues the same numbering, so it needs no separate message: any record with a
// Cleared event repairs what came before it.
//
// The byte layout of a record is in docs/format/kvevent.md.
package kvfeed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"penstock/core/kv"
)

// The fixed parts of the format; see docs/format/kvevent.md.
const (
	magic   = 0xEB
	version = 1

	storedSize  = 2 + 4 + 8 + 4 // kind, tier, start, parent, count
	removedSize = 2 + 4         // kind, tier, count
	clearedSize = 2             // kind, tier
	hashSize    = 8

	// Labels follow the events, where older readers do not look.
	flagLabels     = 1 // of the header's third byte
	labelEntrySize = 4 // index of the event
	moreEntries    = 1 << 31
	labelSize      = 1 + 4 + 4 + 4 // fields, layer, expert, group
	flagMoveLabels = 4             // labels of moved blocks follow the moves
)

// MaxEvents is the maximum number of events in one record.
const MaxEvents = 1 << 16

// ErrVersion is in the chain of DecodeRecord's error when the record is of a version which this build cannot
// read.
var ErrVersion = errors.New("unknown version")

// EventSize returns the number of bytes which ev takes in a record, so that a publisher can keep its records
// below the event plane's limit.
func EventSize(ev kv.Event) int {
	switch ev.Kind {
	case kv.Stored:
		size := storedSize + hashSize*len(ev.Blocks)
		return size + labelBytes(&ev)
	case kv.Removed:
		return removedSize + hashSize*len(ev.Seqs)
	case kv.Moved:
		return removedSize + moveBytes(&ev) + labelBytes(&ev)
	}
	return clearedSize
}

// AppendRecord appends the encoding of r to dst. It allocates only if dst must grow. It does not check for
// what DecodeRecord refuses (an event of no kind, more than MaxEvents events, a sequence number 0, an invalid
// label, an access list of more than MaxAccess), which would be the caller's defect.
func AppendRecord(dst []byte, r *Record) []byte {
	size, behind := 0, 0 // total size; the part of it after the events
	flags := byte(0)
	for i := range r.Events {
		ev := &r.Events[i]
		size += EventSize(*ev)
		behind += labelBytes(ev)
		switch moved := ev.Kind == kv.Moved; {
		case moved && ev.Move.OfBlocks:
			behind += moveBytes(ev)
			flags |= flagBlockMoves
		case moved && hasLabels(ev):
			behind += moveBytes(ev)
			flags |= flagMoves | flagMoveLabels
		case moved:
			behind += moveBytes(ev)
			flags |= flagMoves
		case hasLabels(ev):
			flags |= flagLabels
		}
	}
	dst = slices.Grow(dst, HeaderSize+size)
	dst = AppendHeader(dst, magic, &Header{Span: r.Span(), Flags: flags, Unit: r.BlockSize, Length: size - behind})
	for i := range r.Events {
		dst = appendEvent(dst, &r.Events[i])
	}
	if flags&flagLabels != 0 {
		dst = appendLabels(dst, r.Events, kv.Stored)
	}
	if flags&flagMoves != 0 {
		dst = appendMoves(dst, r.Events, false)
	}
	if flags&flagMoveLabels != 0 {
		dst = appendLabels(dst, r.Events, kv.Moved)
	}
	if flags&flagBlockMoves != 0 {
		dst = appendMoves(dst, r.Events, true)
	}
	return dst
}

func appendEvent(dst []byte, ev *kv.Event) []byte {
	le := binary.LittleEndian
	if ev.Kind == kv.Moved { // encoded as an empty removal
		dst = append(dst, byte(kv.Removed), byte(kv.TierDevice))
		return le.AppendUint32(dst, 0)
	}
	dst = append(dst, byte(ev.Kind), byte(ev.Tier))
	switch ev.Kind {
	case kv.Stored:
		dst = le.AppendUint32(dst, ev.Start)
		dst = le.AppendUint64(dst, uint64(ev.Parent))
		dst = le.AppendUint32(dst, uint32(len(ev.Blocks)))
		for _, b := range ev.Blocks {
			dst = le.AppendUint64(dst, uint64(b))
		}
	case kv.Removed:
		dst = le.AppendUint32(dst, uint32(len(ev.Seqs)))
		for _, s := range ev.Seqs {
			dst = le.AppendUint64(dst, uint64(s))
		}
	}
	return dst
}

// DecodeRecord decodes data into r, reusing r's memory from an earlier call; it keeps no part of data. r's
// events and their slices are valid until the next call with the same r; after an error r must not be used.
// It ignores bytes after what the flags which it knows announce: a later version may add some.
func DecodeRecord(r *Record, data []byte) error {
	if err := decodeRecord(r, data); err != nil {
		return fmt.Errorf("kvfeed: decode record of %d bytes: %w", len(data), err)
	}
	return nil
}

func decodeRecord(r *Record, data []byte) error {
	h, err := DecodeHeader(data, magic, clearedSize)
	if err != nil {
		return err
	}
	r.Worker, r.Epoch, r.First, r.BlockSize = h.Worker, h.Epoch, h.First, h.Unit
	data = data[HeaderSize:]
	if err := r.decodeEvents(h.Count, data[:h.Length]); err != nil {
		return err
	}
	return r.decodeAdditions(h.Flags, data[h.Length:])
}

// decodeAdditions decodes what follows the events.
func (r *Record) decodeAdditions(flags byte, data []byte) (err error) {
	// No slice may grow while events point into it; the size of data bounds the labels of all kinds.
	r.labels = r.labels[:0]
	if flags&(flagLabels|flagMoveLabels|flagBlockMoves) != 0 {
		r.labels = slices.Grow(r.labels, len(data)/labelSize)
	}
	if flags&flagLabels != 0 {
		if data, err = r.decodeLabels(data, kv.Stored); err != nil {
			return err
		}
	}
	if flags&(flagMoves|flagBlockMoves) != 0 {
		r.growMoves(data)
	}
	if flags&flagMoves != 0 {
		if data, err = r.decodeMoves(data, false); err != nil {
			return err
		}
	}
	if flags&flagMoveLabels != 0 {
		if data, err = r.decodeLabels(data, kv.Moved); err != nil {
			return err
		}
	}
	if flags&flagBlockMoves != 0 {
		_, err = r.decodeMoves(data, true)
	}
	return err
}

// decodeEvents decodes count events which fill data exactly.
func (r *Record) decodeEvents(count int, data []byte) error {
	// No slice may grow while events point into it; the size of data bounds them all.
	r.Events = slices.Grow(r.Events[:0], count)
	r.blocks = slices.Grow(r.blocks[:0], len(data)/hashSize)
	r.seqs = slices.Grow(r.seqs[:0], len(data)/hashSize)
	for i := range count {
		r.Events = append(r.Events, kv.Event{})
		var err error
		if data, err = r.decodeEvent(&r.Events[i], data); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	if len(data) > 0 {
		return fmt.Errorf("%d bytes after the last event of the body", len(data))
	}
	return nil
}

// decodeEvent decodes the first event of data into ev, which is empty, and returns the rest.
func (r *Record) decodeEvent(ev *kv.Event, data []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(data) < clearedSize {
		return nil, errTruncated
	}
	ev.Kind, ev.Tier = kv.EventKind(data[0]), kv.Tier(data[1])
	if ev.Tier >= kv.Tiers {
		return nil, fmt.Errorf("unknown tier %d", data[1])
	}
	switch ev.Kind {
	case kv.Cleared:
		return data[clearedSize:], nil
	case kv.Stored:
		if len(data) < storedSize {
			return nil, errTruncated
		}
		ev.Start, ev.Parent = le.Uint32(data[2:]), kv.SeqHash(le.Uint64(data[6:]))
		list, rest, err := splitHashes(data[storedSize-4:])
		if err != nil {
			return nil, err
		}
		if uint64(ev.Start)+uint64(len(list)/hashSize) > math.MaxUint32 {
			return nil, errors.New("blocks beyond the longest sequence")
		}
		r.blocks, ev.Blocks = appendHashes(r.blocks, list)
		return rest, nil
	case kv.Removed:
		list, rest, err := splitHashes(data[removedSize-4:])
		if err != nil {
			return nil, err
		}
		r.seqs, ev.Seqs = appendHashes(r.seqs, list)
		return rest, nil
	}
	return nil, fmt.Errorf("unknown kind %d", data[0])
}

var errTruncated = errors.New("cut short")

// splitHashes splits a counted list of hashes off data.
func splitHashes(data []byte) (list, rest []byte, err error) {
	if len(data) < 4 {
		return nil, nil, errTruncated
	}
	n := uint64(binary.LittleEndian.Uint32(data)) * hashSize
	data = data[4:]
	if n > uint64(len(data)) {
		return nil, nil, errTruncated
	}
	return data[:n], data[n:], nil
}

// appendHashes appends the hashes in data to all, which has room for them, and also returns the appended
// part, capped so that later appends cannot overwrite it.
func appendHashes[H ~uint64](all []H, data []byte) (grown, part []H) {
	from := len(all)
	for ; len(data) > 0; data = data[hashSize:] {
		all = append(all, H(binary.LittleEndian.Uint64(data)))
	}
	return all, all[from:len(all):len(all)]
}

// Record is a sequence of consecutive events of one worker, as published.
type Record struct {
	Worker kv.Worker
	// Epoch identifies the worker's incarnation; a restarted worker has a larger one.
	Epoch uint64
	// First is the sequence number of Events[0], at least 1. In a record without events First is the number
	// of the next event: an idle worker may send one so that the loss of its last record is detected.
	First uint64
	// BlockSize is the number of tokens in a block of this worker.
	BlockSize uint32
	Events    []kv.Event

	// The other fields hold the memory of a decoded record's events.
	blocks []kv.BlockHash
	seqs   []kv.SeqHash
	labels []kv.MoELabel
	moved  []kv.SeqHash
	access []kv.Worker
}

// Span implements [Numbered].
func (r *Record) Span() Span {
	return Span{Worker: r.Worker, Epoch: r.Epoch, First: r.First, Count: len(r.Events)}
}

// IsCleared implements [Numbered].
func (r *Record) IsCleared(event int) bool { return r.Events[event].Kind == kv.Cleared }

// The bounds of one record. At 8 bytes per hash, and 13 more for its label, it stays far below the message
// limit of any event plane, and a router which applies one holds its lock for a fraction of a millisecond.
const (
	maxRecordHashes = 4096
	maxRecordEvents = 1024
)

// RecordSplitter divides a sequence of events into parts which fit a record. It splits an event with more
// hashes than fit. The rest of a stored event continues from the prefix at which the previous part ends. The
// access list of a moved event is only in its first part if it applies to the pool from then on. A list is cut
// to MaxAccess, so that less is known of the pool. The zero value has no events.
type RecordSplitter struct {
	events []kv.Event
	part   []kv.Event
}

// Reset sets the events to split.
func (c *RecordSplitter) Reset(events []kv.Event) { c.events = events }

// Next returns the next part, valid until the next call; it is empty at the end. It consumes the events of
// Reset but does not change them.
func (c *RecordSplitter) Next() []kv.Event {
	c.part = c.part[:0]
	for room := maxRecordHashes; len(c.events) > 0 && len(c.part) < maxRecordEvents; {
		ev := c.events[0]
		ev.Move.Access = ev.Move.Access[:min(len(ev.Move.Access), MaxAccess)]
		n := len(ev.Blocks) + len(ev.Seqs) + len(ev.Move.Access)
		if n <= room {
			c.part, c.events, room = append(c.part, ev), c.events[1:], room-n
			continue
		}
		if len(c.part) > 0 {
			break // it starts the next part, which may hold it whole
		}
		// An access list may fill a part by itself; it goes with at least one hash.
		head, tail := splitEvent(ev, max(1, room-len(ev.Move.Access)))
		c.part = append(c.part, head)
		// The rest replaces the event, in newly allocated memory: the caller's slice must not be written.
		c.events = append([]kv.Event{tail}, c.events[1:]...)
		break
	}
	return c.part
}

// splitEvent splits an event with more than n hashes after the first n.
func splitEvent(ev kv.Event, n int) (head, tail kv.Event) {
	head, tail = ev, ev
	head.Labels, tail.Labels = nil, nil
	if hasLabels(&ev) {
		head.Labels, tail.Labels = ev.Labels[:n], ev.Labels[n:]
	}
	if ev.Kind == kv.Removed || ev.Kind == kv.Moved {
		head.Seqs, tail.Seqs = ev.Seqs[:n], ev.Seqs[n:]
		if !ev.Move.OfBlocks {
			tail.Move.Access = nil
		}
		return head, tail
	}
	head.Blocks, tail.Blocks = ev.Blocks[:n], ev.Blocks[n:]
	for i, b := range head.Blocks {
		tail.Parent = kv.ExtendSeq(tail.Parent, ev.Start+uint32(i), b)
	}
	tail.Start = ev.Start + uint32(n)
	return head, tail
}
