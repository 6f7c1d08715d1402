package xfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// frameType is the type of a frame. Numbers are never reused.
type frameType uint8

const (
	frameHello   frameType = 1  // both, first: versions; the client's has the token
	frameBegin   frameType = 2  // writer: claims a transfer
	frameChunk   frameType = 3  // writer: a chunk; over TCP its bytes follow the frame
	frameEnd     frameType = 4  // writer: the digest of all chunks, and a note
	frameAbort   frameType = 5  // writer: gives up; the connection ends
	frameRegion  frameType = 6  // owner, shared memory: the region of the connection
	frameTaken   frameType = 7  // owner, shared memory: slots which may be written again
	frameOutcome frameType = 8  // owner: how the transfer ended; unless it is OK, the connection ends
	frameRetire  frameType = 9  // owner: the writer should close the connection instead of keeping it
	frameWhole   frameType = 10 // writer: all of a small transfer; over TCP its bytes follow the frame
	frameJoin    frameType = 11 // both, UCX: where the messages of the other side go
	frameShared  frameType = 12 // owner of a SharedRegion: its memory, and the reader's notes
)

const (
	// frameHead is the size of length and type, frameSum that of the checksum after the payload.
	frameHead, frameSum = 5, 4
	// maxPayload bounds the payload of a frame: an END with the longest note.
	maxPayload = 8 + MaxNote
	// maxReason bounds the text of a failure, in bytes.
	maxReason = 1 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamagedFrame = errors.New("bytes were damaged on the way: the checksum of a frame is wrong")

// beginFrame appends the head of a frame; endFrame completes the frame which begins at start.
func beginFrame(dst []byte, t frameType) []byte { return append(dst, 0, 0, 0, 0, byte(t)) }

func endFrame(dst []byte, start int) []byte {
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-frameHead))
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// splitFrame splits the first frame from b, which the payload aliases, and returns its size. Size 0
// means that b does not hold the whole frame.
func splitFrame(b []byte) (t frameType, payload []byte, size int, err error) {
	if len(b) < frameHead {
		return 0, nil, 0, nil
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxPayload {
		return 0, nil, 0, fmt.Errorf("a frame of %d bytes, at most %d are allowed", n, maxPayload)
	}
	end := frameHead + int(n)
	if len(b) < end+frameSum {
		return 0, nil, 0, nil
	}
	if crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return 0, nil, 0, errDamagedFrame
	}
	return frameType(b[4]), b[frameHead:end:end], end + frameSum, nil
}

// beginHeader is the payload of BEGIN.
type beginHeader struct {
	epoch uint64
	id    transferID
	size  uint64
	// generation is that of the region in which the chunks are; 0 over TCP.
	generation uint64
}

func appendBegin(dst []byte, h beginHeader) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameBegin)
	dst = binary.LittleEndian.AppendUint64(dst, h.epoch)
	dst = append(dst, h.id[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, h.size)
	dst = binary.LittleEndian.AppendUint64(dst, h.generation)
	return endFrame(dst, start)
}

func decodeBegin(b []byte) (h beginHeader, err error) {
	if len(b) < 40 {
		return h, errShortFrame("BEGIN", b)
	}
	h.epoch = binary.LittleEndian.Uint64(b)
	copy(h.id[:], b[8:])
	h.size = binary.LittleEndian.Uint64(b[24:])
	h.generation = binary.LittleEndian.Uint64(b[32:])
	return h, nil
}

// chunkHeader is the payload of CHUNK.
type chunkHeader struct {
	offset uint64 // in the transfer
	size   uint32
	slot   uint32 // of the region; 0 over TCP
	digest Digest
}

func appendChunk(dst []byte, h chunkHeader) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameChunk)
	dst = binary.LittleEndian.AppendUint64(dst, h.offset)
	dst = binary.LittleEndian.AppendUint32(dst, h.size)
	dst = binary.LittleEndian.AppendUint32(dst, h.slot)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.digest))
	return endFrame(dst, start)
}

func decodeChunk(b []byte) (h chunkHeader, err error) {
	if len(b) < 24 {
		return h, errShortFrame("CHUNK", b)
	}
	return chunkHeader{
		offset: binary.LittleEndian.Uint64(b), size: binary.LittleEndian.Uint32(b[8:]),
		slot: binary.LittleEndian.Uint32(b[12:]), digest: Digest(binary.LittleEndian.Uint64(b[16:])),
	}, nil
}

func appendEnd(dst []byte, d Digest, note []byte) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameEnd)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(d))
	return endFrame(append(dst, note...), start)
}

// decodeEnd returns the digest and the note, which aliases b.
func decodeEnd(b []byte) (Digest, []byte, error) {
	if len(b) < 8 {
		return 0, nil, errShortFrame("END", b)
	}
	return Digest(binary.LittleEndian.Uint64(b)), b[8:], nil
}

// appendVerdict appends an OUTCOME or an ABORT. An OK has no text.
func appendVerdict(dst []byte, t frameType, err error) []byte {
	start := len(dst)
	dst = append(beginFrame(dst, t), byte(OutcomeOf(err)))
	if err != nil {
		text := err.Error()
		dst = append(dst, text[:min(len(text), maxReason)]...)
	}
	return endFrame(dst, start)
}

// decodeVerdict returns the error which an OUTCOME or an ABORT carries, nil for OK.
func decodeVerdict(b []byte) (verdict, err error) {
	if len(b) < 1 {
		return nil, errShortFrame("OUTCOME", b)
	}
	if TransferOutcome(b[0]) == OK {
		return nil, nil
	}
	return newFailure(TransferOutcome(b[0]), "%s", b[1:min(len(b), 1+maxReason)]), nil
}

func appendTaken(dst []byte, slots uint32) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameTaken)
	dst = binary.LittleEndian.AppendUint32(dst, slots)
	return endFrame(dst, start)
}

func decodeTaken(b []byte) (uint32, error) {
	if len(b) < 4 {
		return 0, errShortFrame("TAKEN", b)
	}
	return binary.LittleEndian.Uint32(b), nil
}

// appendRetire appends a RETIRE.
func appendRetire(dst []byte) []byte { return endFrame(beginFrame(dst, frameRetire), len(dst)) }

func errShortFrame(name string, b []byte) error {
	return fmt.Errorf("a %s of %d bytes", name, len(b))
}

// frameReader reads frames, and bytes between them.
type frameReader struct {
	r         io.Reader
	buf       []byte // grows for long notes
	from, end int    // what was read and not used
	// beforeWait, if not nil, is called before reading waits for bytes: what the peer waits for is sent.
	beforeWait func() error
	// beforeSleep, if not nil, is called before reading waits and does not poll any more.
	beforeSleep func()
	// onDeadline, if not nil, reports whether reading goes on after a deadline.
	onDeadline func() bool
}

// burstReader is a Reader which tells whether it would wait.
type burstReader interface {
	io.Reader
	// tryRead reads what has come into p, and what follows into q, and returns errWouldWait instead of
	// waiting.
	tryRead(p, q []byte) (int, error)
	// pollRead polls for a while, and then is tryRead.
	pollRead(p []byte) (int, error)
}

var errWouldWait = errors.New("no bytes have come")

// readBuffer is the initial size of the buffer. Small, so that few bytes of chunks pass through it.
const readBuffer = 4 << 10

// next returns the next frame. The payload is valid until the next call.
func (f *frameReader) next() (frameType, []byte, error) {
	for {
		t, payload, size, err := splitFrame(f.buf[f.from:f.end])
		if err != nil {
			return 0, nil, err
		}
		if size > 0 {
			f.from += size
			return t, payload, nil
		}
		if err := f.fill(); err != nil {
			return 0, nil, err
		}
	}
}

// fill reads more of an incomplete frame.
func (f *frameReader) fill() error {
	switch {
	case f.from == f.end:
		f.from, f.end = 0, 0
		if cap(f.buf) > readBuffer || f.buf == nil { // a long note is rare
			f.buf = make([]byte, readBuffer)
		}
	case f.from > 0:
		f.end = copy(f.buf, f.buf[f.from:f.end])
		f.from = 0
	}
	if f.end == len(f.buf) {
		f.buf = append(f.buf, make([]byte, len(f.buf))...) // at most to twice the longest frame
	}
	n, err := f.read(f.buf[f.end:], nil)
	f.end += n
	return err
}

// read reads at least one byte into p. If p is filled, it may read on into q.
func (f *frameReader) read(p, q []byte) (int, error) {
	for {
		n, err := f.readOnce(p, q)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			return 0, io.ErrNoProgress
		case f.onDeadline == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !f.onDeadline():
			return 0, err
		}
	}
}

func (f *frameReader) readOnce(p, q []byte) (int, error) {
	burst, ok := f.r.(burstReader)
	if ok {
		if n, err := burst.tryRead(p, q); err != errWouldWait {
			return n, err
		}
	}
	if f.beforeWait != nil {
		if err := f.beforeWait(); err != nil {
			return 0, err
		}
	}
	if ok {
		if n, err := burst.pollRead(p); err != errWouldWait {
			return n, err
		}
	}
	if f.beforeSleep != nil {
		f.beforeSleep()
	}
	return f.r.Read(p)
}

// buffered reports whether bytes were read that next or readFull have not returned.
func (f *frameReader) buffered() bool { return f.from < f.end }

// hasFrame reports whether next returns without reading.
func (f *frameReader) hasFrame() bool {
	b := f.buf[f.from:f.end]
	return len(b) >= frameHead && uint64(len(b)) >= frameHead+frameSum+uint64(binary.LittleEndian.Uint32(b))
}

// readFull fills p with the bytes after the last frame, whose payload is not valid any more. It returns
// how many have come.
func (f *frameReader) readFull(p []byte) (int, error) {
	n := copy(p, f.buf[f.from:f.end])
	f.from += n
	for n < len(p) {
		f.from, f.end = 0, 0
		k, err := f.read(p[n:], f.buf)
		if err != nil {
			return n, err
		}
		f.end = max(k-(len(p)-n), 0)
		n += k - f.end
	}
	return n, nil
}

// skip reads n bytes and forgets them.
func (f *frameReader) skip(n int) error {
	scratch := make([]byte, min(n, 32<<10))
	for n > 0 {
		part := scratch[:min(n, len(scratch))]
		if _, err := f.readFull(part); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}
