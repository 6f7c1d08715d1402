// Package snapshot is the file that a router leaves of what it knows, so that the next
// one need not hear all of it again: which place of which event stream it covers, and
// sections that the packages write whose state it is. This package knows their frames
// and checksums alone. The form is in docs/format/snapshot.md.
//
// It holds hashes and numbers, never tokens: what a section may contain is said there.
package snapshot

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Version is that of the frames that this package writes. It reads all up to it.
const Version = 1

// Kind says what a section holds. Numbers are never used again.
type Kind uint16

// The kinds of section.
const (
	Index     Kind = 1 // core/prefix: who holds what
	Feeds     Kind = 2 // core/feed: how far each worker's feed was heard
	Residency Kind = 3 // core/residency: what is in which pool
	Workers   Kind = 4 // the router: which lives of which workers these are
)

// String returns the kind's name as logs print it.
func (k Kind) String() string {
	switch k {
	case Index:
		return "index"
	case Feeds:
		return "feeds"
	case Residency:
		return "residency"
	case Workers:
		return "workers"
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// Need says what a reader does with a section that it does not know.
type Need uint8

const (
	// Optional sections are passed over: what is in them is learned in other ways.
	Optional Need = iota
	// Required sections make a reader refuse the snapshot: what it knows without them
	// would be wrong, not only less.
	Required
)

// Header says what a snapshot covers.
type Header struct {
	// Life is the identity of the event stream and Seq the sequence number of the last
	// message in it of which everything is in the snapshot; what comes later is not.
	Life, Seq uint64
	// Taken is when it was taken, in milliseconds since 1970 UTC by its writer's clock.
	// Nothing is decided by it.
	Taken int64
}

// Section is one part of a snapshot. Version is that of its data, which the package
// numbers that writes it.
type Section struct {
	Kind    Kind
	Version uint16
	Need    Need
	Data    []byte
}

const (
	magic   = "PENSNAP\n" // the end of line shows a transfer that changed it
	endMark = "SNAPEND\n"
	// headerSize and frameSize include the checksum of either, frameSize that of the
	// section's data too.
	headerSize = 40
	frameSize  = 24
	endSize    = 16
	// maxSections bounds the sections of a snapshot.
	maxSections = 64
	// required is the bit of a section's flags that says so.
	required = 1
)

// castagnoli is the polynomial of all checksums: processors have an instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// Writer makes a snapshot. Its methods append to one buffer, and no checksum is made
// before Finish: sections are usually written while a lock is held.
type Writer struct {
	buf    []byte
	frames []int // where each section's frame is in buf
}

// NewWriter returns a Writer that appends to buf, which is its own from now on.
func NewWriter(buf []byte, h Header) *Writer {
	w := &Writer{buf: buf[:0]}
	w.buf = append(w.buf, magic...)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, Version)
	w.buf = append(w.buf, 0, 0) // reserved
	w.buf = binary.LittleEndian.AppendUint64(w.buf, h.Life)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, h.Seq)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(h.Taken))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, sum(w.buf))
	return w
}

// Add appends a section of which fill appends the data. A kind may be added once, and
// no more than 64 sections in all: anything else is a defect of the caller and panics.
func (w *Writer) Add(k Kind, version uint16, need Need, fill func(dst []byte) []byte) {
	if len(w.frames) == maxSections {
		panic("snapshot: too many sections")
	}
	at := len(w.buf)
	w.frames = append(w.frames, at)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(k))
	w.buf = binary.LittleEndian.AppendUint16(w.buf, version)
	w.buf = append(w.buf, flags(need), 0, 0, 0)
	w.buf = append(w.buf, make([]byte, frameSize-8)...) // length and checksums: see Finish
	w.buf = fill(w.buf)
	binary.LittleEndian.PutUint64(w.buf[at+8:], uint64(len(w.buf)-at-frameSize))
}

func flags(n Need) byte {
	if n == Required {
		return required
	}
	return 0
}

// Finish makes the checksums and returns the snapshot. The Writer is at its end.
func (w *Writer) Finish() []byte {
	for _, at := range w.frames {
		frame := w.buf[at : at+frameSize]
		end := at + frameSize + int(binary.LittleEndian.Uint64(frame[8:]))
		binary.LittleEndian.PutUint32(frame[16:], sum(w.buf[at+frameSize:end]))
		binary.LittleEndian.PutUint32(frame[20:], sum(frame[:20]))
	}
	w.buf = append(w.buf, endMark...)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(w.frames)))
	return binary.LittleEndian.AppendUint32(w.buf, sum(w.buf))
}
