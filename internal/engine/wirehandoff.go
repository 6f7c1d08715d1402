package engine

import (
	"encoding/binary"
	"math"

	"penstock/core/kv"
)

// codeHandoff codes a handoff; nil if there is none.
func codeHandoff(c *wireCodec, field uint64, h **Handoff) {
	if c.decoding {
		if *h = nil; c.in.seekField(field) {
			*h = c.in.readHandoff()
		}
	} else if *h != nil {
		c.codeMessage(field, (*h).codeFields)
	}
}

// readHandoff reads a field with a handoff.
func (r *wireReader) readHandoff() *Handoff {
	c := wireCodec{decoding: true, in: r.openMessage()}
	h := new(Handoff)
	h.codeFields(&c)
	c.in.skipRest()
	r.closeField(&c.in)
	return h
}

// codeFields codes the fields of h. Their numbers are never reused.
func (h *Handoff) codeFields(c *wireCodec) {
	c.codeBytesUpTo(1, &h.Opaque, MaxOpaque)
	blocks := h.Blocks
	if c.decoding {
		blocks = new(BlockHandoff)
	}
	if blocks != nil && c.codeMessage(2, blocks.codeFields) {
		h.Blocks = blocks
	}
}

// codeFields codes the fields of b. Their numbers are never reused.
func (b *BlockHandoff) codeFields(c *wireCodec) {
	c.codeWorker(1, &b.Worker)
	c.codeFixed(3, &b.Epoch)
	c.codeInt(4, &b.Start)
	c.codeInt(5, &b.End)
	c.codeInt(6, &b.Layout.BlockSize)
	c.codeInt(7, &b.Layout.BlockBytes)
	codeUint8(c, 8, &b.Layout.Type)
	c.codeStringUpTo(9, &b.Layout.Numerics, maxNumerics)
	c.codeBytesUpTo(10, &b.Descriptor, MaxDescriptor)
	c.codeStringUpTo(11, &b.Layout.Order, maxOrder)
}

// codePrefillHint codes the pin of a hint, and its holders in the field after that.
func (c *wireCodec) codePrefillHint(field uint64, h *PrefillHint) {
	pin := uint64(h.Pin)
	if c.codeUint64(field, &pin); !c.decoding {
		c.dst = appendHolders(c.dst, field+1, h.Holders)
		return
	}
	h.Pin, h.Holders = kv.WorkerID(pin), h.Holders[:0]
	c.in.failUnless(h.Pin <= kv.MaxWorkerID)
	if c.in.seekField(field + 1) {
		h.Holders = c.in.readHolders(h.Holders)
	}
}

func appendHolders(dst []byte, field uint64, holders []kv.PrefixHolder) []byte {
	if len(holders) == 0 {
		return dst
	}
	size := 0
	for _, h := range holders {
		size += uintLen(uint64(h.Worker)) + uintLen(uint64(h.Tokens))
	}
	dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(size))
	for _, h := range holders {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(h.Worker)), uint64(h.Tokens))
	}
	return dst
}

// readHolders reads a field with holders, and appends them to dst.
func (r *wireReader) readHolders(dst []kv.PrefixHolder) []kv.PrefixHolder {
	s := r.openField()
	for len(s.rest) > 0 && len(dst) < MaxPrefillHolders {
		worker, tokens := s.readUvarint(), s.readUvarint()
		s.failUnless(worker <= uint64(kv.MaxWorkerID) && tokens <= math.MaxInt32)
		dst = append(dst, kv.PrefixHolder{Worker: kv.WorkerID(worker), Tokens: int(tokens)})
	}
	s.failUnless(len(s.rest) == 0)
	r.closeField(&s)
	return dst
}

// AppendEncodeRequest appends the encoding of r to dst.
func AppendEncodeRequest(dst []byte, r *EncodeRequest) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodeEncodeRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error r is unspecified.
func DecodeEncodeRequest(b []byte, r *EncodeRequest) error {
	c, err := newDecoder("request to encode", b, legVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *EncodeRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	codeString(c, 4, &r.Namespace)
	c.codeStringUpTo(5, &r.Encoder, maxEncoder)
	c.codeBool(6, &r.Inline)
	c.codeObjects(7, &r.Objects, legVersion)
	c.codeBool(8, &r.CachedOnly)
}

// AppendEncoded appends the encoding of e to dst.
func AppendEncoded(dst []byte, e *Encoded) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	e.codeFields(&c)
	return c.dst
}

// DecodeEncoded sets e to the rows that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error e is unspecified.
func DecodeEncoded(b []byte, e *Encoded) error {
	c, err := newDecoder("encoded object", b, legVersion)
	if err != nil {
		return err
	}
	e.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of e. Their numbers are never reused.
func (e *Encoded) codeFields(c *wireCodec) {
	c.codeUint32(1, &e.Attempt)
	c.codeInt(2, &e.Object)
	c.codeBool(3, &e.Cached)
	rows := !c.decoding && len(e.Handoff) == 0
	if rows || c.decoding {
		rows = c.codeRows(4, &e.Rows)
	}
	c.codeInt(5, &e.Load)
	if c.codeBytesUpTo(6, &e.Handoff, MaxOpaque); c.decoding {
		c.in.failUnless(rows == (len(e.Handoff) == 0) && e.Object >= 0 && e.Object < MaxObjects && e.Load >= 0)
	}
}

// AppendPrefillRequest appends the encoding of r to dst.
func AppendPrefillRequest(dst []byte, r *PrefillRequest) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodePrefillRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes.
// After an error r is unspecified.
func DecodePrefillRequest(b []byte, r *PrefillRequest) error {
	c, err := newDecoder("request to prefill", b, legVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *PrefillRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	c.codeWorker(4, &r.Decode)
	c.codeFixed(6, &r.Epoch)
	codeString(c, 7, &r.Addr)
	c.codeBytesUpTo(8, &r.Handle, MaxHandle)
	c.codeInt(9, &r.Tokens)
	c.codeInt(10, &r.Held)
	c.codeInt(11, &r.Budget)
	c.codeMessage(12, r.Into.codeFields)
}

// AppendPrefilled appends the encoding of p to dst.
func AppendPrefilled(dst []byte, p *Prefilled) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	p.codeFields(&c)
	return c.dst
}

// DecodePrefilled sets p to the progress that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error p is unspecified.
func DecodePrefilled(b []byte, p *Prefilled) error {
	c, err := newDecoder("progress of a prefill", b, legVersion)
	if err != nil {
		return err
	}
	p.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of p. Their numbers are never reused.
func (p *Prefilled) codeFields(c *wireCodec) {
	c.codeUint32(1, &p.Attempt)
	c.codeInt(2, &p.Computed)
	c.codeInt(3, &p.Cached)
	c.codeInt(4, &p.Blocks)
	c.codeUint64(5, &p.Bytes)
	c.codeBool(6, &p.Done)
	c.codeBytesUpTo(7, &p.Digest, maxDigest)
	c.codeFixed(8, &p.Epoch)
	c.codeWorker(9, &p.By)
	c.codeFixed(11, &p.ByEpoch)
	codeUint8(c, 12, &p.GaveUp)
	c.codeFixed(13, &p.Claim)
	c.codeBytesUpTo(14, &p.Handle, MaxHandle)
	c.codeInt(15, &p.SendDelay)
}

// AppendPullRequest appends the encoding of r to dst.
func AppendPullRequest(dst []byte, r *PullRequest) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodePullRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error r is unspecified.
func DecodePullRequest(b []byte, r *PullRequest) error {
	c, err := newDecoder("request to pull", b, legVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *PullRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	c.codeFixed(3, &r.Epoch)
	c.codeBytesUpTo(4, &r.Handle, MaxHandle)
	c.codeMessage(5, r.From.codeFields)
}

// AppendPulled appends the encoding of p to dst.
func AppendPulled(dst []byte, p *Pulled) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	p.codeFields(&c)
	return c.dst
}

// DecodePulled sets p to the frame that b encodes and keeps nothing of b. It fails on malformed bytes. After an error p
// is unspecified.
func DecodePulled(b []byte, p *Pulled) error {
	c, err := newDecoder("piece of a prompt", b, legVersion)
	if err != nil {
		return err
	}
	p.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of p. Their numbers are never reused. Data reuses its memory.
func (p *Pulled) codeFields(c *wireCodec) {
	c.codeUint32(1, &p.Attempt)
	c.codeInt(2, &p.Budget)
	c.codeBytes(3, &p.Data)
	c.codeBool(4, &p.Last)
	c.codeUint64(5, &p.Total)
	c.codeFixed(6, &p.Claim)
	c.in.failUnless(!c.decoding || len(p.Data) <= MaxPiece && p.Budget >= 0)
}

// AppendFetchRequest appends the encoding of r to dst.
func AppendFetchRequest(dst []byte, r *FetchRequest) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodeFetchRequest sets r to the request that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error r is unspecified.
func DecodeFetchRequest(b []byte, r *FetchRequest) error {
	c, err := newDecoder("request to fetch", b, legVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *FetchRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	c.codeBytesUpTo(3, &r.Handle, MaxHandle)
	c.codeBytesUpTo(4, &r.Into, MaxDescriptor)
}

// AppendFetched appends the encoding of f to dst.
func AppendFetched(dst []byte, f *Fetched) []byte {
	c := wireCodec{dst: append(dst, legVersion)}
	f.codeFields(&c)
	return c.dst
}

// DecodeFetched sets f to the frame that b encodes and keeps nothing of b. It fails on malformed bytes. After an
// error f is unspecified.
func DecodeFetched(b []byte, f *Fetched) error {
	c, err := newDecoder("piece of a fetch", b, legVersion)
	if err != nil {
		return err
	}
	f.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of f. Their numbers are never reused. Data reuses its memory.
func (f *Fetched) codeFields(c *wireCodec) {
	c.codeUint32(1, &f.Attempt)
	c.codeBytes(2, &f.Data)
	c.codeBool(3, &f.Last)
	c.codeUint64(4, &f.Total)
	c.codeBytesUpTo(5, &f.Digest, maxDigest)
	c.in.failUnless(!c.decoding || len(f.Data) <= MaxPiece)
}
