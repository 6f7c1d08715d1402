package engine

import "encoding/binary"

// The fields of a passthrough request. Numbers are never reused.
const (
	passID = iota + 1
	passAttempt
	passModel
	passLoRA
	passNamespace
	passPath
	passBody
	passStream
	passPrompt
	passHints
	passMedia // repeated
	passDigests
	passObject // repeated
)

// The fields of a passthrough chunk. Numbers are never reused.
const (
	pieceAttempt = iota + 1
	pieceAccepted
	pieceStatus
	pieceType
	pieceData
	pieceTokens
	pieceLast
	piecePromptTokens
	pieceOutputTokens
	pieceCached
)

// AppendPassthroughRequest appends the encoding of r to dst. It allocates only if dst must grow.
func AppendPassthroughRequest(dst []byte, r *PassthroughRequest) []byte {
	dst = append(dst, wireVersion)
	dst = appendString(dst, passID, r.ID)
	dst = appendUint(dst, passAttempt, uint64(r.Attempt))
	dst = appendString(dst, passModel, r.Model)
	dst = appendString(dst, passLoRA, r.Salt.LoRA)
	dst = appendString(dst, passNamespace, r.Salt.Namespace)
	dst = appendString(dst, passPath, r.Path)
	dst = appendBytes(dst, passBody, r.Body)
	dst = appendBool(dst, passStream, r.Stream)
	dst = appendTokens(dst, passPrompt, r.Prompt)
	dst = appendBytes(dst, passHints, r.Hints)
	dst = appendMedia(dst, passMedia, r.Media)
	dst = appendDigests(dst, passDigests, r.Media)
	return appendObjects(dst, passObject, r.Objects)
}

// DecodePassthroughRequest sets r to the request that b encodes. It reuses r's slices and keeps nothing of b.
// It fails on malformed bytes; [PassthroughRequest.Validate] checks the values. After an error r is
// unspecified.
func DecodePassthroughRequest(b []byte, r *PassthroughRequest) error {
	old := *r
	*r = PassthroughRequest{Body: old.Body[:0], Prompt: old.Prompt[:0], Media: old.Media[:0]}
	d, err := newReader("request to pass on", b, wireVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case passID:
			r.ID = d.readString(old.ID)
		case passAttempt:
			r.Attempt = d.readUint32()
		case passModel:
			r.Model = d.readString(old.Model)
		case passLoRA:
			r.Salt.LoRA = d.readString(old.Salt.LoRA)
		case passNamespace:
			r.Salt.Namespace = d.readString(old.Salt.Namespace)
		case passPath:
			r.Path = d.readString(old.Path)
		case passBody:
			r.Body = append(r.Body, d.readBytes()...)
		case passStream:
			r.Stream = d.readBool()
		case passPrompt:
			r.Prompt = d.readTokens(r.Prompt)
		case passHints:
			r.Hints = d.readHints(old.Hints[:0])
		case passMedia:
			r.Media = append(r.Media, d.readMedia())
			d.allowRepeat()
		case passDigests:
			d.readDigests(r.Media)
		case passObject:
			r.Objects = d.readObject(r.Objects, wireVersion)
		default:
			d.skipField()
		}
	}
	return d.err()
}

// AppendPassthroughChunk appends the encoding of p to dst. It allocates only if dst must grow.
func AppendPassthroughChunk(dst []byte, p *PassthroughChunk) []byte {
	dst = append(dst, wireVersion)
	dst = appendUint(dst, pieceAttempt, uint64(p.Attempt))
	dst = appendBool(dst, pieceAccepted, p.Accepted)
	dst = appendInt(dst, pieceStatus, p.Status)
	dst = appendString(dst, pieceType, p.Type)
	dst = appendBytes(dst, pieceData, p.Data)
	dst = appendInt(dst, pieceTokens, p.Tokens)
	dst = appendBool(dst, pieceLast, p.Last)
	dst = appendInt(dst, piecePromptTokens, p.PromptTokens)
	dst = appendInt(dst, pieceOutputTokens, p.OutputTokens)
	return appendInt(dst, pieceCached, p.Cached)
}

// DecodePassthroughChunk sets p to the chunk that b encodes. It reuses p's slice and keeps nothing of b.
// After an error p is unspecified.
func DecodePassthroughChunk(b []byte, p *PassthroughChunk) error {
	old := *p
	*p = PassthroughChunk{Data: old.Data[:0]}
	d, err := newReader("piece of an answer", b, wireVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case pieceAttempt:
			p.Attempt = d.readUint32()
		case pieceAccepted:
			p.Accepted = d.readBool()
		case pieceStatus:
			p.Status = d.readInt()
		case pieceType:
			p.Type = d.readString(old.Type)
		case pieceData:
			p.Data = append(p.Data, d.readBytes()...)
		case pieceTokens:
			p.Tokens = d.readInt()
		case pieceLast:
			p.Last = d.readBool()
		case piecePromptTokens:
			p.PromptTokens = d.readInt()
		case pieceOutputTokens:
			p.OutputTokens = d.readInt()
		case pieceCached:
			p.Cached = d.readInt()
		default:
			d.skipField()
		}
	}
	return d.err()
}

func appendBytes(dst []byte, field uint64, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}
