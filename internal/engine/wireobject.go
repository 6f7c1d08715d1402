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
)

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
func (r *wireReader) digests(objects []kv.Media) {
	b := r.bytes()
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
	var head []byte
	for i := range objects {
		o := &objects[i]
		head = appendObject(head[:0], o)
		// The tensor data are large and are appended after the head, so that they are copied once.
		size := len(head) + bytesFieldLen(objectData, len(o.Tensor.Data)) + bytesFieldLen(objectSegment, len(o.Tensor.Segment)) +
			bytesFieldLen(objectIdentity, len(o.Identity))
		dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(size))
		dst = append(dst, head...)
		dst = appendBytes(dst, objectData, o.Tensor.Data)
		dst = appendString(dst, objectSegment, o.Tensor.Segment)
		dst = appendString(dst, objectIdentity, string(o.Identity))
	}
	return dst
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
	if len(o.Tensor.Shape) > 0 {
		var packed []byte
		for _, n := range o.Tensor.Shape {
			packed = binary.AppendUvarint(packed, uint64(n))
		}
		dst = appendBytes(dst, objectShape, packed)
	}
	return dst
}

// readObject appends the object of a field to dst. It fails if the message is older than version.
func (r *wireReader) object(dst []media.Object, version byte) []media.Object {
	s := wireReader{rest: r.bytes(), bad: r.bad || r.version < version || len(dst) == MaxObjects, floor: 1}
	var o media.Object
	for s.next() {
		switch s.field {
		case objectKind:
			o.Kind = media.Kind(s.uint8())
		case objectHash:
			o.Key.Hash = s.fixed()
		case objectDigest:
			if copy(o.Key.Digest[:], s.bytes()) != len(o.Key.Digest) {
				s.fail()
			}
		case objectPart:
			o.Part = s.string("")
		case objectSource:
			o.Source = s.string("")
		case objectName:
			o.Name = s.string("")
		case objectWidth:
			o.Size.Width = s.int()
		case objectHeight:
			o.Size.Height = s.int()
		case objectFrames:
			o.Size.Frames = s.int()
		case objectRate:
			o.Size.Rate = s.float()
		case objectSamples:
			o.Size.Samples = s.int()
		case objectShape:
			o.Tensor.Shape = s.shape()
		case objectData:
			o.Tensor.Data = append([]byte(nil), s.bytes()...)
		case objectSegment:
			o.Tensor.Segment = s.string("")
		case objectIdentity:
			o.Identity = media.Identity(s.string(""))
		default:
			s.skip()
		}
	}
	r.join(&s)
	r.repeat()
	return append(dst, o)
}

// readShape reads the dimensions of a tensor.
func (r *wireReader) shape() (shape []int) {
	s := r.sub()
	for len(s.rest) > 0 {
		n := s.uvarint()
		if n > math.MaxInt32 || len(shape) == maxDimensions {
			s.fail()
		}
		shape = append(shape, int(n))
	}
	r.join(&s)
	return shape
}
