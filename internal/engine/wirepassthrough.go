package engine

import "encoding/binary"

// AppendPassthroughRequest appends the encoding of r to dst. It allocates only if dst must grow.
func AppendPassthroughRequest(dst []byte, r *PassthroughRequest) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodePassthroughRequest sets r to the request that b encodes. It reuses r's slices and keeps nothing of b.
// It fails on malformed bytes; [PassthroughRequest.Validate] checks the values. After an error r is
// unspecified.
func DecodePassthroughRequest(b []byte, r *PassthroughRequest) error {
	c, err := newDecoder("request to pass on", b, wireVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *PassthroughRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	codeString(c, 4, &r.Salt.LoRA)
	codeString(c, 5, &r.Salt.Namespace)
	codeString(c, 6, &r.Path)
	c.codeBytes(7, &r.Body)
	c.codeBool(8, &r.Stream)
	c.codeTokens(9, &r.Prompt)
	c.codeHints(10, &r.Hints)
	c.codeMedia(11, &r.Media)
	c.codeDigests(12, r.Media)
	c.codeObjects(13, &r.Objects, wireVersion)
}

// AppendPassthroughChunk appends the encoding of p to dst. It allocates only if dst must grow.
func AppendPassthroughChunk(dst []byte, p *PassthroughChunk) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	p.codeFields(&c)
	return c.dst
}

// DecodePassthroughChunk sets p to the chunk that b encodes. It reuses p's slice and keeps nothing of b.
// After an error p is unspecified.
func DecodePassthroughChunk(b []byte, p *PassthroughChunk) error {
	c, err := newDecoder("piece of an answer", b, wireVersion)
	if err != nil {
		return err
	}
	p.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of p. Their numbers are never reused.
func (p *PassthroughChunk) codeFields(c *wireCodec) {
	c.codeUint32(1, &p.Attempt)
	c.codeBool(2, &p.Accepted)
	c.codeInt(3, &p.Status)
	codeString(c, 4, &p.Type)
	c.codeBytes(5, &p.Data)
	c.codeInt(6, &p.Tokens)
	c.codeBool(7, &p.Last)
	c.codeInt(8, &p.PromptTokens)
	c.codeInt(9, &p.OutputTokens)
	c.codeInt(10, &p.Cached)
}

func appendBytes(dst []byte, field uint64, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	return appendLenBytes(dst, field, b)
}

// appendLenBytes appends a field of bytes, also if there are none.
func appendLenBytes(dst []byte, field uint64, b []byte) []byte {
	dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(len(b)))
	return append(dst, b...)
}
