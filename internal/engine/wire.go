package engine

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// The byte layout of both messages is in docs/format/engine.md. In short: a version byte, then fields in
// ascending order of number, each a key (number<<2 | kind) and a value of that kind. A field with its zero
// value is left out, and a reader skips the numbers it does not know.

// The first byte of every message. A new version is needed only if an older reader would misunderstand the
// rest, which is not so for most new fields. A writer uses the lowest version that can express the message.
const (
	wireVersion = 1
	// schemaVersion is the version of requests with an OutputSchema: a reader that skipped it would answer
	// with free text.
	schemaVersion = 2
	// mediaVersion is the version of requests with objects or features: a reader that skipped them would
	// answer without the media.
	mediaVersion = 3
	// legVersion is the version of requests with a leg, a handoff or encoder rows: a reader that skipped them
	// would compute the whole request, or answer without the media.
	legVersion = 4
)

// MaxChoices bounds the choices of one request, and so what a decoder allocates for the bookkeeping of each.
const MaxChoices = 128

// MaxHints bounds the hints of a request, in bytes.
const MaxHints = 64 << 10

// The kinds of value.
const (
	kindInt   = 0 // uvarint
	kindFixed = 1 // 8 bytes, little-endian
	kindBytes = 2 // uvarint length, then as many bytes
)

// The fields of a request. Numbers are never reused.
const (
	reqID = iota + 1
	reqAttempt
	reqModel
	reqLoRA
	reqNamespace
	reqPrompt
	reqMedia     // repeated
	reqGenerated // repeated, once per choice
	reqDone
	reqChoices
	reqTemperature
	reqTopK
	reqTopP
	reqMinP
	reqRepetition
	reqPresence
	reqFrequency
	reqSeed
	reqBias
	reqMaxTokens
	reqMinTokens
	reqStopTokens
	reqIgnoreEOS
	reqLogprobs
	reqSchema // of schemaVersion
	reqHints
	reqDigests
	reqObject   // of mediaVersion; repeated
	reqFeatures // of mediaVersion
	reqLeg      // of legVersion
	reqHandoff  // of legVersion
)

// The fields of a delta. Numbers are never reused.
const (
	deltaAttempt = iota + 1
	deltaAccepted
	deltaChoice
	deltaPos
	deltaTokens
	deltaLogprobs
	deltaCached
	deltaFinish
	deltaHandoff
)

// AppendRequest appends the encoding of r to dst. It allocates only if dst must
// grow.
func AppendRequest(dst []byte, r *Request) []byte {
	switch {
	case r.needsLegVersion():
		dst = append(dst, legVersion)
	case len(r.Objects) > 0 || len(r.Features) > 0:
		dst = append(dst, mediaVersion)
	case r.OutputSchema != nil:
		dst = append(dst, schemaVersion)
	default:
		dst = append(dst, wireVersion)
	}
	dst = appendString(dst, reqID, r.ID)
	dst = appendUint(dst, reqAttempt, uint64(r.Attempt))
	dst = appendString(dst, reqModel, r.Model)
	dst = appendString(dst, reqLoRA, r.Salt.LoRA)
	dst = appendString(dst, reqNamespace, r.Salt.Namespace)
	dst = appendTokens(dst, reqPrompt, r.Prompt)
	dst = appendMedia(dst, reqMedia, r.Media)
	for _, g := range r.Generated {
		dst = appendPacked(dst, reqGenerated, g)
	}
	dst = appendBools(dst, reqDone, r.Done)
	dst = appendInt(dst, reqChoices, r.Choices)
	dst = appendFloat(dst, reqTemperature, r.Sampling.Temperature)
	dst = appendInt(dst, reqTopK, r.Sampling.TopK)
	dst = appendFloat(dst, reqTopP, r.Sampling.TopP)
	dst = appendFloat(dst, reqMinP, r.Sampling.MinP)
	dst = appendFloat(dst, reqRepetition, r.Sampling.RepetitionPenalty)
	dst = appendFloat(dst, reqPresence, r.Sampling.PresencePenalty)
	dst = appendFloat(dst, reqFrequency, r.Sampling.FrequencyPenalty)
	dst = appendFixed(dst, reqSeed, r.Sampling.Seed)
	dst = appendBias(dst, reqBias, r.Sampling.Bias)
	dst = appendInt(dst, reqMaxTokens, r.Stop.MaxTokens)
	dst = appendInt(dst, reqMinTokens, r.Stop.MinTokens)
	dst = appendTokens(dst, reqStopTokens, r.Stop.Tokens)
	dst = appendBool(dst, reqIgnoreEOS, r.Stop.IgnoreEOS)
	dst = appendInt(dst, reqLogprobs, r.Logprobs)
	if r.OutputSchema != nil {
		dst = appendKey(dst, reqSchema, kindBytes)
		dst = binary.AppendUvarint(dst, uint64(len(r.OutputSchema.Schema)))
		dst = append(dst, r.OutputSchema.Schema...)
	}
	if len(r.Hints) > 0 {
		dst = binary.AppendUvarint(appendKey(dst, reqHints, kindBytes), uint64(len(r.Hints)))
		dst = append(dst, r.Hints...)
	}
	dst = appendDigests(dst, reqDigests, r.Media)
	dst = appendObjects(dst, reqObject, r.Objects)
	dst = appendBytes(dst, reqFeatures, r.Features)
	dst = appendUint(dst, reqLeg, uint64(r.Leg))
	return appendHandoff(dst, reqHandoff, r.Handoff)
}

// needsLegVersion reports whether r has what only legVersion expresses.
func (r *Request) needsLegVersion() bool {
	return r.Leg != LegWhole || r.Handoff != nil || slices.ContainsFunc(r.Objects, hasRows)
}

func hasRows(o media.Object) bool { return o.Rows != nil }

// DecodeRequest sets r to the request that b encodes. It reuses r's slices and OutputSchema, except for the
// contents of media, and keeps nothing of b. It fails on malformed bytes; [Request.Validate] checks the
// values. After an error r is unspecified.
func DecodeRequest(b []byte, r *Request) error {
	prompt, ranges, bias, stop := r.Prompt[:0], r.Media[:0], r.Sampling.Bias[:0], r.Stop.Tokens[:0]
	old := *r
	*r = Request{Prompt: prompt, Media: ranges, Sampling: Sampling{Bias: bias}, Stop: Stop{Tokens: stop}}
	d, err := newReader("request", b, legVersion)
	if err != nil {
		return err
	}
	for d.nextField() {
		switch d.field {
		case reqID:
			r.ID = d.readString(old.ID)
		case reqAttempt:
			r.Attempt = d.readUint32()
		case reqModel:
			r.Model = d.readString(old.Model)
		case reqLoRA:
			r.Salt.LoRA = d.readString(old.Salt.LoRA)
		case reqNamespace:
			r.Salt.Namespace = d.readString(old.Salt.Namespace)
		case reqPrompt:
			r.Prompt = d.readTokens(r.Prompt)
		case reqMedia:
			r.Media = append(r.Media, d.readMedia())
			d.allowRepeat()
		case reqGenerated:
			if len(r.Generated) == MaxChoices {
				d.fail()
				break
			}
			r.Generated = appendReusing(r.Generated, old.Generated)
			g := &r.Generated[len(r.Generated)-1]
			*g = d.readTokens((*g)[:0])
			d.allowRepeat()
		case reqDone:
			r.Done = d.readBools(old.Done[:0])
		case reqChoices:
			r.Choices = d.readInt()
		case reqTemperature:
			r.Sampling.Temperature = d.readFloat()
		case reqTopK:
			r.Sampling.TopK = d.readInt()
		case reqTopP:
			r.Sampling.TopP = d.readFloat()
		case reqMinP:
			r.Sampling.MinP = d.readFloat()
		case reqRepetition:
			r.Sampling.RepetitionPenalty = d.readFloat()
		case reqPresence:
			r.Sampling.PresencePenalty = d.readFloat()
		case reqFrequency:
			r.Sampling.FrequencyPenalty = d.readFloat()
		case reqSeed:
			r.Sampling.Seed = d.readFixed()
		case reqBias:
			r.Sampling.Bias = d.readBias(r.Sampling.Bias)
		case reqMaxTokens:
			r.Stop.MaxTokens = d.readInt()
		case reqMinTokens:
			r.Stop.MinTokens = d.readInt()
		case reqStopTokens:
			r.Stop.Tokens = d.readTokens(r.Stop.Tokens)
		case reqIgnoreEOS:
			r.Stop.IgnoreEOS = d.readBool()
		case reqLogprobs:
			r.Logprobs = d.readInt()
		case reqSchema:
			r.OutputSchema = d.readSchema(old.OutputSchema)
		case reqHints:
			r.Hints = d.readHints(old.Hints[:0])
		case reqDigests:
			d.readDigests(r.Media)
		case reqObject:
			r.Objects = d.readObject(r.Objects, mediaVersion)
		case reqFeatures:
			r.Features = d.readFeatures(d.version >= mediaVersion)
		case reqLeg:
			r.Leg = Leg(d.readUint8())
			d.failBefore(legVersion)
		case reqHandoff:
			r.Handoff = d.readHandoff()
			d.failBefore(legVersion)
		default:
			d.skipField()
		}
	}
	switch {
	case d.version == schemaVersion && r.OutputSchema == nil,
		d.version == mediaVersion && len(r.Objects) == 0 && len(r.Features) == 0,
		d.version == legVersion && !r.needsLegVersion():
		d.fail() // no other field needs this version
	}
	return d.err()
}

// AppendDelta appends the encoding of d to dst. It allocates only if dst must
// grow.
func AppendDelta(dst []byte, d *Delta) []byte {
	dst = append(dst, wireVersion)
	dst = appendUint(dst, deltaAttempt, uint64(d.Attempt))
	dst = appendBool(dst, deltaAccepted, d.Accepted)
	dst = appendInt(dst, deltaChoice, d.Choice)
	dst = appendInt(dst, deltaPos, d.Pos)
	dst = appendTokens(dst, deltaTokens, d.Tokens)
	dst = appendLogprobs(dst, deltaLogprobs, d.Logprobs)
	dst = appendInt(dst, deltaCached, d.Cached)
	dst = appendUint(dst, deltaFinish, uint64(d.Finish))
	return appendHandoff(dst, deltaHandoff, d.Handoff)
}

// DecodeDelta sets d to the delta that b encodes. It reuses d's slices, including its log-probabilities, and
// keeps nothing of b. After an error d is unspecified.
func DecodeDelta(b []byte, d *Delta) error {
	*d = Delta{Tokens: d.Tokens[:0], Logprobs: d.Logprobs[:0]}
	r, err := newReader("delta", b, wireVersion)
	if err != nil {
		return err
	}
	for r.nextField() {
		switch r.field {
		case deltaAttempt:
			d.Attempt = r.readUint32()
		case deltaAccepted:
			d.Accepted = r.readBool()
		case deltaChoice:
			d.Choice = r.readInt()
		case deltaPos:
			d.Pos = r.readInt()
		case deltaTokens:
			d.Tokens = r.readTokens(d.Tokens)
		case deltaLogprobs:
			d.Logprobs = r.readLogprobs(d.Logprobs)
		case deltaCached:
			d.Cached = r.readInt()
		case deltaFinish:
			d.Finish = Finish(r.readUint8())
		case deltaHandoff:
			d.Handoff = r.readHandoff()
		default:
			r.skipField()
		}
	}
	return r.err()
}

func appendKey(dst []byte, field, kind uint64) []byte {
	return binary.AppendUvarint(dst, field<<2|kind)
}

func appendUint(dst []byte, field, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(appendKey(dst, field, kindInt), v)
}

// appendInt appends a signed number in zigzag form.
func appendInt(dst []byte, field uint64, v int) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendVarint(appendKey(dst, field, kindInt), int64(v))
}

func appendBool(dst []byte, field uint64, v bool) []byte {
	if !v {
		return dst
	}
	return append(appendKey(dst, field, kindInt), 1)
}

func appendFixed(dst []byte, field, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.LittleEndian.AppendUint64(appendKey(dst, field, kindFixed), v)
}

func appendFloat(dst []byte, field uint64, v float64) []byte {
	return appendFixed(dst, field, math.Float64bits(v))
}

func appendString(dst []byte, field uint64, s string) []byte {
	if s == "" {
		return dst
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendTokens(dst []byte, field uint64, tokens []kv.Token) []byte {
	if len(tokens) == 0 {
		return dst
	}
	return appendPacked(dst, field, tokens)
}

// appendPacked appends tokens as consecutive uvarints; the length of the field gives their number. It has no
// branch that depends on a token: the tokens of a prompt have two or three bytes, in an order that a
// processor cannot predict.
func appendPacked(dst []byte, field uint64, tokens []kv.Token) []byte {
	size := 0
	for _, t := range tokens {
		size += tokenLen(t)
	}
	dst = appendKey(dst, field, kindBytes)
	dst = slices.Grow(binary.AppendUvarint(dst, uint64(size)), size+packedRoom)
	at, room := len(dst), dst[:cap(dst)]
	for _, t := range tokens {
		n := tokenLen(t)
		v := uint64(t)
		v = v&0x7f | v&(0x7f<<7)<<1 | v&(0x7f<<14)<<2 | v&(0x7f<<21)<<3 | v&(0x7f<<28)<<4
		v |= 0x80808080 & (1<<(8*(n-1)) - 1) // all bytes but the last have the continuation bit
		binary.LittleEndian.PutUint64(room[at:], v)
		at += n
	}
	return dst[:at]
}

// packedRoom is how many bytes past the end a write of a packed token may touch.
const packedRoom = 8

// tokenLen is the number of bytes of t as a uvarint: its number of bits, at least one, divided by seven and
// rounded up.
func tokenLen(t kv.Token) int { return (9*bits.Len32(uint32(t)|1) + 64) >> 6 }

// appendMedia appends a field for each media object.
func appendMedia(dst []byte, field uint64, ranges []kv.Media) []byte {
	for _, m := range ranges {
		dst = appendKey(dst, field, kindBytes)
		dst = binary.AppendUvarint(dst, uint64(8+intLen(m.Start)+intLen(m.End)))
		dst = binary.LittleEndian.AppendUint64(dst, m.Hash)
		dst = binary.AppendVarint(dst, int64(m.Start))
		dst = binary.AppendVarint(dst, int64(m.End))
	}
	return dst
}

func appendBools(dst []byte, field uint64, v []bool) []byte {
	if len(v) == 0 {
		return dst
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(len(v)))
	for _, b := range v {
		if b {
			dst = append(dst, 1)
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}

func appendBias(dst []byte, field uint64, bias []TokenBias) []byte {
	if len(bias) == 0 {
		return dst
	}
	size := 0
	for _, b := range bias {
		size += uintLen(uint64(b.Token)) + 4
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(size))
	for _, b := range bias {
		dst = appendTokenValue(dst, b.Token, b.Bias)
	}
	return dst
}

func appendLogprobs(dst []byte, field uint64, logprobs []Logprob) []byte {
	if len(logprobs) == 0 {
		return dst
	}
	size := 0
	for i := range logprobs {
		l := &logprobs[i]
		size += uintLen(uint64(l.Token)) + 4 + uintLen(uint64(len(l.Top)))
		for _, t := range l.Top {
			size += uintLen(uint64(t.Token)) + 4
		}
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(size))
	for i := range logprobs {
		l := &logprobs[i]
		dst = appendTokenValue(dst, l.Token, l.Logprob)
		dst = binary.AppendUvarint(dst, uint64(len(l.Top)))
		for _, t := range l.Top {
			dst = appendTokenValue(dst, t.Token, t.Logprob)
		}
	}
	return dst
}

// appendTokenValue appends a token and a number: uvarint, then 4 bytes.
func appendTokenValue(dst []byte, t kv.Token, v float32) []byte {
	dst = binary.AppendUvarint(dst, uint64(t))
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
}

// uintLen is the number of bytes of v as a uvarint.
func uintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// intLen is the number of bytes of v as a zigzag varint.
func intLen(v int) int { return uintLen(uint64(v)<<1 ^ uint64(v>>63)) }

// appendReusing appends an empty slice to s. It reuses the capacity of old's element at that index, if there
// is one.
func appendReusing(s, old [][]kv.Token) [][]kv.Token {
	if s == nil {
		s = old[:0]
	}
	if len(s) < cap(s) {
		return s[:len(s)+1]
	}
	return append(s, nil)
}

// malformedField is the error of every decoder. It names the message and the field by number only, since the
// content may be a prompt.
func malformedField(message string, field uint64) error {
	return fault.New(fault.Invalid, "decode engine %s: field %d is malformed", message, field)
}
