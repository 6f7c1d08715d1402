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
	// MaxRowsBytes bounds the encoder rows of one object, in bytes, inline or not.
	MaxRowsBytes = 1 << 30
	maxEncoder   = 4096
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

// codeObjects codes a field for each object. Only messages of version or a newer one may have them.
func (c *wireCodec) codeObjects(field uint64, objects *[]media.Object, version byte) {
	if c.decoding {
		*objects = nil
		for c.in.seekField(field) {
			*objects = c.in.readObject(*objects, version)
		}
		return
	}
	var head, rows wireCodec
	for i := range *objects {
		o := &(*objects)[i]
		head.dst = head.dst[:0]
		head.codeObject(o)
		// The tensor data are large and are appended after the head, so that they are copied once.
		size := len(head.dst) + bytesFieldLen(13, len(o.Tensor.Data)) + bytesFieldLen(14, len(o.Tensor.Place)) +
			bytesFieldLen(15, len(o.Identity))
		if rows.dst = rows.dst[:0]; o.Rows != nil {
			rows.codeRows(16, o.Rows)
			size += len(rows.dst)
		}
		c.dst = binary.AppendUvarint(appendKey(c.dst, field, kindBytes), uint64(size))
		c.dst = append(c.dst, head.dst...)
		c.codeTensorData(o)
		c.dst = append(c.dst, rows.dst...)
	}
}

// bytesFieldLen is the encoded length of a field of n bytes; 0 if it is left out.
func bytesFieldLen(field uint64, n int) int {
	if n == 0 {
		return 0
	}
	return uintLen(field<<2|kindBytes) + uintLen(uint64(n)) + n
}

// codeObject codes the fields of an object before the data of its tensor, and codeTensorData the others. Their
// numbers are never reused.
func (c *wireCodec) codeObject(o *media.Object) {
	codeUint8(c, 1, &o.Kind)
	c.codeFixed(2, &o.Key.Hash)
	c.codeDigest(3, &o.Key.Digest)
	codeString(c, 4, &o.Part)
	codeString(c, 5, &o.Source)
	codeString(c, 6, &o.Name)
	c.codeInt(7, &o.Size.Width)
	c.codeInt(8, &o.Size.Height)
	c.codeInt(9, &o.Size.Frames)
	c.codeFloat(10, &o.Size.Rate)
	c.codeInt(11, &o.Size.Samples)
	c.codeShape(12, &o.Tensor.Shape)
}

func (c *wireCodec) codeTensorData(o *media.Object) {
	c.codeBytes(13, &o.Tensor.Data)
	codeString(c, 14, &o.Tensor.Place)
	codeString(c, 15, &o.Identity)
}

// codeRows codes encoder rows, and reports whether they are there. Rows which have elements and a handle, or
// neither, and elements which do not fit their shape, are malformed.
func (c *wireCodec) codeRows(field uint64, rows *media.EncoderRows) bool {
	return c.codeMessage(field, func(c *wireCodec) {
		c.codeShape(1, &rows.Shape)
		codeUint8(c, 2, &rows.Type)
		c.codeGrid(3, &rows.Grid)
		c.codeStringUpTo(4, &rows.Encoder, maxEncoder)
		c.codeBytesUpTo(5, &rows.Digest, maxDigest)
		c.codeBytesUpTo(6, &rows.Handle, MaxHandle)
		c.codeBytesUpTo(7, &rows.Data, MaxRowsBytes)
		if c.decoding {
			size := rows.Bytes(MaxRowsBytes)
			inline := len(rows.Data) == size && len(rows.Handle) == 0
			c.in.failUnless(size > 0 && (inline || len(rows.Data) == 0 && len(rows.Handle) > 0))
		}
	})
}

// codeGrid codes three dimensions, packed, unless all are zero.
func (c *wireCodec) codeGrid(field uint64, grid *[3]int) {
	var shape []int
	if !c.decoding && *grid != [3]int{} {
		shape = grid[:]
	}
	if c.codeShape(field, &shape); c.decoding && shape != nil {
		c.in.failUnless(copy(grid[:], shape) == len(shape) && len(shape) == len(grid))
	}
}

func (c *wireCodec) codeDigest(field uint64, d *kv.Digest) {
	switch {
	case !c.decoding && *d != kv.Digest{}:
		c.dst = appendBytes(c.dst, field, d[:])
	case c.decoding && c.in.seekField(field) && copy(d[:], c.in.readBytes()) != len(d):
		c.in.fail()
	}
}

// codeShape codes the dimensions of a tensor, packed.
func (c *wireCodec) codeShape(field uint64, shape *[]int) {
	if c.decoding {
		if c.in.seekField(field) {
			*shape = c.in.readShape()
		}
		return
	}
	var packed []byte
	for _, n := range *shape {
		packed = binary.AppendUvarint(packed, uint64(n))
	}
	c.dst = appendBytes(c.dst, field, packed)
}

// readObject appends the object of a field to dst. It fails if the message is older than version.
func (r *wireReader) readObject(dst []media.Object, version byte) []media.Object {
	c := wireCodec{decoding: true, in: r.openMessage()}
	c.in.failUnless(r.version >= version && len(dst) < MaxObjects)
	var (
		o    media.Object
		rows media.EncoderRows
	)
	c.codeObject(&o)
	c.codeTensorData(&o)
	if c.codeRows(16, &rows) {
		c.in.failUnless(r.version >= legVersion)
		o.Rows = &rows
	}
	c.in.skipRest()
	r.closeField(&c.in)
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
