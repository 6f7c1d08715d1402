package embcache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"penstock/core/kv"
)

// TierRecord is an entry as tiers below memory store it: a header, then the elements of its rows, little-endian.
// docs/format/embedding-record.md has it in bytes.
type TierRecord struct {
	Key  kv.Digest // see RowKey.TierKey
	Type uint8     // media.ElementType
	// Until is when the entry ends, in nanoseconds of Unix time; 0 is never.
	Until int64
	Shape Shape
}

// RecordHeader is the size of the header of a record in bytes.
const RecordHeader = 128

const (
	recordMagic   = "PSER"
	recordVersion = 1
	// digestAt is the offset of the digest, which covers what is before and after it.
	digestAt = RecordHeader - sha256.Size
)

// The errors of DecodeRecord.
var (
	errRecordHeader = errors.New("embcache: not a record of this version")
	errRecordDigest = errors.New("embcache: the bytes of a record do not match its digest")
)

// AppendRecord appends a record with the given elements to dst. Layers, rows, width and each number of the grid must be
// below 2^32.
func AppendRecord(dst []byte, r *TierRecord, elements []byte) []byte {
	start := len(dst)
	dst = append(append(dst, recordMagic...), recordVersion, r.Type, 0, 0)
	dst = append(dst, r.Key[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Until))
	for _, n := range [...]int{r.Shape.Layers, r.Shape.Rows, r.Shape.Width, r.Shape.Grid[0], r.Shape.Grid[1], r.Shape.Grid[2]} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	}
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(elements)))
	dst = append(dst, make([]byte, start+RecordHeader-len(dst))...)
	dst = append(dst, elements...)
	digest := digestRecord(dst[start:])
	copy(dst[start+digestAt:], digest[:])
	return dst
}

// digestRecord returns the digest of a record: of its bytes without the digest.
func digestRecord(b []byte) (digest kv.Digest) {
	h := sha256.New()
	h.Write(b[:digestAt])
	h.Write(b[RecordHeader:])
	h.Sum(digest[:0])
	return digest
}

// DecodeRecord reads a record, which is all of b, and returns it with its elements, a part of b. It is an error if a
// byte is not as it was written, or missing, or too many.
func DecodeRecord(b []byte) (r TierRecord, elements []byte, err error) {
	if len(b) < RecordHeader || string(b[:4]) != recordMagic || b[4] != recordVersion {
		return r, nil, errRecordHeader
	}
	r.Type = b[5]
	copy(r.Key[:], b[8:])
	r.Until = int64(binary.LittleEndian.Uint64(b[40:]))
	for i, n := range [...]*int{&r.Shape.Layers, &r.Shape.Rows, &r.Shape.Width, &r.Shape.Grid[0], &r.Shape.Grid[1], &r.Shape.Grid[2]} {
		v := binary.LittleEndian.Uint32(b[48+4*i:])
		if v > math.MaxInt32 {
			return r, nil, errRecordHeader
		}
		*n = int(v)
	}
	elements = b[RecordHeader:]
	if n := binary.LittleEndian.Uint64(b[72:]); n != uint64(len(elements)) {
		return r, nil, fmt.Errorf("embcache: a record of %d bytes of elements has %d", n, len(elements))
	}
	if digest := digestRecord(b); string(digest[:]) != string(b[digestAt:RecordHeader]) {
		return r, nil, errRecordDigest
	}
	return r, elements, nil
}
