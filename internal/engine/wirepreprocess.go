package engine

import (
	"slices"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
)

// AppendPreprocessRequest appends the encoding of r to dst.
func AppendPreprocessRequest(dst []byte, r *PreprocessRequest) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	r.codeFields(&c)
	return c.dst
}

// DecodePreprocessRequest sets r to the request that b encodes. It reuses r's slice and keeps nothing of b.
// It fails on malformed bytes; [PreprocessRequest.Validate] checks the values. After an error r is
// unspecified.
func DecodePreprocessRequest(b []byte, r *PreprocessRequest) error {
	c, err := newDecoder("preprocess request", b, wireVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	return c.finish()
}

// codeFields codes the fields of r. Their numbers are never reused.
func (r *PreprocessRequest) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	c.codeBytes(4, &r.Chat)
	codeString(c, 5, &r.Text)
	c.codeBool(6, &r.ParseSpecial)
	c.codeBool(7, &r.AddSpecial)
	c.codeBool(8, &r.Features)
	c.codeBool(9, &r.ResolveMedia)
}

// AppendPreprocessed appends the encoding of p without its Features to dst: the last frame of an answer.
func AppendPreprocessed(dst []byte, p *Preprocessed) []byte {
	last := *p
	last.Features = nil
	return appendFrame(dst, &last, false)
}

// appendFrame appends a frame of an answer to dst. more says that another one follows, and that this one has
// only a piece of the features.
func appendFrame(dst []byte, p *Preprocessed, more bool) []byte {
	c := wireCodec{dst: append(dst, wireVersion)}
	p.codeFields(&c, &more)
	return c.dst
}

// SendFrames calls send with the frames of an answer in order: p's Features in pieces, then the result of
// [AppendPreprocessed]. send keeps nothing.
func (p *Preprocessed) SendFrames(send func(frame []byte) error) error {
	var frame []byte
	for piece := range slices.Chunk(p.Features, maxFeaturesPiece) {
		frame = appendFrame(frame[:0], &Preprocessed{Attempt: p.Attempt, Features: piece}, true)
		if err := send(frame); err != nil {
			return err
		}
	}
	return send(AppendPreprocessed(frame[:0], p))
}

// DecodePreprocessed sets p to what b, the last frame of an answer, encodes. It reuses p's slices, keeps
// nothing of b, and fails on malformed bytes and on more than a Preprocessed may have. After an error p is
// unspecified.
func DecodePreprocessed(b []byte, p *Preprocessed) error {
	more, err := decodePreprocessed(b, p)
	if err == nil && more {
		return malformedField("preprocessed prompt", 5)
	}
	return err
}

// decodePreprocessed is DecodePreprocessed for any frame. more says that others follow: then p has only a
// piece of the features, else everything but them.
func decodePreprocessed(b []byte, p *Preprocessed) (more bool, err error) {
	c, err := newDecoder("preprocessed prompt", b, wireVersion)
	if err != nil {
		return false, err
	}
	p.codeFields(&c, &more)
	if len(p.Tokens) > MaxPreprocessed || len(p.Media) > MaxPreprocessedMedia ||
		more != (len(p.Features) > 0) || more && len(p.Tokens)+len(p.Media) > 0 {
		c.in.fail()
	}
	return more, c.finish()
}

// codeFields codes the fields of one frame. Their numbers are never reused.
func (p *Preprocessed) codeFields(c *wireCodec, more *bool) {
	c.codeUint32(1, &p.Attempt)
	c.codeTokens(2, &p.Tokens)
	c.codeMedia(3, &p.Media)
	c.codeFeatures(4, &p.Features, wireVersion)
	c.codeBool(5, more)
	c.codeDigests(6, p.Media)
	c.codeObjects(7, &p.Objects, wireVersion)
	c.codeRefusal(8, &p.TextOnly, &p.TextOnlyError)
	codeUint8(c, 11, &p.FailureKind)
	p.FailureKind = knownFailure(p.FailureKind)
	c.in.failUnless(!c.decoding || p.FailureKind == encode.NotFailed || p.TextOnly != media.NoReason)
}

// codeRefusal codes why the media were not resolved: the reason, then the message and the parameter of the
// error, which no frame has without a reason.
func (c *wireCodec) codeRefusal(field uint64, reason *media.Reason, refusal **fault.Error) {
	e := *refusal
	if c.decoding {
		*reason, *refusal, e = media.NoReason, nil, nil
		if c.in.seekField(field) {
			if *reason = media.Reason(c.in.readString("")); *reason == media.NoReason {
				c.in.fail()
			}
			e = &fault.Error{Code: fault.Invalid}
			*refusal = e
		}
	} else if e != nil {
		codeString(c, field, reason)
	}
	if e != nil {
		codeString(c, field+1, &e.Message)
		codeString(c, field+2, &e.Param)
	} else if c.decoding && c.in.seekField(field+1) || c.decoding && c.in.seekField(field+2) {
		c.in.fail()
	}
}
