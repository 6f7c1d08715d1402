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
func AppendPassRequest(dst []byte, r *PassRequest) []byte {
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
func DecodePassRequest(b []byte, r *PassRequest) error {
	old := *r
	*r = PassRequest{Body: old.Body[:0], Prompt: old.Prompt[:0], Media: old.Media[:0]}
	d, err := newReader("request to pass on", b, wireVersion)
	if err != nil {
		return err
	}
	for d.next() {
		switch d.field {
		case passID:
			r.ID = d.string(old.ID)
		case passAttempt:
			r.Attempt = d.uint32()
		case passModel:
			r.Model = d.string(old.Model)
		case passLoRA:
			r.Salt.LoRA = d.string(old.Salt.LoRA)
		case passNamespace:
			r.Salt.Namespace = d.string(old.Salt.Namespace)
		case passPath:
			r.Path = d.string(old.Path)
		case passBody:
			r.Body = append(r.Body, d.bytes()...)
		case passStream:
			r.Stream = d.bool()
		case passPrompt:
			r.Prompt = d.tokens(r.Prompt)
		case passHints:
			r.Hints = d.hints(old.Hints[:0])
		case passMedia:
			r.Media = append(r.Media, d.media())
			d.repeat()
		case passDigests:
			d.digests(r.Media)
		case passObject:
			r.Objects = d.object(r.Objects, wireVersion)
		default:
			d.skip()
		}
	}
	return d.err()
}

// AppendPassthroughChunk appends the encoding of p to dst. It allocates only if dst must grow.
func AppendPassPiece(dst []byte, p *PassPiece) []byte {
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
func DecodePassPiece(b []byte, p *PassPiece) error {
	old := *p
	*p = PassPiece{Data: old.Data[:0]}
	d, err := newReader("piece of an answer", b, wireVersion)
	if err != nil {
		return err
	}
	for d.next() {
		switch d.field {
		case pieceAttempt:
			p.Attempt = d.uint32()
		case pieceAccepted:
			p.Accepted = d.bool()
		case pieceStatus:
			p.Status = d.int()
		case pieceType:
			p.Type = d.string(old.Type)
		case pieceData:
			p.Data = append(p.Data, d.bytes()...)
		case pieceTokens:
			p.Tokens = d.int()
		case pieceLast:
			p.Last = d.bool()
		case piecePromptTokens:
			p.PromptTokens = d.int()
		case pieceOutputTokens:
			p.OutputTokens = d.int()
		case pieceCached:
			p.Cached = d.int()
		default:
			d.skip()
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
