package engine

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// wireReader reads the fields of one message. Its first failure sticks: value methods return zeros after it,
// and nextField returns false.
type wireReader struct {
	message string
	version byte
	rest    []byte
	field   uint64
	kind    uint64
	// minField is the lowest number the next field may have.
	minField uint64
	// ahead is the number of the field whose key was read and whose value was not: 0 if there is none,
	// MaxUint64 after the last field.
	ahead  uint64
	failed bool
}

// newReader returns a reader of a message whose version is at most newest.
func newReader(message string, b []byte, newest byte) (wireReader, error) {
	if len(b) == 0 {
		return wireReader{}, fault.New(fault.Invalid, "decode engine %s: empty message", message)
	}
	if b[0] < wireVersion || b[0] > newest {
		return wireReader{}, fault.New(fault.Unimplemented,
			"decode engine %s: wire version %d is not known here, the newest is %d; upgrade the older side", message, b[0], newest)
	}
	return wireReader{message: message, version: b[0], rest: b[1:], minField: 1}, nil
}

// seekField moves to the next field of that number and reports whether there is one before a field of a higher
// number. It skips fields of lower numbers. Callers seek in ascending order.
func (r *wireReader) seekField(field uint64) bool {
	return r.ahead <= field && r.seekAhead(field)
}

func (r *wireReader) seekAhead(field uint64) bool {
	for {
		if r.ahead == 0 {
			if !r.nextField() {
				r.ahead = math.MaxUint64
				return false
			}
			if r.field > field {
				r.ahead = r.field
				return false
			}
		}
		r.ahead = 0
		if r.field == field {
			return true
		}
		r.skipField()
	}
}

// skipRest skips all fields that are left.
func (r *wireReader) skipRest() {
	for r.ahead != math.MaxUint64 && (r.ahead != 0 || r.nextField()) {
		r.ahead = 0
		r.skipField()
	}
}

// nextField moves to the next field. It returns false at the end or after a failure.
func (r *wireReader) nextField() bool {
	if r.failed || len(r.rest) == 0 {
		return false
	}
	key := r.readUvarint()
	r.field, r.kind = key>>2, key&3
	if r.field < r.minField {
		r.fail()
	}
	r.minField = r.field + 1
	return !r.failed
}

// allowRepeat allows the field just read to appear again.
func (r *wireReader) allowRepeat() { r.minField = r.field }

func (r *wireReader) fail() {
	r.failed, r.ahead = true, math.MaxUint64
	r.rest = nil
}

// failUnless fails if ok is false.
func (r *wireReader) failUnless(ok bool) {
	if !ok {
		r.fail()
	}
}

func (r *wireReader) err() error {
	if r.failed {
		return malformedField(r.message, r.field)
	}
	return nil
}

// skipField skips a field of a later version, which may be repeated.
func (r *wireReader) skipField() {
	switch r.kind {
	case kindInt:
		r.readUvarint()
	case kindFixed:
		r.readRaw(8)
	case kindBytes:
		r.readBytes()
	default:
		r.fail()
	}
	r.allowRepeat()
}

func (r *wireReader) readUvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *wireReader) readRaw(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *wireReader) expectKind(kind uint64) bool {
	if r.kind != kind {
		r.fail()
	}
	return !r.failed
}

func (r *wireReader) readUintUpTo(limit uint64) uint64 {
	if !r.expectKind(kindInt) {
		return 0
	}
	v := r.readUvarint()
	if v > limit {
		r.fail()
		return 0
	}
	return v
}

func (r *wireReader) readUint8() uint8   { return uint8(r.readUintUpTo(math.MaxUint8)) }
func (r *wireReader) readUint32() uint32 { return uint32(r.readUintUpTo(math.MaxUint32)) }
func (r *wireReader) readUint64() uint64 { return r.readUintUpTo(math.MaxUint64) }
func (r *wireReader) readBool() bool     { return r.readUintUpTo(1) == 1 }

// readInt reads a zigzag number of at most 32 bits: no count, position or limit of the contract is larger,
// and sums of a few cannot overflow.
func (r *wireReader) readInt() int {
	v := r.readUint32()
	return int(int32(v>>1) ^ -int32(v&1))
}

func (r *wireReader) readFixed() uint64 {
	if !r.expectKind(kindFixed) {
		return 0
	}
	b := r.readRaw(8)
	if r.failed {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *wireReader) readFloat() float64 { return math.Float64frombits(r.readFixed()) }

func (r *wireReader) readBytes() []byte {
	if !r.expectKind(kindBytes) {
		return nil
	}
	n := r.readUvarint()
	if r.failed {
		return nil
	}
	return r.readRaw(n)
}

// readString returns old if it is equal, so that a reused target allocates nothing.
func (r *wireReader) readString(old string) string {
	b := r.readBytes()
	if string(b) == old {
		return old
	}
	return string(b)
}

func (r *wireReader) readBools(dst []bool) []bool {
	b := r.readBytes()
	if len(b) > MaxChoices {
		r.fail()
		return nil
	}
	for _, v := range b {
		if v > 1 {
			r.fail()
			return nil
		}
		dst = append(dst, v == 1)
	}
	return dst
}

// openField returns a reader of the bytes of a field; closeField must follow.
func (r *wireReader) openField() wireReader {
	return wireReader{rest: r.readBytes(), failed: r.failed}
}

// openMessage returns a reader of a field which is a message of its own, without a version byte; closeField must
// follow.
func (r *wireReader) openMessage() wireReader {
	s := r.openField()
	s.minField = 1
	return s
}

// readBytesUpTo returns a copy of the bytes of a field. It fails if there are none, or more than limit.
func (r *wireReader) readBytesUpTo(limit int) []byte {
	b := r.readBytes()
	if len(b) == 0 || len(b) > limit {
		r.fail()
		return nil
	}
	return append([]byte(nil), b...)
}

// closeField passes a failure of a field's reader on to r.
func (r *wireReader) closeField(s *wireReader) {
	if s.failed {
		r.fail()
	}
}

func (r *wireReader) readToken() kv.Token {
	v := r.readUvarint()
	if v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return kv.Token(v)
}

func (r *wireReader) readFloat32() float32 {
	b := r.readRaw(4)
	if r.failed {
		return 0
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// readTokens appends packed tokens to dst. Every token ends in a byte below 0x80, so their number is known,
// and bounded by the number of bytes, before dst grows.
func (r *wireReader) readTokens(dst []kv.Token) []kv.Token {
	s := r.openField()
	n := 0
	for _, b := range s.rest {
		n += int(^b >> 7)
	}
	dst = slices.Grow(dst, n)
	for len(s.rest) > 0 {
		// Ids of up to four bytes are read without a branch that depends on them while eight bytes are left:
		// see appendPacked.
		b := s.rest
		for len(b) >= 8 {
			v := binary.LittleEndian.Uint64(b)
			last := ^v & 0x80808080
			if last == 0 {
				break
			}
			n := bits.TrailingZeros64(last)/8 + 1
			v &= 1<<(8*n) - 1
			dst = append(dst, kv.Token(v&0x7f|v>>1&(0x7f<<7)|v>>2&(0x7f<<14)|v>>3&(0x7f<<21)))
			b = b[n:]
		}
		if s.rest = b; len(b) > 0 {
			dst = append(dst, s.readToken())
		}
	}
	r.closeField(&s)
	return dst
}

// readSchema returns the OutputSchema of a request, in the memory of old if there is one.
func (r *wireReader) readSchema(old *OutputSchema) *OutputSchema {
	b := r.readBytes()
	if r.version < schemaVersion || len(b) > MaxSchema {
		r.fail()
		return nil
	}
	if old == nil {
		old = new(OutputSchema)
	}
	old.Schema = append(old.Schema[:0], b...)
	return old
}

// readFeatures reads a processor's output; may says whether the message may have it. The memory is not
// reused: it is too large to be kept for messages without features.
func (r *wireReader) readFeatures(may bool) []byte {
	b := r.readBytesUpTo(MaxFeatures)
	if !may {
		r.fail()
		return nil
	}
	return b
}

// readHints appends the hints of a request to dst.
func (r *wireReader) readHints(dst []byte) []byte {
	b := r.readBytes()
	if len(b) > MaxHints {
		r.fail()
		return nil
	}
	return append(dst, b...)
}

func (r *wireReader) readMedia() kv.Media {
	s := r.openField()
	var m kv.Media
	if b := s.readRaw(8); b != nil {
		m.Hash = binary.LittleEndian.Uint64(b)
	}
	s.kind = kindInt
	m.Start, m.End = s.readInt(), s.readInt()
	if len(s.rest) > 0 {
		s.fail()
	}
	r.closeField(&s)
	return m
}

func (r *wireReader) readBias(dst []TokenBias) []TokenBias {
	s := r.openField()
	for len(s.rest) > 0 {
		dst = append(dst, TokenBias{Token: s.readToken(), Bias: s.readFloat32()})
	}
	r.closeField(&s)
	return dst
}

func (r *wireReader) readLogprobs(dst []Logprob) []Logprob {
	s := r.openField()
	for len(s.rest) > 0 {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, Logprob{})
		}
		l := &dst[len(dst)-1]
		l.Token, l.Logprob = s.readToken(), s.readFloat32()
		l.Top = l.Top[:0]
		n := s.readUvarint()
		if n > uint64(len(s.rest))/5 { // each alternative is a token and four bytes
			s.fail()
			break
		}
		for range n {
			l.Top = append(l.Top, TokenLogprob{Token: s.readToken(), Logprob: s.readFloat32()})
		}
	}
	r.closeField(&s)
	return dst
}
