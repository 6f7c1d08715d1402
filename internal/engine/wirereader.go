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
	floor uint64
	bad   bool
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
	return wireReader{message: message, version: b[0], rest: b[1:], floor: 1}, nil
}

// nextField moves to the next field. It returns false at the end or after a failure.
func (r *wireReader) next() bool {
	if r.bad || len(r.rest) == 0 {
		return false
	}
	key := r.uvarint()
	r.field, r.kind = key>>2, key&3
	if r.field < r.floor {
		r.fail()
	}
	r.floor = r.field + 1
	return !r.bad
}

// allowRepeat allows the field just read to appear again.
func (r *wireReader) repeat() { r.floor = r.field }

func (r *wireReader) fail() {
	r.bad = true
	r.rest = nil
}

func (r *wireReader) err() error {
	if r.bad {
		return malformed(r.message, r.field)
	}
	return nil
}

// skipField skips a field of a later version, which may be repeated.
func (r *wireReader) skip() {
	switch r.kind {
	case kindInt:
		r.uvarint()
	case kindFixed:
		r.take(8)
	case kindBytes:
		r.bytes()
	default:
		r.fail()
	}
	r.repeat()
}

func (r *wireReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *wireReader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *wireReader) want(kind uint64) bool {
	if r.kind != kind {
		r.fail()
	}
	return !r.bad
}

func (r *wireReader) uintUpTo(limit uint64) uint64 {
	if !r.want(kindInt) {
		return 0
	}
	v := r.uvarint()
	if v > limit {
		r.fail()
		return 0
	}
	return v
}

func (r *wireReader) uint8() uint8   { return uint8(r.uintUpTo(math.MaxUint8)) }
func (r *wireReader) uint32() uint32 { return uint32(r.uintUpTo(math.MaxUint32)) }
func (r *wireReader) bool() bool     { return r.uintUpTo(1) == 1 }

// readInt reads a zigzag number of at most 32 bits: no count, position or limit of the contract is larger,
// and sums of a few cannot overflow.
func (r *wireReader) int() int {
	v := r.uint32()
	return int(int32(v>>1) ^ -int32(v&1))
}

func (r *wireReader) fixed() uint64 {
	if !r.want(kindFixed) {
		return 0
	}
	b := r.take(8)
	if r.bad {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *wireReader) float() float64 { return math.Float64frombits(r.fixed()) }

func (r *wireReader) bytes() []byte {
	if !r.want(kindBytes) {
		return nil
	}
	n := r.uvarint()
	if r.bad {
		return nil
	}
	return r.take(n)
}

// readString returns old if it is equal, so that a reused target allocates nothing.
func (r *wireReader) string(old string) string {
	b := r.bytes()
	if string(b) == old {
		return old
	}
	return string(b)
}

func (r *wireReader) bools(dst []bool) []bool {
	b := r.bytes()
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
func (r *wireReader) sub() wireReader {
	return wireReader{rest: r.bytes(), bad: r.bad}
}

// closeField passes a failure of a field's reader on to r.
func (r *wireReader) join(s *wireReader) {
	if s.bad {
		r.fail()
	}
}

func (r *wireReader) token() kv.Token {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return kv.Token(v)
}

func (r *wireReader) float32() float32 {
	b := r.take(4)
	if r.bad {
		return 0
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// readTokens appends packed tokens to dst. Every token ends in a byte below 0x80, so their number is known,
// and bounded by the number of bytes, before dst grows.
func (r *wireReader) tokens(dst []kv.Token) []kv.Token {
	s := r.sub()
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
			dst = append(dst, s.token())
		}
	}
	r.join(&s)
	return dst
}

// readSchema returns the OutputSchema of a request, in the memory of old if there is one.
func (r *wireReader) guide(old *Guide) *Guide {
	b := r.bytes()
	if r.version < guidedVersion || len(b) > MaxSchema {
		r.fail()
		return nil
	}
	if old == nil {
		old = new(Guide)
	}
	old.Schema = append(old.Schema[:0], b...)
	return old
}

// readFeatures reads a processor's output; may says whether the message may have it. The memory is not
// reused: it is too large to be kept for messages without features.
func (r *wireReader) features(may bool) []byte {
	b := r.bytes()
	if !may || len(b) > MaxFeatures || len(b) == 0 {
		r.fail()
		return nil
	}
	return append([]byte(nil), b...)
}

// readHints appends the hints of a request to dst.
func (r *wireReader) hints(dst []byte) []byte {
	b := r.bytes()
	if len(b) > MaxHints {
		r.fail()
		return nil
	}
	return append(dst, b...)
}

func (r *wireReader) media() kv.Media {
	s := r.sub()
	var m kv.Media
	if b := s.take(8); b != nil {
		m.Hash = binary.LittleEndian.Uint64(b)
	}
	s.kind = kindInt
	m.Start, m.End = s.int(), s.int()
	if len(s.rest) > 0 {
		s.fail()
	}
	r.join(&s)
	return m
}

func (r *wireReader) bias(dst []TokenBias) []TokenBias {
	s := r.sub()
	for len(s.rest) > 0 {
		dst = append(dst, TokenBias{Token: s.token(), Bias: s.float32()})
	}
	r.join(&s)
	return dst
}

func (r *wireReader) logprobs(dst []Logprob) []Logprob {
	s := r.sub()
	for len(s.rest) > 0 {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, Logprob{})
		}
		l := &dst[len(dst)-1]
		l.Token, l.Logprob = s.token(), s.float32()
		l.Top = l.Top[:0]
		n := s.uvarint()
		if n > uint64(len(s.rest))/5 { // each alternative is a token and four bytes
			s.fail()
			break
		}
		for range n {
			l.Top = append(l.Top, TokenLogprob{Token: s.token(), Logprob: s.float32()})
		}
	}
	r.join(&s)
	return dst
}
