// Package snapshot is the file in which a router saves its state, so that its successor need not receive all
// of it again: the position in an event stream which it covers, and sections written by the packages which
// own the state. This package knows only frames and checksums. The format is in docs/format/snapshot.md.
//
// A snapshot holds hashes and numbers, never tokens: the format says what a section may contain.
package snapshot

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Version is the version of the frames which this package reads and writes.
const Version = 1

// SectionKind says what a section holds. Numbers are never reused.
type SectionKind uint16

// The kinds of section.
const (
	Index           SectionKind = 1 // core/prefix: which worker holds which blocks
	Feeds           SectionKind = 2 // core/kvfeed: the position in each worker's feed
	Residency       SectionKind = 3 // core/poolindex: which blocks are in which pool
	Workers         SectionKind = 4 // the router: the epochs of the workers
	PoolLabels      SectionKind = 5 // core/poolindex: the labels of the blocks in pools
	PoolAccess      SectionKind = 6 // core/poolindex: the access lists of the blocks in pools
	PoolGenerations SectionKind = 7 // the router: which memory the pools are
)

// String returns the kind's name as logs print it.
func (k SectionKind) String() string {
	switch k {
	case Index:
		return "index"
	case Feeds:
		return "feeds"
	case Residency:
		return "residency"
	case Workers:
		return "workers"
	case PoolLabels:
		return "pool labels"
	case PoolAccess:
		return "pool access"
	case PoolGenerations:
		return "pool generations"
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// SectionNeed says what a reader does with an unknown section.
type SectionNeed uint8

const (
	// Optional sections are skipped: their content can be learned in other ways.
	Optional SectionNeed = iota
	// Required sections make a reader refuse the snapshot: without them its state would be wrong, not only
	// incomplete.
	Required
)

// Header says what a snapshot covers.
type Header struct {
	// StreamID identifies the event stream and Seq is the sequence number of a message in it. The snapshot
	// includes all messages up to this one, and no later ones.
	StreamID, Seq uint64
	// Taken is when it was taken, in milliseconds since 1970 UTC by its writer's clock. It is informative
	// only.
	Taken int64
}

// Section is one part of a snapshot. Version is the version of its data, numbered by the package which writes
// it.
type Section struct {
	Kind    SectionKind
	Version uint16
	Need    SectionNeed
	Data    []byte
}

const (
	magic   = "PENSNAP\n" // the line end reveals a transfer which converts line ends
	endMark = "SNAPEND\n"
	// headerSize and frameSize include their own checksums, frameSize also the checksum of the section's
	// data.
	headerSize = 40
	frameSize  = 24
	endSize    = 16
	// maxSections is the maximum number of sections of a snapshot.
	maxSections = 64
	// required is the flag bit of a required section.
	required = 1
)

// castagnoli is the polynomial of all checksums: processors have an instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// Writer writes a snapshot. Its methods append to one buffer, and only Finish computes checksums, because
// sections are usually written while a lock is held.
type Writer struct {
	buf          []byte
	frameOffsets []int // the offset of each section's frame in buf
}

// NewWriter returns a Writer which appends to buf and owns it.
func NewWriter(buf []byte, h Header) *Writer {
	w := &Writer{buf: buf[:0]}
	w.buf = append(w.buf, magic...)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, Version)
	w.buf = append(w.buf, 0, 0) // reserved
	w.buf = binary.LittleEndian.AppendUint64(w.buf, h.StreamID)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, h.Seq)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(h.Taken))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, checksum(w.buf))
	return w
}

// AddSection appends a section; fill appends its data. A kind may be added once, and at most 64 sections in
// total: anything else is a defect of the caller and panics.
func (w *Writer) AddSection(k SectionKind, version uint16, need SectionNeed, fill func(dst []byte) []byte) {
	if len(w.frameOffsets) == maxSections {
		panic("snapshot: too many sections")
	}
	at := len(w.buf)
	w.frameOffsets = append(w.frameOffsets, at)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(k))
	w.buf = binary.LittleEndian.AppendUint16(w.buf, version)
	w.buf = append(w.buf, needFlags(need), 0, 0, 0)
	w.buf = append(w.buf, make([]byte, frameSize-8)...) // length and checksums: see Finish
	w.buf = fill(w.buf)
	binary.LittleEndian.PutUint64(w.buf[at+8:], uint64(len(w.buf)-at-frameSize))
}

func needFlags(n SectionNeed) byte {
	if n == Required {
		return required
	}
	return 0
}

// Finish computes the checksums and returns the snapshot. The Writer must not be used afterwards.
func (w *Writer) Finish() []byte {
	for _, at := range w.frameOffsets {
		frame := w.buf[at : at+frameSize]
		end := at + frameSize + int(binary.LittleEndian.Uint64(frame[8:]))
		binary.LittleEndian.PutUint32(frame[16:], checksum(w.buf[at+frameSize:end]))
		binary.LittleEndian.PutUint32(frame[20:], checksum(frame[:20]))
	}
	w.buf = append(w.buf, endMark...)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(w.frameOffsets)))
	return binary.LittleEndian.AppendUint32(w.buf, checksum(w.buf))
}
