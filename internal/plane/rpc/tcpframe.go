package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

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
