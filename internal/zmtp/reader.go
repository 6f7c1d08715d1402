package zmtp

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The memory of a reader: it begins small, for the many peers that say little,
// doubles while reads fill it, and beyond fullBuffer only for a message that is
// larger. What a peer announces is believed as it arrives, not before.
const (
	firstBuffer = 8 << 10
	fullBuffer  = 1 << 20
	// shrinkAfter is how many reads in a row that had no need of a larger buffer
	// have it given back.
	shrinkAfter = 256
)

// reader cuts a stream of bytes into messages and commands. Its buffer holds many
// of them after one read; what it returns aliases the buffer until the next fill.
type reader struct {
	src       io.Reader
	max       int64 // bytes of a message
	maxFrames int

	buf  []byte
	r, w int // buf[r:w] is unread
	at   int // how far the message that begins at r is understood, from r
	need int // how many bytes from r the next step needs at least

	size   int64  // of the frames of that message so far
	spans  []span // those frames, from r
	frames [][]byte
	calm   int // fills since the buffer had to be large
}

type span struct{ from, to int }

// What next found.
type token uint8

const (
	tokenNone    token = iota // the buffer holds no whole one; fill
	tokenMessage              // reader.frames
	tokenCommand              // the returned body
)

// next returns the next message or command that the buffer holds whole. A command
// may come between the frames of a message: libzmq's heartbeats do.
func (rd *reader) next() (token, []byte, error) {
	if len(rd.spans) == 0 {
		// Nothing of a message is held: what was understood is done with.
		rd.r, rd.at = rd.r+rd.at, 0
	}
	for {
		b := rd.buf[rd.r+rd.at : rd.w]
		if len(b) < 2 {
			rd.need = rd.at + 2
			return tokenNone, nil, nil
		}
		flags, size, head := b[0], uint64(b[1]), 2
		if flags&flagLong != 0 {
			if len(b) < maxHeader {
				rd.need = rd.at + maxHeader
				return tokenNone, nil, nil
			}
			size, head = binary.BigEndian.Uint64(b[1:]), maxHeader
		}
		if err := rd.check(flags, size); err != nil {
			return tokenNone, nil, err
		}
		from := rd.at + head
		to := from + int(size)
		if to > rd.at+len(b) {
			rd.need = to
			return tokenNone, nil, nil
		}
		rd.at = to
		if flags&flagCommand != 0 {
			return tokenCommand, rd.buf[rd.r+from : rd.r+to], nil
		}
		rd.size += int64(size)
		rd.spans = append(rd.spans, span{from, to})
		if flags&flagMore == 0 {
			rd.finish()
			return tokenMessage, nil, nil
		}
	}
}

// check holds a frame against the protocol and the bounds.
func (rd *reader) check(flags byte, size uint64) error {
	switch {
	case flags&^flagsKnown != 0 || flags&flagCommand != 0 && flags&flagMore != 0:
		return fmt.Errorf("%w: a frame with flags %#02x", ErrProtocol, flags)
	case flags&flagCommand != 0 && size > maxCommand:
		return fmt.Errorf("%w: a command of %d bytes, at most %d are allowed", ErrTooLarge, size, maxCommand)
	case flags&flagCommand != 0:
		// Commands inside a message wait for its end: they must not pile up.
		if int64(rd.at) > rd.max+int64(rd.maxFrames)*maxHeader+4*maxCommand {
			return fmt.Errorf("%w: %d bytes of commands inside a message", ErrTooLarge, int64(rd.at)-rd.size)
		}
	case size > uint64(rd.max-rd.size):
		return fmt.Errorf("%w: a message of more than %d bytes", ErrTooLarge, rd.max)
	case len(rd.spans) >= rd.maxFrames:
		return fmt.Errorf("%w: a message of more than %d frames", ErrTooLarge, rd.maxFrames)
	}
	return nil
}

// finish makes the frames of a whole message, and forgets it.
func (rd *reader) finish() {
	rd.frames = rd.frames[:0]
	whole := rd.buf[rd.r:rd.w]
	for _, s := range rd.spans {
		rd.frames = append(rd.frames, whole[s.from:s.to:s.to])
	}
	rd.spans, rd.size = rd.spans[:0], 0
}

// fill reads once, after making room for what next needs. What next returned
// before is no longer valid.
func (rd *reader) fill() error {
	rd.makeRoom()
	n, err := rd.src.Read(rd.buf[rd.w:])
	rd.w += n
	if n > 0 {
		return nil // an error comes again with the next read
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// makeRoom moves what is unread to the front of the buffer, and has a larger or
// smaller one where that is due.
func (rd *reader) makeRoom() {
	held := rd.w - rd.r
	size := len(rd.buf)
	switch {
	case size == 0:
		size = firstBuffer
	case rd.w == size && (size < fullBuffer || held == size):
		// The last read filled it, or a message does: a message that is larger is
		// believed as far as it has come.
		size *= 2
		if size > fullBuffer {
			size = max(fullBuffer, min(size, rd.need))
		}
	case size > fullBuffer && held <= fullBuffer/2 && rd.need <= fullBuffer/2:
		if rd.calm++; rd.calm >= shrinkAfter {
			size = fullBuffer
		}
	default:
		rd.calm = 0
	}
	switch {
	case size != len(rd.buf):
		buf := make([]byte, size)
		copy(buf, rd.buf[rd.r:rd.w])
		rd.buf, rd.calm = buf, 0
	case rd.r > 0:
		copy(rd.buf, rd.buf[rd.r:rd.w])
	}
	rd.r, rd.w = 0, held
}
