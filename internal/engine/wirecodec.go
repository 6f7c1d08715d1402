package engine

import "penstock/core/kv"

// wireCodec encodes the fields of a message, or decodes them. A message lists its fields once, in ascending
// order of number, as calls of the methods below, for both directions. A decoded field that the bytes do not
// have becomes the zero value; slices keep their memory unless a method says otherwise.
type wireCodec struct {
	dst      []byte // the encoding
	decoding bool
	in       wireReader // if decoding
}

// newDecoder returns a codec that decodes a message whose version is at most newest.
func newDecoder(message string, b []byte, newest byte) (wireCodec, error) {
	in, err := newReader(message, b, newest)
	return wireCodec{decoding: true, in: in}, err
}

// finish skips the fields of later versions and returns the error of the decoder.
func (c *wireCodec) finish() error {
	c.in.skipRest()
	return c.in.err()
}

func codeString[T ~string](c *wireCodec, field uint64, v *T) {
	switch {
	case !c.decoding:
		c.dst = appendString(c.dst, field, string(*v))
	case c.in.seekField(field):
		*v = T(c.in.readString(string(*v)))
	default:
		*v = ""
	}
}

func codeUint8[T ~uint8](c *wireCodec, field uint64, v *T) {
	switch {
	case !c.decoding:
		c.dst = appendUint(c.dst, field, uint64(*v))
	case c.in.seekField(field):
		*v = T(c.in.readUint8())
	default:
		*v = 0
	}
}

func (c *wireCodec) codeUint32(field uint64, v *uint32) {
	switch {
	case !c.decoding:
		c.dst = appendUint(c.dst, field, uint64(*v))
	case c.in.seekField(field):
		*v = c.in.readUint32()
	default:
		*v = 0
	}
}

func (c *wireCodec) codeUint64(field uint64, v *uint64) {
	switch {
	case !c.decoding:
		c.dst = appendUint(c.dst, field, *v)
	case c.in.seekField(field):
		*v = c.in.readUint64()
	default:
		*v = 0
	}
}

// codeWorker codes the id and the rank of a worker as two fields.
func (c *wireCodec) codeWorker(field uint64, w *kv.Worker) {
	id := uint64(w.ID)
	c.codeUint64(field, &id)
	c.codeUint32(field+1, &w.Rank)
	if w.ID = kv.WorkerID(id); c.decoding {
		c.in.failUnless(w.ID <= kv.MaxWorkerID)
	}
}

func (c *wireCodec) codeInt(field uint64, v *int) {
	switch {
	case !c.decoding:
		c.dst = appendInt(c.dst, field, *v)
	case c.in.seekField(field):
		*v = c.in.readInt()
	default:
		*v = 0
	}
}

func (c *wireCodec) codeBool(field uint64, v *bool) {
	if c.decoding {
		*v = c.in.seekField(field) && c.in.readBool()
	} else {
		c.dst = appendBool(c.dst, field, *v)
	}
}

func (c *wireCodec) codeFixed(field uint64, v *uint64) {
	switch {
	case !c.decoding:
		c.dst = appendFixed(c.dst, field, *v)
	case c.in.seekField(field):
		*v = c.in.readFixed()
	default:
		*v = 0
	}
}

func (c *wireCodec) codeFloat(field uint64, v *float64) {
	switch {
	case !c.decoding:
		c.dst = appendFloat(c.dst, field, *v)
	case c.in.seekField(field):
		*v = c.in.readFloat()
	default:
		*v = 0
	}
}

func (c *wireCodec) codeBytes(field uint64, v *[]byte) {
	if !c.decoding {
		c.dst = appendBytes(c.dst, field, *v)
	} else if *v = (*v)[:0]; c.in.seekField(field) {
		*v = append(*v, c.in.readBytes()...)
	}
}

// codeBytesUpTo codes at most limit bytes, in memory of their own; nil if there are none.
func (c *wireCodec) codeBytesUpTo(field uint64, v *[]byte, limit int) {
	if !c.decoding {
		c.dst = appendBytes(c.dst, field, *v)
	} else if *v = nil; c.in.seekField(field) {
		*v = c.in.readBytesUpTo(limit)
	}
}

// codeStringUpTo codes a string of at most limit bytes.
func (c *wireCodec) codeStringUpTo(field uint64, v *string, limit int) {
	codeString(c, field, v)
	c.in.failUnless(!c.decoding || len(*v) <= limit)
}

// codeMessage codes a field which is a message of its own, without a version byte, and reports whether it is
// there. code codes its fields.
func (c *wireCodec) codeMessage(field uint64, code func(*wireCodec)) bool {
	if !c.decoding {
		var inner wireCodec
		code(&inner)
		c.dst = appendLenBytes(c.dst, field, inner.dst)
		return true
	}
	if !c.in.seekField(field) {
		return false
	}
	inner := wireCodec{decoding: true, in: c.in.openMessage()}
	code(&inner)
	inner.in.skipRest()
	c.in.closeField(&inner.in)
	return true
}

func (c *wireCodec) codeTokens(field uint64, v *[]kv.Token) {
	if !c.decoding {
		c.dst = appendTokens(c.dst, field, *v)
	} else if *v = (*v)[:0]; c.in.seekField(field) {
		*v = c.in.readTokens(*v)
	}
}

// codeMedia codes a field for each media object, without its digest.
func (c *wireCodec) codeMedia(field uint64, v *[]kv.Media) {
	if !c.decoding {
		c.dst = appendMedia(c.dst, field, *v)
		return
	}
	for *v = (*v)[:0]; c.in.seekField(field); c.in.allowRepeat() {
		*v = append(*v, c.in.readMedia())
	}
}

// codeDigests codes the digests of media, which were coded before.
func (c *wireCodec) codeDigests(field uint64, v []kv.Media) {
	if !c.decoding {
		c.dst = appendDigests(c.dst, field, v)
	} else if c.in.seekField(field) {
		c.in.readDigests(v)
	}
}

func (c *wireCodec) codeBias(field uint64, v *[]TokenBias) {
	if !c.decoding {
		c.dst = appendBias(c.dst, field, *v)
	} else if *v = (*v)[:0]; c.in.seekField(field) {
		*v = c.in.readBias(*v)
	}
}

// codeGenerated codes a field for each choice; nil if there is none.
func (c *wireCodec) codeGenerated(field uint64, v *[][]kv.Token) {
	if !c.decoding {
		for _, g := range *v {
			c.dst = appendPacked(c.dst, field, g)
		}
		return
	}
	old := *v
	for *v = nil; c.in.seekField(field); c.in.allowRepeat() {
		if len(*v) == MaxChoices {
			c.in.fail()
			return
		}
		*v = appendReusing(*v, old)
		g := &(*v)[len(*v)-1]
		*g = c.in.readTokens((*g)[:0])
	}
}

// codeBools codes a byte for each value; nil if there is none.
func (c *wireCodec) codeBools(field uint64, v *[]bool) {
	old := *v
	if !c.decoding {
		c.dst = appendBools(c.dst, field, old)
	} else if *v = nil; c.in.seekField(field) {
		*v = c.in.readBools(old[:0])
	}
}

// codeSchema codes the OutputSchema of a request; nil if there is none.
func (c *wireCodec) codeSchema(field uint64, v **OutputSchema) {
	switch old := *v; {
	case c.decoding:
		if *v = nil; c.in.seekField(field) {
			*v = c.in.readSchema(old)
		}
	case old != nil:
		c.dst = appendLenBytes(c.dst, field, old.Schema)
	}
}

// codeHints codes the hints of a request; nil if there are none.
func (c *wireCodec) codeHints(field uint64, v *[]byte) {
	old := *v
	if !c.decoding {
		c.dst = appendBytes(c.dst, field, old)
	} else if *v = nil; c.in.seekField(field) {
		*v = c.in.readHints(old[:0])
	}
}

// codeFeatures codes a processor's output; nil if there is none. Only messages of version or a newer one may
// have it.
func (c *wireCodec) codeFeatures(field uint64, v *[]byte, version byte) {
	if !c.decoding {
		c.dst = appendBytes(c.dst, field, *v)
	} else if *v = nil; c.in.seekField(field) {
		*v = c.in.readFeatures(c.in.version >= version)
	}
}
