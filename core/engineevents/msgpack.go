package engineevents

import (
	"encoding/binary"
	"math"

	"penstock/core/kv"
)

// msgpackReader walks over msgpack. Its methods report by ok whether the expected value was there. After a
// false ok the position is undefined: a caller which continues must restore it.
type msgpackReader struct {
	buf []byte
	pos int
}

// remaining returns the number of unread bytes. No valid element count can be larger.
func (r *msgpackReader) remaining() int { return len(r.buf) - r.pos }

// peekByte returns the first byte of the next value, or 0xc1, which msgpack never uses, at the end.
func (r *msgpackReader) peekByte() byte {
	if r.pos >= len(r.buf) {
		return 0xc1
	}
	return r.buf[r.pos]
}

// readNil reads a nil if one is next.
func (r *msgpackReader) readNil() bool {
	if r.peekByte() != 0xc0 {
		return false
	}
	r.pos++
	return true
}

// readBigEndian reads an n-byte big-endian number.
func (r *msgpackReader) readBigEndian(n int) (uint64, bool) {
	if r.remaining() < n {
		return 0, false
	}
	v := uint64(0)
	for _, b := range r.buf[r.pos : r.pos+n] {
		v = v<<8 | uint64(b)
	}
	r.pos += n
	return v, true
}

// readBytes returns the next n bytes.
func (r *msgpackReader) readBytes(n uint64, ok bool) ([]byte, bool) {
	if !ok || n > uint64(r.remaining()) {
		return nil, false
	}
	b := r.buf[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b, true
}

// readInteger reads an integer of any width. An unsigned one above math.MaxInt64 is returned as its bits,
// with high set.
func (r *msgpackReader) readInteger() (v int64, high, ok bool) {
	c := r.peekByte()
	r.pos++
	switch {
	case c < 0x80:
		return int64(c), false, true
	case c >= 0xe0:
		return int64(int8(c)), false, true
	case c >= 0xcc && c <= 0xcf:
		u, ok := r.readBigEndian(1 << (c - 0xcc))
		return int64(u), u > math.MaxInt64, ok
	case c >= 0xd0 && c <= 0xd3:
		width := 1 << (c - 0xd0)
		u, ok := r.readBigEndian(width)
		shift := 64 - 8*width
		return int64(u<<shift) >> shift, false, ok
	}
	return 0, false, false
}

// readFloat reads an integer or a float as a float.
func (r *msgpackReader) readFloat() (float64, bool) {
	switch r.peekByte() {
	case 0xca:
		r.pos++
		u, ok := r.readBigEndian(4)
		return float64(math.Float32frombits(uint32(u))), ok
	case 0xcb:
		r.pos++
		u, ok := r.readBigEndian(8)
		return math.Float64frombits(u), ok
	}
	v, high, ok := r.readInteger()
	if high {
		return float64(uint64(v)), ok
	}
	return float64(v), ok
}

// readString reads a string.
func (r *msgpackReader) readString() ([]byte, bool) {
	c := r.peekByte()
	r.pos++
	switch {
	case c >= 0xa0 && c < 0xc0:
		return r.readBytes(uint64(c&0x1f), true)
	case c >= 0xd9 && c <= 0xdb:
		return r.readBytes(r.readBigEndian(1 << (c - 0xd9)))
	}
	return nil, false
}

// isString reports whether a string is next.
func (r *msgpackReader) isString() bool {
	c := r.peekByte()
	return c >= 0xa0 && c < 0xc0 || c >= 0xd9 && c <= 0xdb
}

// readBinary reads binary data.
func (r *msgpackReader) readBinary() ([]byte, bool) {
	c := r.peekByte()
	r.pos++
	if c < 0xc4 || c > 0xc6 {
		return nil, false
	}
	return r.readBytes(r.readBigEndian(1 << (c - 0xc4)))
}

// isArray and isMap report what is next.
func (r *msgpackReader) isArray() bool {
	c := r.peekByte()
	return c >= 0x90 && c < 0xa0 || c == 0xdc || c == 0xdd
}

func (r *msgpackReader) isMap() bool {
	c := r.peekByte()
	return c >= 0x80 && c < 0x90 || c == 0xde || c == 0xdf
}

// readArrayHeader reads the header of an array: the number of elements, which never exceeds the remaining
// bytes.
func (r *msgpackReader) readArrayHeader() (int, bool) { return r.readHeader(0x90, 0xdc, 1) }

// readMapHeader reads the header of a map: the number of pairs, with the same bound.
func (r *msgpackReader) readMapHeader() (int, bool) { return r.readHeader(0x80, 0xde, 2) }

// readHeader reads the header of a container. Its short form starts with fix, its longer forms with wide.
// Each element is `things` values.
func (r *msgpackReader) readHeader(fix, wide byte, things int) (int, bool) {
	c := r.peekByte()
	r.pos++
	n, ok := uint64(0), true
	switch {
	case c >= fix && c < fix+16:
		n = uint64(c - fix)
	case c == wide || c == wide+1:
		n, ok = r.readBigEndian(2 << (c - wide))
	default:
		return 0, false
	}
	if !ok || n*uint64(things) > uint64(r.remaining()) {
		return 0, false
	}
	return int(n), true
}

// skipValue skips one value with everything inside it. It is not recursive: it counts nested values, never
// more than there are bytes.
func (r *msgpackReader) skipValue() bool {
	for need := 1; need > 0; need-- {
		if need > r.remaining() {
			return false
		}
		switch c := r.buf[r.pos]; {
		case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
			r.pos++
		case c < 0xa0 || c >= 0xdc:
			n, ok := 0, false
			things := 1
			if r.isMap() {
				n, ok = r.readMapHeader()
				things = 2
			} else {
				n, ok = r.readArrayHeader()
			}
			if !ok {
				return false
			}
			need += things * n
		case c == 0xc1:
			return false
		default:
			if !r.skipScalar(c) {
				return false
			}
		}
	}
	return true
}

// skipScalar skips a value which starts with c and has no others inside.
func (r *msgpackReader) skipScalar(c byte) bool {
	n, ok := uint64(0), true
	if c >= 0xa0 && c < 0xc0 {
		n = uint64(c & 0x1f)
	}
	r.pos++
	switch {
	case c >= 0xc4 && c <= 0xc6: // binary
		n, ok = r.readBigEndian(1 << (c - 0xc4))
	case c >= 0xc7 && c <= 0xc9: // extension: a length, a type, data
		n, ok = r.readBigEndian(1 << (c - 0xc7))
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
		n, ok = r.readBigEndian(1 << (c - 0xd9))
	}
	_, ok = r.readBytes(n, ok)
	return ok
}

// readTokens reads len(dst) token ids. Nearly all ids of a vocabulary take two or four bytes after the tag,
// in an unpredictable order, so the length is computed, not branched on. The start of the following id is
// known from the bytes at hand, so ids are read two at a time.
func (r *msgpackReader) readTokens(dst []kv.Token) bool {
	buf, at := r.buf, r.pos
	for i := 0; i < len(dst); {
		if at+16 > len(buf) {
			r.pos = at
			return r.readTokensSlow(dst[i:])
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
		r.pos = at
		if !r.readToken(&dst[i]) {
			return false
		}
		at = r.pos
		i++
	}
	r.pos = at
	return true
}

// readTokensSlow does what readTokens does, near the end of the buffer.
func (r *msgpackReader) readTokensSlow(dst []kv.Token) bool {
	for i := range dst {
		if !r.readToken(&dst[i]) {
			return false
		}
	}
	return true
}

// readToken reads one token id: an integer, or, for some engines, its decimal digits.
func (r *msgpackReader) readToken(t *kv.Token) bool {
	if r.isString() {
		s, ok := r.readString()
		u, good := parseDecimal(s)
		*t = kv.Token(u)
		return ok && good && u <= math.MaxUint32
	}
	v, high, ok := r.readInteger()
	*t = kv.Token(v)
	return ok && !high && v >= 0 && v <= math.MaxUint32
}

// readHashes reads len(dst) hashes.
func (r *msgpackReader) readHashes(dst []kv.EngineHash) bool {
	for i := range dst {
		if r.remaining() >= 9 && r.buf[r.pos] == 0xcf {
			dst[i] = kv.EngineHash(binary.BigEndian.Uint64(r.buf[r.pos+1:]))
			r.pos += 9
			continue
		}
		h, ok := r.readHash()
		if !ok {
			return false
		}
		dst[i] = h
	}
	return true
}

// readHash reads a block hash: an integer (its bits), a digest (its last 8 bytes), or either as text.
func (r *msgpackReader) readHash() (kv.EngineHash, bool) {
	switch c := r.peekByte(); {
	case c >= 0xc4 && c <= 0xc6:
		b, ok := r.readBinary()
		return hashOfDigest(b), ok && len(b) > 0
	case r.isString():
		s, ok := r.readString()
		if !ok || len(s) == 0 {
			return 0, false
		}
		return parseTextHash(s), true
	}
	v, _, ok := r.readInteger()
	return kv.EngineHash(v), ok
}

// hashOfDigest returns the last 8 bytes of a digest as a big-endian number: vLLM sends the same where it
// sends an integer instead of the digest.
func hashOfDigest(b []byte) kv.EngineHash {
	v := uint64(0)
	for _, c := range b[max(0, len(b)-8):] {
		v = v<<8 | uint64(c)
	}
	return kv.EngineHash(v)
}

// parseTextHash returns the hash which a non-empty text encodes: decimal digits are a number, 16 or more
// hexadecimal digits a digest, anything else the bytes of a digest.
func parseTextHash(s []byte) kv.EngineHash {
	if u, ok := parseDecimal(s); ok {
		return kv.EngineHash(u)
	}
	if s[0] == '-' {
		if u, ok := parseDecimal(s[1:]); ok {
			return kv.EngineHash(-u)
		}
	}
	if len(s) >= 16 {
		v := uint64(0)
		for i, c := range s {
			d, ok := parseHexDigit(c)
			if !ok {
				break
			}
			v = v<<4 | uint64(d)
			if i == len(s)-1 {
				return kv.EngineHash(v)
			}
		}
	}
	return hashOfDigest(s)
}

func parseHexDigit(c byte) (byte, bool) {
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

// parseDecimal parses decimal digits.
func parseDecimal(s []byte) (uint64, bool) {
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
