package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"penstock/core/fault"
)

// docs/format/rpc.md documents the bytes of everything on a connection.

// frameType is the type of a frame's payload. Numbers are never reused. Readers skip unknown types.
type frameType uint8

const (
	frameHello  frameType = iota + 1
	frameCall             // client: a call and the first part of its body
	frameBody             // client: a further part
	frameCancel           // client: the caller has canceled or disconnected
	frameCredit           // client: the caller has received this many frames and bytes
	frameData             // server: a frame of the answer
	frameStart            // server: the first part of a frame of the answer, and its size
	frameMore             // server: a further part
	frameEnd              // server: how the handler ended
	framePing
	framePong
	frameGoaway // server: no call after this one was started or will be
)

const (
	// tcpHeader is the size of a frame's header in bytes: payload length (3), type (1), call number
	// (4).
	tcpHeader = 8
	// tcpPayload bounds the payload of a frame, in bytes. One call delays the next byte of another
	// by at most this much.
	tcpPayload = 16 << 10
	// pingSize is the payload size of a PING, which its PONG repeats, in bytes.
	pingSize = 8
	// lastCall is the highest call number; after it a connection takes no more calls.
	lastCall = 1 << 31
)

// appendFrameHeader appends the header of a frame with a payload of n bytes.
func appendFrameHeader(dst []byte, t frameType, id uint32, n int) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(n)|uint64(t)<<24|uint64(id)<<32)
}

// decodeFrameHeader decodes the first tcpHeader bytes of b.
func decodeFrameHeader(b []byte) (t frameType, id uint32, n int) {
	h := binary.LittleEndian.Uint64(b)
	return frameType(h >> 24), uint32(h >> 32), int(h & (1<<24 - 1))
}

// callHeader is the first part of a CALL frame.
type callHeader struct {
	size   int // of the body, in bytes
	method string
	callMetadata
}

// appendCallHead appends the header of a CALL, which the body follows.
func appendCallHead(dst []byte, h *callHeader) []byte {
	start := len(dst)
	dst = append(dst, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.size))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.budget))
	for _, s := range [...]string{h.method, h.parent, h.state} {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(s)))
		dst = append(dst, s...)
	}
	binary.LittleEndian.PutUint16(dst[start:], uint16(len(dst)-start-2))
	return dst
}

// decodeCall splits the payload of a CALL into its header and the first part of the body, which
// aliases b. It skips what later versions append to the header.
func decodeCall(b []byte) (h callHeader, body []byte, err error) {
	if len(b) < 2 {
		return h, nil, errShortFrame("CALL", b)
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n < 12 || n > len(b)-2 {
		return h, nil, fmt.Errorf("decode CALL: a head of %d bytes in %d", n, len(b))
	}
	head, body := b[2:2+n], b[2+n:]
	size := binary.LittleEndian.Uint32(head)
	if uint64(size) < uint64(len(body)) {
		return h, nil, fmt.Errorf("decode CALL: %d bytes of a body of %d", len(body), size)
	}
	h.size = int(size)
	h.budget = time.Duration(min(binary.LittleEndian.Uint64(head[4:]), math.MaxInt64))
	head = head[12:]
	for _, s := range [...]struct {
		to    *string
		limit int
	}{{&h.method, MaxMethod}, {&h.parent, maxTrace}, {&h.state, maxTrace}} {
		if len(head) < 2 {
			return h, nil, errShortFrame("CALL", b)
		}
		n := int(binary.LittleEndian.Uint16(head))
		head = head[2:]
		if n > s.limit || n > len(head) {
			return h, nil, fmt.Errorf("decode CALL: a text of %d bytes in %d, at most %d are allowed", n, len(head), s.limit)
		}
		*s.to, head = string(head[:n]), head[n:]
	}
	return h, body, nil
}

// decodeCredit decodes how many frames, and bytes in them, the caller has received.
func decodeCredit(b []byte) (frames, bytes uint32, err error) {
	if len(b) < 8 {
		return 0, 0, errShortFrame("CREDIT", b)
	}
	return binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), nil
}

// appendCredit appends the payload of a CREDIT.
func appendCredit(dst []byte, frames, bytes uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, frames)
	return binary.LittleEndian.AppendUint32(dst, bytes)
}

// decodeStart splits the payload of a START into the size of the whole frame
// and its first part.
func decodeStart(b []byte) (size uint32, part []byte, err error) {
	if len(b) < 4 {
		return 0, nil, errShortFrame("START", b)
	}
	return binary.LittleEndian.Uint32(b), b[4:], nil
}

// decodeEnd reads the outcome of a call: nil, or the handler's error.
func decodeEnd(b []byte) (*fault.Error, error) {
	if len(b) == 0 {
		return nil, nil
	}
	return decodeFault(b)
}

// appendGoaway appends the payload of a GOAWAY: the last call that was started, and the reason.
func appendGoaway(dst []byte, last uint32, why *fault.Error) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, last)
	return appendFault(dst, why)
}

// decodeGoaway decodes the output of appendGoaway.
func decodeGoaway(b []byte) (last uint32, why *fault.Error, err error) {
	if len(b) < 4 {
		return 0, nil, errShortFrame("GOAWAY", b)
	}
	why, err = decodeFault(b[4:])
	return binary.LittleEndian.Uint32(b), why, err
}

func errShortFrame(frame string, b []byte) error {
	return fmt.Errorf("decode %s: %d bytes are too few", frame, len(b))
}

// castagnoli is the polynomial of CRC-32C, for which CPUs have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumSize is the size of a checksum in bytes.
const checksumSize = 4

// errDamaged ends a connection without TLS. TCP's own checksum has 16 bits, and proxies and network
// cards recompute it, so it misses damage that they introduce.
var errDamaged = errors.New("bytes were damaged on the way: the checksum of a frame is wrong; look at the network, or use TLS")

// framing is the frame format of a connection: with checksums, or without for builds that have
// none. The header's checksum follows the header, so a damaged length is never used. The checksum
// of header and payload follows the payload, if there is one.
type framing struct{ checksums bool }

// appendFrame appends a frame whose payload is a followed by b.
func (f framing) appendFrame(dst []byte, t frameType, id uint32, a, b []byte) []byte {
	start := len(dst)
	dst = appendFrameHeader(dst, t, id, len(a)+len(b))
	if !f.checksums {
		return append(append(dst, a...), b...)
	}
	sum := crc32.Update(0, castagnoli, dst[start:])
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	body := len(dst)
	dst = append(append(dst, a...), b...)
	if len(dst) > body {
		dst = binary.LittleEndian.AppendUint32(dst, crc32.Update(sum, castagnoli, dst[body:]))
	}
	return dst
}

// splitFrame splits the first frame from b, which the payload aliases, and returns its size. Size 0
// means that b does not hold the whole frame.
func (f framing) splitFrame(b []byte) (t frameType, id uint32, payload []byte, size int, err error) {
	head := tcpHeader
	if f.checksums {
		head += checksumSize
	}
	if len(b) < head {
		return 0, 0, nil, 0, nil
	}
	t, id, n := decodeFrameHeader(b)
	var sum uint32
	if f.checksums {
		sum = crc32.Update(0, castagnoli, b[:tcpHeader])
		if sum != binary.LittleEndian.Uint32(b[tcpHeader:]) {
			return 0, 0, nil, 0, errDamaged
		}
	}
	if n > tcpPayload {
		return 0, 0, nil, 0, fmt.Errorf("a frame of %d bytes, at most %d are allowed", n, tcpPayload)
	}
	size = head + n
	if f.checksums && n > 0 {
		size += checksumSize
	}
	if len(b) < size {
		return 0, 0, nil, 0, nil
	}
	payload = b[head : head+n]
	if f.checksums && n > 0 && crc32.Update(sum, castagnoli, payload) != binary.LittleEndian.Uint32(b[head+n:]) {
		return 0, 0, nil, 0, errDamaged
	}
	return t, id, payload, size, nil
}
