package enginefeed

import (
	"encoding/binary"
	"math"

	"penstock/core/kv"
)

// reader walks over msgpack. Its methods report by ok whether there was what they look for; after
// a false one its place means nothing, and whoever wants to go on sets it back.
type reader struct {
	buf []byte
	at  int
}

// rest returns the number of bytes not read yet: no count of things ahead can be larger.
func (r *reader) rest() int { return len(r.buf) - r.at }

// peek returns the first byte of the next thing; 0xc1, which msgpack never uses, at the end.
func (r *reader) peek() byte {
	if r.at >= len(r.buf) {
		return 0xc1
	}
	return r.buf[r.at]
}

// null reads a nil if one is there.
func (r *reader) null() bool {
	if r.peek() != 0xc0 {
		return false
	}
	r.at++
	return true
}

// big reads n bytes as a number, most significant first.
func (r *reader) big(n int) (uint64, bool) {
	if r.rest() < n {
		return 0, false
	}
	v := uint64(0)
	for _, b := range r.buf[r.at : r.at+n] {
		v = v<<8 | uint64(b)
	}
	r.at += n
	return v, true
}

// sized returns the next n bytes.
func (r *reader) sized(n uint64, ok bool) ([]byte, bool) {
	if !ok || n > uint64(r.rest()) {
		return nil, false
	}
	b := r.buf[r.at : r.at+int(n)]
	r.at += int(n)
	return b, true
}

// integer reads an integer of any width. An unsigned one above the largest int64
// comes as the bits that it has, with high set.
func (r *reader) integer() (v int64, high, ok bool) {
	c := r.peek()
	r.at++
	switch {
	case c < 0x80:
		return int64(c), false, true
	case c >= 0xe0:
		return int64(int8(c)), false, true
	case c >= 0xcc && c <= 0xcf:
		u, ok := r.big(1 << (c - 0xcc))
		return int64(u), u > math.MaxInt64, ok
	case c >= 0xd0 && c <= 0xd3:
		width := 1 << (c - 0xd0)
		u, ok := r.big(width)
		shift := 64 - 8*width
		return int64(u<<shift) >> shift, false, ok
	}
	return 0, false, false
}

// number reads an integer or a float as a float.
func (r *reader) number() (float64, bool) {
	switch r.peek() {
	case 0xca:
		r.at++
		u, ok := r.big(4)
		return float64(math.Float32frombits(uint32(u))), ok
	case 0xcb:
		r.at++
		u, ok := r.big(8)
		return math.Float64frombits(u), ok
	}
	v, high, ok := r.integer()
	if high {
		return float64(uint64(v)), ok
	}
	return float64(v), ok
}

// text reads a string.
func (r *reader) text() ([]byte, bool) {
	c := r.peek()
	r.at++
	switch {
	case c >= 0xa0 && c < 0xc0:
		return r.sized(uint64(c&0x1f), true)
	case c >= 0xd9 && c <= 0xdb:
		return r.sized(r.big(1 << (c - 0xd9)))
	}
	return nil, false
}

// isText reports whether a string is next.
func (r *reader) isText() bool {
	c := r.peek()
	return c >= 0xa0 && c < 0xc0 || c >= 0xd9 && c <= 0xdb
}

// bin reads binary data.
func (r *reader) bin() ([]byte, bool) {
	c := r.peek()
	r.at++
	if c < 0xc4 || c > 0xc6 {
		return nil, false
	}
	return r.sized(r.big(1 << (c - 0xc4)))
}

// isArray and isMap report what is next.
func (r *reader) isArray() bool {
	c := r.peek()
	return c >= 0x90 && c < 0xa0 || c == 0xdc || c == 0xdd
}

func (r *reader) isMap() bool {
	c := r.peek()
	return c >= 0x80 && c < 0x90 || c == 0xde || c == 0xdf
}

// array reads the head of an array: the number of its elements, which is
// never more than there are bytes for.
func (r *reader) array() (int, bool) { return r.head(0x90, 0xdc, 1) }

// fields reads the head of a map: the number of its pairs, likewise.
func (r *reader) fields() (int, bool) { return r.head(0x80, 0xde, 2) }

// head reads the head of a container whose short form begins with fix and whose longer ones with
// wide, and whose elements are so many things each.
func (r *reader) head(fix, wide byte, things int) (int, bool) {
	c := r.peek()
	r.at++
	n, ok := uint64(0), true
	switch {
	case c >= fix && c < fix+16:
		n = uint64(c - fix)
	case c == wide || c == wide+1:
		n, ok = r.big(2 << (c - wide))
	default:
		return 0, false
	}
	if !ok || n*uint64(things) > uint64(r.rest()) {
		return 0, false
	}
	return int(n), true
}

// skip passes over one thing, whatever it has inside. It is not recursive: things in things
// are counted, never more than there are bytes for.
func (r *reader) skip() bool {
	for need := 1; need > 0; need-- {
		if need > r.rest() {
			return false
		}
		switch c := r.buf[r.at]; {
		case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
			r.at++
		case c < 0xa0 || c >= 0xdc:
			n, ok := 0, false
			things := 1
			if r.isMap() {
				n, ok = r.fields()
				things = 2
			} else {
				n, ok = r.array()
			}
			if !ok {
				return false
			}
			need += things * n
		case c == 0xc1:
			return false
		default:
			if !r.skipPlain(c) {
				return false
			}
		}
	}
	return true
}

// skipPlain passes over a thing that has no others inside and begins with c.
func (r *reader) skipPlain(c byte) bool {
	n, ok := uint64(0), true
	if c >= 0xa0 && c < 0xc0 {
		n = uint64(c & 0x1f)
	}
	r.at++
	switch {
	case c >= 0xc4 && c <= 0xc6: // binary
		n, ok = r.big(1 << (c - 0xc4))
	case c >= 0xc7 && c <= 0xc9: // extension: a length, a type, data
		n, ok = r.big(1 << (c - 0xc7))
		n++
	case c == 0xca || c == 0xcb:
		n = 4 << (c - 0xca)
	case c >= 0xcc && c <= 0xcf:
		n = 1 << (c - 0xcc)
	case c >= 0xd0 && c <= 0xd3:
		n = 1 << (c - 0xd0)
	case c >= 0xd4 && c <= 0xd8: // extension of 1, 2, 4, 8, 16 bytes, with a type
		n = 1 + 1<<(c-0xd4)
	case c >= 0xd9 && c <= 0xdb:
		n, ok = r.big(1 << (c - 0xd9))
	}
	_, ok = r.sized(n, ok)
	return ok
}

// tokens reads len(dst) token ids. Nearly all of a vocabulary are two or four bytes long behind their
// first one, in an order that no processor can guess, so that their length is computed, not branched on; and where the
// next one begins is known from the bytes that are at hand, two at a time.
func (r *reader) tokens(dst []kv.Token) bool {
	buf, at := r.buf, r.at
	for i := 0; i < len(dst); {
		if at+16 > len(buf) {
			r.at = at
			return r.lastTokens(dst[i:])
		}
		w := binary.BigEndian.Uint64(buf[at:])
		c := w >> 56
		if c-0xcd <= 1 { // 0xcd: 16 bits, 0xce: 32 bits
			n := 3 + c&2
			next := w << (8 * n & 63) >> 56
			dst[i] = kv.Token(w << 8 >> ((72 - 8*n) & 63))
			at += int(n)
			i++
			if next-0xcd <= 1 && i < len(dst) {
				n = 3 + next&2
				w = binary.BigEndian.Uint64(buf[at:])
				dst[i] = kv.Token(w << 8 >> ((72 - 8*n) & 63))
				at += int(n)
				i++
			}
			continue
		}
		if c < 0x80 {
			dst[i] = kv.Token(c)
			at++
			i++
			continue
		}
		r.at = at
		if !r.token(&dst[i]) {
			return false
		}
		at = r.at
		i++
	}
	r.at = at
	return true
}

// lastTokens does what tokens does, near the end.
func (r *reader) lastTokens(dst []kv.Token) bool {
	for i := range dst {
		if !r.token(&dst[i]) {
			return false
		}
	}
	return true
}

// token reads one token id: an integer, or, as some engines have it, its digits.
func (r *reader) token(t *kv.Token) bool {
	if r.isText() {
		s, ok := r.text()
		u, good := decimal(s)
		*t = kv.Token(u)
		return ok && good && u <= math.MaxUint32
	}
	v, high, ok := r.integer()
	*t = kv.Token(v)
	return ok && !high && v >= 0 && v <= math.MaxUint32
}

// hashes reads len(dst) hashes.
func (r *reader) hashes(dst []kv.EngineHash) bool {
	for i := range dst {
		if r.rest() >= 9 && r.buf[r.at] == 0xcf {
			dst[i] = kv.EngineHash(binary.BigEndian.Uint64(r.buf[r.at+1:]))
			r.at += 9
			continue
		}
		h, ok := r.hash()
		if !ok {
			return false
		}
		dst[i] = h
	}
	return true
}

// hash reads a block's hash: an integer, whose bits it is, a digest, of which it is the last 8 bytes, or
// either as text.
func (r *reader) hash() (kv.EngineHash, bool) {
	switch c := r.peek(); {
	case c >= 0xc4 && c <= 0xc6:
		b, ok := r.bin()
		return lastBytes(b), ok && len(b) > 0
	case r.isText():
		s, ok := r.text()
		if !ok || len(s) == 0 {
			return 0, false
		}
		return hashOfText(s), true
	}
	v, _, ok := r.integer()
	return kv.EngineHash(v), ok
}

// lastBytes returns the last 8 bytes of a digest as a number, most significant first: what vLLM gives
// as an integer where it does not give the digest.
func lastBytes(b []byte) kv.EngineHash {
	v := uint64(0)
	for _, c := range b[max(0, len(b)-8):] {
		v = v<<8 | uint64(c)
	}
	return kv.EngineHash(v)
}

// hashOfText returns the hash that a text says: decimal digits are a number, 16 and more hexadecimal ones
// a digest, anything else the bytes of one. It is not empty.
func hashOfText(s []byte) kv.EngineHash {
	if u, ok := decimal(s); ok {
		return kv.EngineHash(u)
	}
	if s[0] == '-' {
		if u, ok := decimal(s[1:]); ok {
			return kv.EngineHash(-u)
		}
	}
	if len(s) >= 16 {
		v := uint64(0)
		for i, c := range s {
			d, ok := hexDigit(c)
			if !ok {
				break
			}
			v = v<<4 | uint64(d)
			if i == len(s)-1 {
				return kv.EngineHash(v)
			}
		}
	}
	return lastBytes(s)
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// decimal returns the number that s has the digits of.
func decimal(s []byte) (uint64, bool) {
	if len(s) == 0 || len(s) > 20 {
		return 0, false
	}
	v := uint64(0)
	for _, c := range s {
		d := uint64(c - '0')
		if d > 9 || v > (math.MaxUint64-d)/10 {
			return 0, false
		}
		v = 10*v + d
	}
	return v, true
}
