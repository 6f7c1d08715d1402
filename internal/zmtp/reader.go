package zmtp

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Sizes of the reader's buffer, in bytes. It starts small, because many peers send little, doubles
// while reads fill it, and exceeds fullBuffer only for a larger message. It grows with the received
// bytes, not with the announced size.
const (
	firstBuffer = 8 << 10
	fullBuffer  = 1 << 20
	// shrinkAfter is the number of consecutive reads without need for a larger buffer after which
	// the buffer shrinks.
	shrinkAfter = 256
)

// frameReader splits a stream of bytes into messages and commands. Its buffer can hold many of them
// after one read. What it returns aliases the buffer until the next fillBuffer.
type frameReader struct {
	src        io.Reader
	maxMessage int64 // bytes of a message
	maxFrames  int

	buf    []byte
	r, w   int // buf[r:w] is unread
	parsed int // how far the message which starts at r is parsed, from r
	need   int // how many bytes from r the next step needs at least

	size      int64        // of the parsed frames of that message
	spans     []frameRange // those frames, relative to r
	frames    [][]byte
	idleFills int // fills since a large buffer was needed
}

type frameRange struct{ from, to int }

// readerToken is the result of nextToken.
type readerToken uint8

const (
	tokenNone    readerToken = iota // no complete one is buffered; call fillBuffer
	tokenMessage                    // in frameReader.frames
	tokenCommand                    // in the returned body
)

// nextToken returns the next complete message or command in the buffer. A command may stand between
// the frames of a message, as libzmq's heartbeats do.
func (rd *frameReader) nextToken() (readerToken, []byte, error) {
	if len(rd.spans) == 0 {
		// No part of a message is pending: discard what was parsed.
		rd.r, rd.parsed = rd.r+rd.parsed, 0
	}
	for {
		b := rd.buf[rd.r+rd.parsed : rd.w]
		if len(b) < 2 {
			rd.need = rd.parsed + 2
			return tokenNone, nil, nil
		}
		flags, size, head := b[0], uint64(b[1]), 2
		if flags&flagLong != 0 {
			if len(b) < maxHeader {
				rd.need = rd.parsed + maxHeader
				return tokenNone, nil, nil
			}
			size, head = binary.BigEndian.Uint64(b[1:]), maxHeader
		}
		if err := rd.checkFrame(flags, size); err != nil {
			return tokenNone, nil, err
		}
		from := rd.parsed + head
		to := from + int(size)
		if to > rd.parsed+len(b) {
			rd.need = to
			return tokenNone, nil, nil
		}
		rd.parsed = to
		if flags&flagCommand != 0 {
			return tokenCommand, rd.buf[rd.r+from : rd.r+to], nil
		}
		rd.size += int64(size)
		rd.spans = append(rd.spans, frameRange{from, to})
		if flags&flagMore == 0 {
			rd.completeMessage()
			return tokenMessage, nil, nil
		}
	}
}

// checkFrame checks a frame against the protocol and the bounds.
func (rd *frameReader) checkFrame(flags byte, size uint64) error {
	switch {
	case flags&^flagsKnown != 0 || flags&flagCommand != 0 && flags&flagMore != 0:
		return fmt.Errorf("%w: a frame with flags %#02x", ErrProtocol, flags)
	case flags&flagCommand != 0 && size > maxCommand:
		return fmt.Errorf("%w: a command of %d bytes, at most %d are allowed", ErrTooLarge, size, maxCommand)
	case flags&flagCommand != 0:
		// Commands within a message stay buffered until its end, so their total size is bounded.
		if int64(rd.parsed) > rd.maxMessage+int64(rd.maxFrames)*maxHeader+4*maxCommand {
			return fmt.Errorf("%w: %d bytes of commands inside a message", ErrTooLarge, int64(rd.parsed)-rd.size)
		}
	case size > uint64(rd.maxMessage-rd.size):
		return fmt.Errorf("%w: a message of more than %d bytes", ErrTooLarge, rd.maxMessage)
	case len(rd.spans) >= rd.maxFrames:
		return fmt.Errorf("%w: a message of more than %d frames", ErrTooLarge, rd.maxFrames)
	}
	return nil
}

// completeMessage sets rd.frames to the frames of a complete message, and resets the parsing state.
func (rd *frameReader) completeMessage() {
	rd.frames = rd.frames[:0]
	whole := rd.buf[rd.r:rd.w]
	for _, s := range rd.spans {
		rd.frames = append(rd.frames, whole[s.from:s.to:s.to])
	}
	rd.spans, rd.size = rd.spans[:0], 0
}

// fillBuffer reads once, after making room for what nextToken needs. It invalidates earlier results
// of nextToken.
func (rd *frameReader) fillBuffer() error {
	rd.makeRoom()
	n, err := rd.src.Read(rd.buf[rd.w:])
	rd.w += n
	if n > 0 {
		return nil // the next read returns an error again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// makeRoom moves unread bytes to the front of the buffer, and replaces the buffer by a larger or
// smaller one if needed.
func (rd *frameReader) makeRoom() {
	held := rd.w - rd.r
	size := len(rd.buf)
	switch {
	case size == 0:
		size = firstBuffer
	case rd.w == size && (size < fullBuffer || held == size):
		// The last read or a message fills the buffer. For a larger message it grows with the
		// received bytes.
		size *= 2
		if size > fullBuffer {
			size = max(fullBuffer, min(size, rd.need))
		}
	case size > fullBuffer && held <= fullBuffer/2 && rd.need <= fullBuffer/2:
		if rd.idleFills++; rd.idleFills >= shrinkAfter {
			size = fullBuffer
		}
	default:
		rd.idleFills = 0
	}
	switch {
	case size != len(rd.buf):
		buf := make([]byte, size)
		copy(buf, rd.buf[rd.r:rd.w])
		rd.buf, rd.idleFills = buf, 0
	case rd.r > 0:
		copy(rd.buf, rd.buf[rd.r:rd.w])
	}
	rd.r, rd.w = 0, held
}
