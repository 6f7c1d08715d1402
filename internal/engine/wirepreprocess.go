package engine

import (
	"encoding/binary"
	"slices"

	"penstock/core/fault"
	"penstock/core/media"
)

// The fields of a request to preprocess. Numbers are never reused.
const (
	prepID = iota + 1
	prepAttempt
	prepModel
	prepChat
	prepText
	prepParseSpecial
	prepAddSpecial
	prepFeatures
	prepShows
)

// The fields of a preprocessed prompt. Numbers are never reused.
const (
	preppedAttempt = iota + 1
	preppedTokens
	preppedMedia    // repeated
	preppedFeatures // a piece
	preppedMore     // another frame follows, and this one has only a piece of the features
	preppedDigests
	preppedObject // repeated
	preppedReason
	preppedWhy
	preppedParam
)

// AppendPreprocessRequest appends the encoding of r to dst.
func AppendPreprocessRequest(dst []byte, r *PreprocessRequest) []byte {
	dst = append(dst, wireVersion)
	dst = appendString(dst, prepID, r.ID)
	dst = appendUint(dst, prepAttempt, uint64(r.Attempt))
	dst = appendString(dst, prepModel, r.Model)
	if len(r.Chat) > 0 {
		dst = appendKey(dst, prepChat, kindBytes)
		dst = binary.AppendUvarint(dst, uint64(len(r.Chat)))
		dst = append(dst, r.Chat...)
	}
	dst = appendString(dst, prepText, r.Text)
	dst = appendBool(dst, prepParseSpecial, r.ParseSpecial)
	dst = appendBool(dst, prepAddSpecial, r.AddSpecial)
	dst = appendBool(dst, prepFeatures, r.Features)
	return appendBool(dst, prepShows, r.ResolveMedia)
}

// DecodePreprocessRequest sets r to the request that b encodes. It reuses r's slice and keeps nothing of b.
// It fails on malformed bytes; [PreprocessRequest.Validate] checks the values. After an error r is
// unspecified.
func DecodePreprocessRequest(b []byte, r *PreprocessRequest) error {
	old := *r
	*r = PreprocessRequest{Chat: old.Chat[:0]}
	d, err := newReader("preprocess request", b, wireVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case prepID:
			r.ID = d.readString(old.ID)
		case prepAttempt:
			r.Attempt = d.readUint32()
		case prepModel:
			r.Model = d.readString(old.Model)
		case prepChat:
			r.Chat = append(r.Chat, d.readBytes()...)
		case prepText:
			r.Text = d.readString(old.Text)
		case prepParseSpecial:
			r.ParseSpecial = d.readBool()
		case prepAddSpecial:
			r.AddSpecial = d.readBool()
		case prepFeatures:
			r.Features = d.readBool()
		case prepShows:
			r.ResolveMedia = d.readBool()
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendPreprocessed appends the encoding of p without its Features to dst: the last frame of an answer.
func AppendPreprocessed(dst []byte, p *Preprocessed) []byte {
	dst = append(dst, wireVersion)
	dst = appendUint(dst, preppedAttempt, uint64(p.Attempt))
	dst = appendTokens(dst, preppedTokens, p.Tokens)
	dst = appendMedia(dst, preppedMedia, p.Media)
	dst = appendDigests(dst, preppedDigests, p.Media)
	dst = appendObjects(dst, preppedObject, p.Objects)
	if p.TextOnlyError == nil {
		return dst
	}
	dst = appendString(dst, preppedReason, string(p.TextOnly))
	dst = appendString(dst, preppedWhy, p.TextOnlyError.Message)
	return appendString(dst, preppedParam, p.TextOnlyError.Param)
}

// SendFrames calls send with the frames of an answer in order: p's Features in pieces, then the result of
// [AppendPreprocessed]. send keeps nothing.
func (p *Preprocessed) SendFrames(send func(frame []byte) error) error {
	var frame []byte
	for piece := range slices.Chunk(p.Features, maxFeaturesPiece) {
		frame = appendUint(append(frame[:0], wireVersion), preppedAttempt, uint64(p.Attempt))
		frame = appendBool(appendBytes(frame, preppedFeatures, piece), preppedMore, true)
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
		return malformedField("preprocessed prompt", preppedMore)
	}
	return err
}

// decodePreprocessed is DecodePreprocessed for any frame. more says that others follow: then p has only a
// piece of the features, else everything but them.
func decodePreprocessed(b []byte, p *Preprocessed) (more bool, err error) {
	*p = Preprocessed{Tokens: p.Tokens[:0], Media: p.Media[:0]}
	d, err := newReader("preprocessed prompt", b, wireVersion)
	if err != nil {
		return false, err
	}
	for d.nextField() {
		switch d.field {
		case preppedAttempt:
			p.Attempt = d.readUint32()
		case preppedTokens:
			if p.Tokens = d.readTokens(p.Tokens); len(p.Tokens) > MaxPreprocessed {
				d.fail()
			}
		case preppedMedia:
			if len(p.Media) == MaxPreprocessedMedia {
				d.fail()
				break
			}
			p.Media = append(p.Media, d.readMedia())
			d.allowRepeat()
		case preppedFeatures:
			p.Features = d.readFeatures(true)
		case preppedMore:
			more = d.readBool()
		case preppedDigests:
			d.readDigests(p.Media)
		case preppedObject:
			p.Objects = d.readObject(p.Objects, wireVersion)
		case preppedReason:
			if p.TextOnly = media.Reason(d.readString("")); p.TextOnly == media.NoReason {
				d.fail()
			}
			p.TextOnlyError = &fault.Error{Code: fault.Invalid}
		case preppedWhy, preppedParam:
			d.readRefusal(p)
		default:
			d.skipField()
		}
	}
	if more != (len(p.Features) > 0) || more && len(p.Tokens)+len(p.Media) > 0 {
		d.fail()
	}
	return more, d.err()
}

// readRefusal reads the message or the parameter of a refusal, which follow its reason.
func (r *wireReader) readRefusal(p *Preprocessed) {
	s := r.readString("")
	switch {
	case p.TextOnlyError == nil:
		r.fail()
	case r.field == preppedWhy:
		p.TextOnlyError.Message = s
	default:
		p.TextOnlyError.Param = s
	}
}
