package engine

import (
	"encoding/binary"
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// MaxObjects bounds the media objects of a request, and maxDimensions the dimensions of a tensor.
const (
	MaxObjects    = 256
	maxDimensions = 8
)

// The fields of a media object. Numbers are never reused.
const (
	objectKind = iota + 1
	objectHash
	objectDigest
	objectPart
	objectSource
	objectName
	objectWidth
	objectHeight
	objectFrames
	objectRate
	objectSamples
	objectShape // packed
	objectData
	objectSegment
	objectIdentity
	objectRows // of legVersion
)

// The fields of encoder rows. Numbers are never reused.
const (
	rowsShape = iota + 1 // packed
	rowsType
	rowsGrid // packed
	rowsEncoder
	rowsDigest
	rowsHandle
	rowsData
)

// MaxRowsBytes bounds the encoder rows of one object, in bytes, inline or not.
const MaxRowsBytes = 1 << 30

const maxEncoder = 4096

// appendDigests appends the digests of media in order, if any has one.
func appendDigests(dst []byte, field uint64, objects []kv.Media) []byte {
	some := false
	for i := range objects {
		some = some || objects[i].Digest != kv.Digest{}
	}
	if !some {
		return dst
	}
	dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(len(objects)*len(kv.Digest{})))
	for i := range objects {
		dst = append(dst, objects[i].Digest[:]...)
	}
	return dst
}

// readDigests sets the digests of objects, which were read before.
func (r *wireReader) readDigests(objects []kv.Media) {
	b := r.readBytes()
	if len(b) != len(objects)*len(kv.Digest{}) {
		r.fail()
		return
	}
	for i := range objects {
		b = b[copy(objects[i].Digest[:], b):]
	}
}

// appendObjects appends a field for each object.
func appendObjects(dst []byte, field uint64, objects []media.Object) []byte {
	var head, rows []byte
	for i := range objects {
		o := &objects[i]
		head = appendObject(head[:0], o)
		// The tensor data are large and are appended after the head, so that they are copied once.
		size := len(head) + bytesFieldLen(objectData, len(o.Tensor.Data)) + bytesFieldLen(objectSegment, len(o.Tensor.Segment)) +
			bytesFieldLen(objectIdentity, len(o.Identity))
		rows = rows[:0]
		if o.Rows != nil {
			rows = appendRows(rows, objectRows, o.Rows)
			size += len(rows)
		}
		dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(size))
		dst = append(dst, head...)
		dst = appendBytes(dst, objectData, o.Tensor.Data)
		dst = appendString(dst, objectSegment, o.Tensor.Segment)
		dst = appendString(dst, objectIdentity, string(o.Identity))
		dst = append(dst, rows...)
	}
	return dst
}

// appendRows appends a field with encoder rows.
func appendRows(dst []byte, field uint64, rows *media.EncoderRows) []byte {
	var head []byte
	head = appendPackedInts(head, rowsShape, rows.Shape)
	head = appendUint(head, rowsType, uint64(rows.Type))
	if rows.Grid != [3]int{} {
		head = appendPackedInts(head, rowsGrid, rows.Grid[:])
	}
	head = appendString(head, rowsEncoder, rows.Encoder)
	head = appendBytes(head, rowsDigest, rows.Digest)
	head = appendBytes(head, rowsHandle, rows.Handle)
	size := len(head) + bytesFieldLen(rowsData, len(rows.Data))
	dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(size))
	return appendBytes(append(dst, head...), rowsData, rows.Data)
}

// appendPackedInts appends numbers, none of them negative, as consecutive uvarints.
func appendPackedInts(dst []byte, field uint64, numbers []int) []byte {
	var packed []byte
	for _, n := range numbers {
		packed = binary.AppendUvarint(packed, uint64(n))
	}
	return appendBytes(dst, field, packed)
}

// readRows reads encoder rows. Rows which have elements and a handle, or neither, and rows whose elements do not
// fit their shape, are malformed.
func (r *wireReader) readRows() *media.EncoderRows {
	s := r.openMessage()
	rows := new(media.EncoderRows)
	for s.nextField() {
		switch s.field {
		case rowsShape:
			rows.Shape = s.readShape()
		case rowsType:
			rows.Type = media.ElementType(s.readUint8())
		case rowsGrid:
			if grid := s.readShape(); copy(rows.Grid[:], grid) != len(grid) || len(grid) != len(rows.Grid) {
				s.fail()
			}
		case rowsEncoder:
			if rows.Encoder = s.readString(""); len(rows.Encoder) > maxEncoder {
				s.fail()
			}
		case rowsDigest:
			rows.Digest = s.readBytesUpTo(maxDigest)
		case rowsHandle:
			rows.Handle = s.readBytesUpTo(MaxHandle)
		case rowsData:
			rows.Data = s.readBytesUpTo(MaxRowsBytes)
		default:
			s.skipField()
		}
	}
	if size := rows.Bytes(MaxRowsBytes); size == 0 || (len(rows.Data) == 0) == (len(rows.Handle) == 0) || len(rows.Data) > 0 && len(rows.Data) != size {
		s.fail()
	}
	r.closeField(&s)
	return rows
}

// bytesFieldLen is the encoded length of a field of n bytes; 0 if it is left out.
func bytesFieldLen(field uint64, n int) int {
	if n == 0 {
		return 0
	}
	return uvarintLen(field<<2|kindBytes) + uvarintLen(uint64(n)) + n
}

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// appendObject appends all fields of an object before the data of its tensor.
func appendObject(dst []byte, o *media.Object) []byte {
	dst = appendUint(dst, objectKind, uint64(o.Kind))
	dst = appendFixed(dst, objectHash, o.Key.Hash)
	if (o.Key.Digest != kv.Digest{}) {
		dst = appendBytes(dst, objectDigest, o.Key.Digest[:])
	}
	dst = appendString(dst, objectPart, o.Part)
	dst = appendString(dst, objectSource, o.Source)
	dst = appendString(dst, objectName, o.Name)
	dst = appendInt(dst, objectWidth, o.Size.Width)
	dst = appendInt(dst, objectHeight, o.Size.Height)
	dst = appendInt(dst, objectFrames, o.Size.Frames)
	dst = appendFloat(dst, objectRate, o.Size.Rate)
	dst = appendInt(dst, objectSamples, o.Size.Samples)
	return appendPackedInts(dst, objectShape, o.Tensor.Shape)
}

// readObject appends the object of a field to dst. It fails if the message is older than version.
func (r *wireReader) readObject(dst []media.Object, version byte) []media.Object {
	s := r.openMessage()
	s.failed = s.failed || r.version < version || len(dst) == MaxObjects
	var o media.Object
	for s.nextField() {
		switch s.field {
		case objectKind:
			o.Kind = media.Kind(s.readUint8())
		case objectHash:
			o.Key.Hash = s.readFixed()
		case objectDigest:
			if copy(o.Key.Digest[:], s.readBytes()) != len(o.Key.Digest) {
				s.fail()
			}
		case objectPart:
			o.Part = s.readString("")
		case objectSource:
			o.Source = s.readString("")
		case objectName:
			o.Name = s.readString("")
		case objectWidth:
			o.Size.Width = s.readInt()
		case objectHeight:
			o.Size.Height = s.readInt()
		case objectFrames:
			o.Size.Frames = s.readInt()
		case objectRate:
			o.Size.Rate = s.readFloat()
		case objectSamples:
			o.Size.Samples = s.readInt()
		case objectShape:
			o.Tensor.Shape = s.readShape()
		case objectData:
			o.Tensor.Data = append([]byte(nil), s.readBytes()...)
		case objectSegment:
			o.Tensor.Segment = s.readString("")
		case objectIdentity:
			o.Identity = media.Identity(s.readString(""))
		case objectRows:
			if r.version < legVersion {
				s.fail()
			}
			o.Rows = s.readRows()
		default:
			s.skipField()
		}
	}
	r.closeField(&s)
	r.allowRepeat()
	return append(dst, o)
}

// readShape reads the dimensions of a tensor.
func (r *wireReader) readShape() (shape []int) {
	s := r.openField()
	for len(s.rest) > 0 {
		n := s.readUvarint()
		if n > math.MaxInt32 || len(shape) == maxDimensions {
			s.fail()
		}
		shape = append(shape, int(n))
	}
	r.closeField(&s)
	return shape
}
