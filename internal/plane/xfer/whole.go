package xfer

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// wholeHeader is the payload of WHOLE, without the note which follows: all of a small transfer. Writers
// send them one after the other on a shared connection; the owner answers each with an OUTCOME, in order,
// and goes on whatever the outcome is.
type wholeHeader struct {
	epoch      uint64
	id         transferID
	size       uint32 // at most ChunkSize
	at         uint32 // offset in the region; 0 over TCP, where the bytes follow the frame
	generation uint64 // of what is in the region, as in BEGIN
	digest     Digest
}

const (
	// wholeHead is the size of an encoded wholeHeader.
	wholeHead = 8 + 16 + 4 + 4 + 8 + 8
	// maxWholeNote bounds the note of a WHOLE, in bytes, so that the ring has room for the frames of all
	// pieces of a region. A transfer with a longer note has a connection of its own.
	maxWholeNote = 512
)

func appendWhole(dst []byte, h wholeHeader, note []byte) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameWhole)
	dst = binary.LittleEndian.AppendUint64(dst, h.epoch)
	dst = append(dst, h.id[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, h.size)
	dst = binary.LittleEndian.AppendUint32(dst, h.at)
	dst = binary.LittleEndian.AppendUint64(dst, h.generation)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.digest))
	return endFrame(append(dst, note...), start)
}

// decodeWhole returns the header and the note, which aliases b. An error ends the connection: where the next
// frame begins depends on the size.
func decodeWhole(b []byte) (h wholeHeader, note []byte, err error) {
	if len(b) < wholeHead {
		return h, nil, errShortFrame("WHOLE", b)
	}
	h.epoch = binary.LittleEndian.Uint64(b)
	copy(h.id[:], b[8:])
	h.size = binary.LittleEndian.Uint32(b[24:])
	h.at = binary.LittleEndian.Uint32(b[28:])
	h.generation = binary.LittleEndian.Uint64(b[32:])
	h.digest = Digest(binary.LittleEndian.Uint64(b[40:]))
	if h.size == 0 || h.size > ChunkSize || h.at > regionSize-h.size || len(b) > wholeHead+maxWholeNote {
		return h, nil, newFailure(Invalid, "a WHOLE of %d bytes at %d, in %d", h.size, h.at, len(b))
	}
	return h, b[wholeHead:], nil
}

// totalOfOne returns the digest of a transfer of one chunk.
func totalOfOne(d Digest, size int) Digest {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(d))
	binary.LittleEndian.PutUint64(b[8:], uint64(size))
	return Digest(xxh3.Hash(b[:]))
}
