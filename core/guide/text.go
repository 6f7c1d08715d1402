package guide

import "unicode/utf8"

// stringRule says what a string may contain: min to max characters, or what a pattern allows, which
// includes the lengths.
type text struct {
	min, max uint32 // without dfa; max is unlimited for no limit
	dfa      *dfa
}

const unlimited = ^uint32(0)

// byteResult is the effect of a byte on a string.
type verdict uint8

const (
	dead verdict = iota
	going
	ended
)

// The state of a thread in a string: a is the state of the pattern or the number of characters, c the kind
// of the next byte, b the bits of the character so far.
const (
	plain = iota // the start of a character, or the end
	utf1of2
	utf1of3
	utf2of3
	utf1of4
	utf2of4
	utf3of4
	escape // after a backslash
	hex0   // after \u, and then after each digit
	hex1
	hex2
	hex3
	low // after a high surrogate, whose value is in the upper half of b
	lowEscape
	low0
	low1
	low2
	low3
)

// The surrogates, with which \u encodes characters beyond 16 bits.
const (
	highFirst, highLast = 0xD800, 0xDBFF
	lowFirst, lowLast   = 0xDC00, 0xDFFF
	beyond              = 0x10000
)

// acceptByte processes a byte.
func (x *text) next(t *thread, b byte) verdict {
	switch {
	case t.c == plain:
		return x.plain(t, b)
	case t.c < escape:
		return x.continuation(t, b)
	case t.c == escape:
		return x.escaped(t, b)
	case t.c <= hex3:
		return x.unit(t, b)
	case t.c == low:
		if b != '\\' {
			return dead
		}
		t.c = lowEscape
		return going
	case t.c == lowEscape:
		if b != 'u' {
			return dead
		}
		t.c = low0
		return going
	}
	return x.lowUnit(t, b)
}

func (x *text) plain(t *thread, b byte) verdict {
	switch {
	case b == '"':
		if x.accepts(t.a) {
			return ended
		}
		return dead
	case b == '\\':
		t.c = escape
		return x.some(t.a, 0, utf8.MaxRune)
	case b < 0x20:
		return dead
	case b < utf8.RuneSelf:
		return x.character(t, rune(b))
	case b < 0xC2 || b > 0xF4:
		return dead
	case b < 0xE0:
		t.c, t.b = utf1of2, uint32(b&0x1F)
	case b < 0xF0:
		t.c, t.b = utf1of3, uint32(b&0x0F)
	default:
		t.c, t.b = utf1of4, uint32(b&0x07)
	}
	return x.sequence(t)
}

func (x *text) continuation(t *thread, b byte) verdict {
	if b&0xC0 != 0x80 {
		return dead
	}
	t.b = t.b<<6 | uint32(b&0x3F)
	switch t.c {
	case utf1of2, utf2of3, utf3of4:
		// The checks of checkSequence on earlier bytes leave only whole characters, except for the last
		// byte.
		r := rune(t.b)
		if !utf8.ValidRune(r) || utf8.RuneLen(r) != lengthOf[t.c] {
			return dead
		}
		t.b, t.c = 0, plain
		return x.character(t, r)
	}
	t.c++
	return x.sequence(t)
}

// modeLength is the length of the character which a mode reads.
var lengthOf = [...]int{utf1of2: 2, utf1of3: 3, utf2of3: 3, utf1of4: 4, utf2of4: 4, utf3of4: 4}

// checkSequence reports whether the bits of a character so far can become an allowed character.
func (x *text) sequence(t *thread) verdict {
	var shift uint
	first := rune(0x80)
	switch t.c {
	case utf1of2:
		shift = 6
	case utf1of3:
		shift, first = 12, 0x800
	case utf2of3:
		shift, first = 6, 0x800
	case utf1of4:
		shift, first = 18, beyond
	case utf2of4:
		shift, first = 12, beyond
	case utf3of4:
		shift, first = 6, beyond
	}
	from := rune(t.b << shift)
	return x.some(t.a, max(from, first), min(from|(1<<shift-1), utf8.MaxRune))
}

func (x *text) escaped(t *thread, b byte) verdict {
	var r rune
	switch b {
	case '"', '\\', '/':
		r = rune(b)
	case 'b':
		r = '\b'
	case 'f':
		r = '\f'
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'u':
		t.b, t.c = 0, hex0
		return going // a character is allowed, or the escape would not have started
	default:
		return dead
	}
	t.c = plain
	return x.character(t, r)
}

// acceptHexDigit processes a digit of the first \u of a character.
func (x *text) unit(t *thread, b byte) verdict {
	d, ok := hexDigit(b)
	if !ok {
		return dead
	}
	t.b = t.b<<4 | d
	left := 4 * (hex3 - t.c)
	from := t.b << left
	to := from | (1<<left - 1)
	if t.c == hex3 {
		if from >= highFirst && from <= highLast {
			t.b, t.c = from<<16, low
			return x.pairs(t.a, from, from)
		}
		// A low surrogate was refused with an earlier digit.
		t.b, t.c = 0, plain
		return x.character(t, rune(from))
	}
	t.c++
	if x.some(t.a, rune(from), rune(to)) == going {
		return going
	}
	return x.pairs(t.a, max(from, highFirst), min(to, highLast))
}

// allowsSurrogates reports whether a character with a high surrogate between first and last is allowed.
func (x *text) pairs(a uint64, first, last uint32) verdict {
	if first > last {
		return dead
	}
	return x.some(a, beyond+rune(first-highFirst)<<10, beyond+rune(last-highFirst)<<10|0x3FF)
}

// acceptLowHexDigit processes a digit of the second \u of a character.
func (x *text) lowUnit(t *thread, b byte) verdict {
	d, ok := hexDigit(b)
	if !ok {
		return dead
	}
	high := t.b >> 16
	unit := t.b<<4&0xFFFF | d
	t.b = high<<16 | unit
	left := 4 * (low3 - t.c)
	from := max(unit<<left, lowFirst)
	to := min(unit<<left|(1<<left-1), lowLast)
	if from > to {
		return dead
	}
	of := func(low uint32) rune { return beyond + rune(high-highFirst)<<10 + rune(low-lowFirst) }
	if t.c == low3 {
		t.b, t.c = 0, plain
		return x.character(t, of(unit))
	}
	t.c++
	return x.some(t.a, of(from), of(to))
}

func hexDigit(b byte) (uint32, bool) {
	switch {
	case b >= '0' && b <= '9':
		return uint32(b - '0'), true
	case b >= 'a' && b <= 'f':
		return uint32(b-'a') + 10, true
	case b >= 'A' && b <= 'F':
		return uint32(b-'A') + 10, true
	}
	return 0, false
}

// canEnd reports whether the string may end.
func (x *text) accepts(a uint64) bool {
	if x.dfa != nil {
		return x.dfa.accept[a]
	}
	return uint32(a) >= x.min
}

// allowsAny reports whether a character between first and last, other than a surrogate, is allowed.
func (x *text) some(a uint64, first, last rune) verdict {
	if first >= highFirst && last <= lowLast || first > last {
		return dead
	}
	if x.dfa == nil {
		if x.max != unlimited && uint32(a) >= x.max {
			return dead
		}
		return going
	}
	if first < highFirst && last > lowLast {
		if x.dfa.some(a, first, highFirst-1) || x.dfa.some(a, lowLast+1, last) {
			return going
		}
		return dead
	}
	if first <= lowLast && first >= highFirst {
		first = lowLast + 1
	}
	if last >= highFirst && last <= lowLast {
		last = highFirst - 1
	}
	if x.dfa.some(a, first, last) {
		return going
	}
	return dead
}

// acceptRune processes a whole character.
func (x *text) character(t *thread, r rune) verdict {
	if x.dfa != nil {
		q := x.dfa.next(t.a, r)
		if q < 0 {
			return dead
		}
		t.a = uint64(q)
		return going
	}
	switch n := uint32(t.a); {
	case x.max == unlimited && n >= x.min: // counting further is useless
	case n >= x.max:
		return dead
	default:
		t.a++
	}
	return going
}
