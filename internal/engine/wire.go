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
	// lentVersion is the version of requests whose features are lent: a reader that skipped them would answer
	// without the media.
	lentVersion = 5
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

// AppendRequest appends the encoding of r to dst. It allocates only if dst must
// grow.
func AppendRequest(dst []byte, r *Request) []byte {
	version := byte(wireVersion)
	switch {
	case !r.FeaturesAt.IsZero():
		version = lentVersion
	case r.needsLegVersion():
		version = legVersion
	case len(r.Objects) > 0 || len(r.Features) > 0:
		version = mediaVersion
	case r.OutputSchema != nil:
		version = schemaVersion
	}
	c := wireCodec{dst: append(dst, version)}
	r.codeFields(&c)
	return c.dst
}

// DecodeRequest sets r to the request that b encodes. It reuses r's slices and OutputSchema, except for the
// contents of media, and keeps nothing of b. It fails on malformed bytes; [Request.Validate] checks the
// values. After an error r is unspecified.
func DecodeRequest(b []byte, r *Request) error {
	c, err := newDecoder("request", b, lentVersion)
	if err != nil {
		return err
	}
	r.codeFields(&c)
	switch c.in.version {
	case schemaVersion:
		c.in.failUnless(r.OutputSchema != nil) // no other field needs this version
	case mediaVersion:
		c.in.failUnless(len(r.Objects) > 0 || len(r.Features) > 0)
	}
	lent := !r.FeaturesAt.IsZero()
	c.in.failUnless(lent == (c.in.version == lentVersion) && (lent || r.needsLegVersion() == (c.in.version == legVersion)))
	return c.finish()
}

// needsLegVersion reports whether r has what only legVersion expresses.
func (r *Request) needsLegVersion() bool {
	return r.Leg != LegWhole || r.Handoff != nil || slices.ContainsFunc(r.Objects, hasRows)
}

func hasRows(o media.Object) bool { return o.Rows != nil }

// codeFields codes the fields of r. Their numbers are never reused.
func (r *Request) codeFields(c *wireCodec) {
	codeString(c, 1, &r.ID)
	c.codeUint32(2, &r.Attempt)
	codeString(c, 3, &r.Model)
	codeString(c, 4, &r.Salt.LoRA)
	codeString(c, 5, &r.Salt.Namespace)
	c.codeTokens(6, &r.Prompt)
	c.codeMedia(7, &r.Media)
	c.codeGenerated(8, &r.Generated)
	c.codeBools(9, &r.Done)
	c.codeInt(10, &r.Choices)
	c.codeFloat(11, &r.Sampling.Temperature)
	c.codeInt(12, &r.Sampling.TopK)
	c.codeFloat(13, &r.Sampling.TopP)
	c.codeFloat(14, &r.Sampling.MinP)
	c.codeFloat(15, &r.Sampling.RepetitionPenalty)
	c.codeFloat(16, &r.Sampling.PresencePenalty)
	c.codeFloat(17, &r.Sampling.FrequencyPenalty)
	c.codeFixed(18, &r.Sampling.Seed)
	c.codeBias(19, &r.Sampling.Bias)
	c.codeInt(20, &r.Stop.MaxTokens)
	c.codeInt(21, &r.Stop.MinTokens)
	c.codeTokens(22, &r.Stop.Tokens)
	c.codeBool(23, &r.Stop.IgnoreEOS)
	c.codeInt(24, &r.Logprobs)
	c.codeSchema(25, &r.OutputSchema) // of schemaVersion
	c.codeHints(26, &r.Hints)
	c.codeDigests(27, r.Media)
	c.codeObjects(28, &r.Objects, mediaVersion)
	c.codeFeatures(29, &r.Features, mediaVersion)
	codeUint8(c, 30, &r.Leg) // of legVersion, as the next
	codeHandoff(c, 31, &r.Handoff)
	c.codeStringUpTo(32, &r.FeaturesAt.Place, maxPlace) // of lentVersion, as the next
	c.codeInt(33, &r.FeaturesAt.Size)
	codeSplit(c, 34, &r.Split)
	c.codePrefillHint(36, &r.Prefill)
}

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
	deltaFailures
	deltaSplit
)

// AppendDelta appends the encoding of d to dst. It allocates only if dst must
// grow. A delta carries every token of every answer, so unlike other messages it has no codeFields, which would
// take 1.7 times as long.
func AppendDelta(dst []byte, d *Delta) []byte {
	dst = append(dst, wireVersion)
	if len(d.Failures) > 0 {
		return appendFailedObjects(dst, d)
	}
	dst = appendUint(dst, deltaAttempt, uint64(d.Attempt))
	dst = appendBool(dst, deltaAccepted, d.Accepted)
	dst = appendInt(dst, deltaChoice, d.Choice)
	dst = appendInt(dst, deltaPos, d.Pos)
	dst = appendTokens(dst, deltaTokens, d.Tokens)
	dst = appendLogprobs(dst, deltaLogprobs, d.Logprobs)
	dst = appendInt(dst, deltaCached, d.Cached)
	dst = appendUint(dst, deltaFinish, uint64(d.Finish))
	if d.Handoff == nil && d.Split == nil {
		return dst
	}
	c := wireCodec{dst: dst}
	codeHandoff(&c, deltaHandoff, &d.Handoff)
	if d.Split != nil {
		split := *d.Split // others may read it
		c.codeMessage(deltaSplit, split.codeFields)
	}
	return c.dst
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
		case deltaFailures:
			r.readFailures(d)
		case deltaSplit:
			d.Split = r.readSplitReport()
			r.failUnless(len(d.Failures) == 0) // they are alone
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
