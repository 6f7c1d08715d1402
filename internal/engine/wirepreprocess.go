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
	return appendBool(dst, prepShows, r.Shows)
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
	for d.next() {
		switch d.field {
		case prepID:
			r.ID = d.string(old.ID)
		case prepAttempt:
			r.Attempt = d.uint32()
		case prepModel:
			r.Model = d.string(old.Model)
		case prepChat:
			r.Chat = append(r.Chat, d.bytes()...)
		case prepText:
			r.Text = d.string(old.Text)
		case prepParseSpecial:
			r.ParseSpecial = d.bool()
		case prepAddSpecial:
			r.AddSpecial = d.bool()
		case prepFeatures:
			r.Features = d.bool()
		case prepShows:
			r.Shows = d.bool()
		default:
			d.skip()
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
	if p.Why == nil {
		return dst
	}
	dst = appendString(dst, preppedReason, string(p.TextOnly))
	dst = appendString(dst, preppedWhy, p.Why.Message)
	return appendString(dst, preppedParam, p.Why.Param)
}

// SendFrames calls send with the frames of an answer in order: p's Features in pieces, then the result of
// [AppendPreprocessed]. send keeps nothing.
func (p *Preprocessed) Frames(send func(frame []byte) error) error {
	var frame []byte
	for piece := range slices.Chunk(p.Features, maxPiece) {
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
		return malformed("preprocessed prompt", preppedMore)
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
	for d.next() {
		switch d.field {
		case preppedAttempt:
			p.Attempt = d.uint32()
		case preppedTokens:
			if p.Tokens = d.tokens(p.Tokens); len(p.Tokens) > MaxPreprocessed {
				d.fail()
			}
		case preppedMedia:
			if len(p.Media) == MaxPreprocessedMedia {
				d.fail()
				break
			}
			p.Media = append(p.Media, d.media())
			d.repeat()
		case preppedFeatures:
			p.Features = d.features(true)
		case preppedMore:
			more = d.bool()
		case preppedDigests:
			d.digests(p.Media)
		case preppedObject:
			p.Objects = d.object(p.Objects, wireVersion)
		case preppedReason:
			if p.TextOnly = media.Reason(d.string("")); p.TextOnly == media.NoReason {
				d.fail()
			}
			p.Why = &fault.Error{Code: fault.Invalid}
		case preppedWhy, preppedParam:
			d.why(p)
		default:
			d.skip()
		}
	}
	if more != (len(p.Features) > 0) || more && len(p.Tokens)+len(p.Media) > 0 {
		d.fail()
	}
	return more, d.err()
}

// readRefusal reads the message or the parameter of a refusal, which follow its reason.
func (r *wireReader) why(p *Preprocessed) {
	s := r.string("")
	switch {
	case p.Why == nil:
		r.fail()
	case r.field == preppedWhy:
		p.Why.Message = s
	default:
		p.Why.Param = s
	}
}
