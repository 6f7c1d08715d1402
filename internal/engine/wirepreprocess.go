package engine

import (
	"encoding/binary"

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
	prepShows
)

// The fields of what was preprocessed. Numbers are never reused.
const (
	preppedAttempt = iota + 1
	preppedTokens
	preppedMedia // repeated
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
	return appendBool(dst, prepShows, r.Shows)
}

// DecodePreprocessRequest sets r to the request that b encodes, reusing its slice.
// It keeps nothing of b. Whether the values make sense is
// [PreprocessRequest.Validate]'s question; what fails here is malformed. After an
// error r is unspecified.
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
		case prepShows:
			r.Shows = d.bool()
		default:
			d.skip()
		}
	}
	return d.err()
}

// AppendPreprocessed appends the encoding of p to dst.
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

// DecodePreprocessed sets p to what b encodes, reusing its slices. It keeps nothing
// of b, and refuses more than a Preprocessed may have. What fails here is
// malformed; after an error p is unspecified.
func DecodePreprocessed(b []byte, p *Preprocessed) error {
	*p = Preprocessed{Tokens: p.Tokens[:0], Media: p.Media[:0]}
	d, err := newReader("preprocessed prompt", b, wireVersion)
	if err != nil {
		return err
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
	return d.err()
}

// why reads what of a refusal comes after its reason.
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
