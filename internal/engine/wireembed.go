package engine

import (
	"encoding/binary"
	"math"
	"slices"
)

// The fields of a request for an embedding. Numbers are never reused.
const (
	embedID = iota + 1
	embedAttempt
	embedModel
	embedPrompt
)

// The fields of an embedding. Numbers are never reused.
const (
	embeddingAttempt = iota + 1
	embeddingVector
)

// AppendEmbedRequest appends the encoding of r to dst.
func AppendEmbedRequest(dst []byte, r *EmbedRequest) []byte {
	dst = append(dst, wireVersion)
	dst = appendString(dst, embedID, r.ID)
	dst = appendUint(dst, embedAttempt, uint64(r.Attempt))
	dst = appendString(dst, embedModel, r.Model)
	return appendTokens(dst, embedPrompt, r.Prompt)
}

// DecodeEmbedRequest sets r to the request that b encodes. It reuses r's slice and keeps nothing of b. It
// fails on malformed bytes; [EmbedRequest.Validate] checks the values. After an error r is unspecified.
func DecodeEmbedRequest(b []byte, r *EmbedRequest) error {
	old := *r
	*r = EmbedRequest{Prompt: old.Prompt[:0]}
	d, err := newReader("embedding request", b, wireVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case embedID:
			r.ID = d.readString(old.ID)
		case embedAttempt:
			r.Attempt = d.readUint32()
		case embedModel:
			r.Model = d.readString(old.Model)
		case embedPrompt:
			r.Prompt = d.readTokens(r.Prompt)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendEmbedding appends the encoding of e to dst.
func AppendEmbedding(dst []byte, e *Embedding) []byte {
	dst = append(dst, wireVersion)
	dst = appendUint(dst, embeddingAttempt, uint64(e.Attempt))
	if len(e.Vector) == 0 {
		return dst
	}
	dst = slices.Grow(dst, 4*len(e.Vector)+2*binary.MaxVarintLen64)
	dst = appendKey(dst, embeddingVector, kindBytes)
	dst = binary.AppendUvarint(dst, 4*uint64(len(e.Vector)))
	for _, v := range e.Vector {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}

// DecodeEmbedding sets e to the embedding that b encodes. It reuses e's slice, keeps nothing of b and fails
// on malformed bytes. After an error e is unspecified.
func DecodeEmbedding(b []byte, e *Embedding) error {
	*e = Embedding{Vector: e.Vector[:0]}
	d, err := newReader("embedding", b, wireVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case embeddingAttempt:
			e.Attempt = d.readUint32()
		case embeddingVector:
			e.Vector = d.readFloats(e.Vector)
		default:
			d.skipField()
		}
	}
	return d.err()
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
