package engine

import (
	"encoding/binary"
	"math"
	"slices"
)

// AppendEmbedRequest appends the encoding of r to dst.
func AppendEmbedRequest(dst []byte, r *EmbedRequest) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodeEmbedRequest sets r to the request that b encodes. It reuses r's slice and keeps nothing of b. It
// fails on malformed bytes; [EmbedRequest.Validate] checks the values. After an error r is unspecified.
func DecodeEmbedRequest(b []byte, r *EmbedRequest) error {
	c, err := newDecoder("embedding request", b, wireVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *EmbedRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	c.codeTokens(4, &r.Prompt)
}

// AppendEmbedding appends the encoding of e to dst.
func AppendEmbedding(dst []byte, e *Embedding) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	e.codeFields(&c)
	return c.dst
}

// DecodeEmbedding sets e to the embedding that b encodes. It reuses e's slice, keeps nothing of b and fails
// on malformed bytes. After an error e is unspecified.
func DecodeEmbedding(b []byte, e *Embedding) error {
	c, err := newDecoder("embedding", b, wireVersion)
	if err != nil {
		return err
	}
	e.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of e. Their numbers are never reused.
func (e *Embedding) codeFields(c *wireCodec) {
	c.codeUint32(1, &e.Attempt)
	c.codeFloats(2, &e.Vector)
}

// codeFloats codes float32 values of 4 bytes each.
func (c *wireCodec) codeFloats(field uint64, v *[]float32) {
	switch {
	case c.decoding:
		*v = (*v)[:0]
		if c.in.seekField(field) {
			*v = c.in.readFloats(*v)
		}
	case len(*v) > 0:
		c.dst = slices.Grow(c.dst, 4*len(*v)+2*binary.MaxVarintLen64)
		c.dst = binary.AppendUvarint(appendKey(c.dst, field, kindBytes), 4*uint64(len(*v)))
		for _, f := range *v {
			c.dst = binary.LittleEndian.AppendUint32(c.dst, math.Float32bits(f))
		}
	}
}

// readFloats appends float32 values of 4 bytes each to dst.
func (r *wireReader) readFloats(dst []float32) []float32 {
	s := r.openField()
	dst = slices.Grow(dst, len(s.rest)/4)
	for len(s.rest) > 0 && !s.failed {
		dst = append(dst, s.readFloat32())
	}
	r.closeField(&s)
	return dst
}
