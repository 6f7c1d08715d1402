package probe

import (
	"encoding/binary"
	"errors"
	"slices"
)

// The bounds of what is kept and read of files.
const (
	firstRead = 4 << 10  // bytes of the first read, and the minimum of any read
	keptHead  = 64 << 10 // bytes kept of the start
	maxPiece  = 64 << 10 // the largest single read of a parser
	maxSteps  = 1 << 16  // reads of a file
)

// errShort says that a view does not have the requested bytes. view.missing says which, unless they are
// after the end or the reads are exhausted.
var errShort = errors.New("probe: more of the file is needed")

// newMalformed returns the error of an invalid file; the caller adds the format.
func newMalformed(reason string) *Error { return &Error{Kind: Malformed, Reason: reason} }

// newUnsupported returns the error of an unsupported variant.
func newUnsupported(reason string) *Error { return &Error{Kind: Unsupported, Reason: reason} }

// filePart is a piece of a file.
type filePart struct {
	off int64
	b   []byte
}

func (p filePart) end() int64 { return p.off + int64(len(p.b)) }

// insertPart adds a copy of p to parts, which are ascending and do not touch. Bytes which are present
// already stay unchanged.
func insertPart(parts []filePart, p filePart) []filePart {
	for i := range parts {
		if len(p.b) == 0 {
			return parts
		}
		have := &parts[i]
		if p.end() < have.off {
			return slices.Insert(parts, i, filePart{p.off, slices.Clone(p.b)})
		}
		if p.off > have.end() {
			continue
		}
		if p.off < have.off { // the front of p, and the adjacent part
			have.b = append(slices.Clone(p.b[:have.off-p.off]), have.b...)
			have.off = p.off
		}
		if p.end() <= have.end() {
			return parts
		}
		rest := p.b[have.end()-p.off:] // up to the next part at least
		if i+1 < len(parts) && p.end() >= parts[i+1].off {
			next := parts[i+1]
			rest = rest[:max(0, int64(len(rest))-(p.end()-next.off))]
			more := p.b[min(int64(len(p.b)), next.off-p.off):]
			have.b = append(append(have.b, rest...), next.b...)
			parts = slices.Delete(parts, i+1, i+2)
			return insertPart(parts, filePart{next.off, more})
		}
		have.b = append(have.b, rest...)
		return parts
	}
	if len(p.b) == 0 {
		return parts
	}
	return append(parts, filePart{p.off, slices.Clone(p.b)})
}

// fileView is what is available of a file at one moment.
type fileView struct {
	parts   []filePart
	total   int64     // the file's length; -1 if unknown
	whole   bool      // parts are the whole file
	missing ByteRange // the first requested range which was absent
	steps   int
}

// readAt returns n bytes at an offset.
func (v *fileView) readAt(off int64, n int) ([]byte, bool) {
	v.steps++
	if off < 0 || n < 0 || n > maxPiece || v.steps > maxSteps || off > 1<<62 || v.total >= 0 && off+int64(n) > v.total {
		return nil, false
	}
	b := v.bytesFrom(off)
	if len(b) >= n {
		return b[:n], true
	}
	if !v.whole {
		v.missing = ByteRange{off + int64(len(b)), int64(n - len(b))}
	}
	return nil, false
}

// bytesFrom returns all contiguous bytes from an offset on.
func (v *fileView) bytesFrom(off int64) []byte {
	for _, p := range v.parts {
		if off >= p.off && off < p.end() {
			return p.b[off-p.off:]
		}
	}
	return nil
}

// readU16, readU32 and readU64 read numbers at an offset.
func (v *fileView) readU16(off int64, order binary.ByteOrder) (uint16, bool) {
	b, ok := v.readAt(off, 2)
	if !ok {
		return 0, false
	}
	return order.Uint16(b), true
}

func (v *fileView) readU32(off int64, order binary.ByteOrder) (uint32, bool) {
	b, ok := v.readAt(off, 4)
	if !ok {
		return 0, false
	}
	return order.Uint32(b), true
}

func (v *fileView) readU64(off int64, order binary.ByteOrder) (uint64, bool) {
	b, ok := v.readAt(off, 8)
	if !ok {
		return 0, false
	}
	return order.Uint64(b), true
}
