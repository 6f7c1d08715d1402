package grammar

import "unicode/utf8"

// stringRule says what a string may contain: min to max characters, or what a pattern allows, which
// includes the lengths.
type stringRule struct {
	min, max uint32 // without dfa; max is unlimited for no limit
	dfa      *dfa
}

const unlimited = ^uint32(0)

// byteResult is the effect of a byte on a string.
type byteResult uint8

const (
	byteRefused byteResult = iota
	byteAccepted
	byteEnded
)

// The state of a thread in a string: a is the state of the pattern or the number of characters, c the kind
// of the next byte, b the bits of the character so far.
const (
	modePlain = iota // the start of a character, or the end
	utf1of2
	utf1of3
	utf2of3
	utf1of4
	utf2of4
	utf3of4
	modeEscape // after a backslash
	hex0       // after \u, and then after each digit
	hex1
	hex2
	hex3
	modeLow // after a high surrogate, whose value is in the upper half of b
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
	firstSupplementary  = 0x10000
)

// acceptByte processes a byte.
func (x *stringRule) acceptByte(t *thread, b byte) byteResult {
	switch {
	case t.c == modePlain:
		return x.acceptPlain(t, b)
	case t.c < modeEscape:
		return x.acceptContinuation(t, b)
	case t.c == modeEscape:
		return x.acceptEscaped(t, b)
	case t.c <= hex3:
		return x.acceptHexDigit(t, b)
	case t.c == modeLow:
		if b != '\\' {
			return byteRefused
		}
		t.c = lowEscape
		return byteAccepted
	case t.c == lowEscape:
		if b != 'u' {
			return byteRefused
		}
		t.c = low0
		return byteAccepted
	}
	return x.acceptLowHexDigit(t, b)
}

func (x *stringRule) acceptPlain(t *thread, b byte) byteResult {
	switch {
	case b == '"':
		if x.canEnd(t.a) {
			return byteEnded
		}
		return byteRefused
	case b == '\\':
		t.c = modeEscape
		return x.allowsAny(t.a, 0, utf8.MaxRune)
	case b < 0x20:
		return byteRefused
	case b < utf8.RuneSelf:
		return x.acceptRune(t, rune(b))
	case b < 0xC2 || b > 0xF4:
		return byteRefused
	case b < 0xE0:
		t.c, t.b = utf1of2, uint32(b&0x1F)
	case b < 0xF0:
		t.c, t.b = utf1of3, uint32(b&0x0F)
	default:
		t.c, t.b = utf1of4, uint32(b&0x07)
	}
	return x.checkSequence(t)
}

func (x *stringRule) acceptContinuation(t *thread, b byte) byteResult {
	if b&0xC0 != 0x80 {
		return byteRefused
	}
	t.b = t.b<<6 | uint32(b&0x3F)
	switch t.c {
	case utf1of2, utf2of3, utf3of4:
		// The checks of checkSequence on earlier bytes leave only whole characters, except for the last
		// byte.
		r := rune(t.b)
		if !utf8.ValidRune(r) || utf8.RuneLen(r) != modeLength[t.c] {
			return byteRefused
		}
		t.b, t.c = 0, modePlain
		return x.acceptRune(t, r)
	}
	t.c++
	return x.checkSequence(t)
}

// modeLength is the length of the character which a mode reads.
var modeLength = [...]int{utf1of2: 2, utf1of3: 3, utf2of3: 3, utf1of4: 4, utf2of4: 4, utf3of4: 4}

// checkSequence reports whether the bits of a character so far can become an allowed character.
func (x *stringRule) checkSequence(t *thread) byteResult {
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
		shift, first = 18, firstSupplementary
	case utf2of4:
		shift, first = 12, firstSupplementary
	case utf3of4:
		shift, first = 6, firstSupplementary
	}
	from := rune(t.b << shift)
	return x.allowsAny(t.a, max(from, first), min(from|(1<<shift-1), utf8.MaxRune))
}

func (x *stringRule) acceptEscaped(t *thread, b byte) byteResult {
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
		return byteAccepted // a character is allowed, or the escape would not have started
	default:
		return byteRefused
	}
	t.c = modePlain
	return x.acceptRune(t, r)
}

// acceptHexDigit processes a digit of the first \u of a character.
func (x *stringRule) acceptHexDigit(t *thread, b byte) byteResult {
	d, ok := parseHexDigit(b)
	if !ok {
		return byteRefused
	}
	t.b = t.b<<4 | d
	left := 4 * (hex3 - t.c)
	from := t.b << left
	to := from | (1<<left - 1)
	if t.c == hex3 {
		if from >= highFirst && from <= highLast {
			t.b, t.c = from<<16, modeLow
			return x.allowsSurrogates(t.a, from, from)
		}
		// A low surrogate was refused with an earlier digit.
		t.b, t.c = 0, modePlain
		return x.acceptRune(t, rune(from))
	}
	t.c++
	if x.allowsAny(t.a, rune(from), rune(to)) == byteAccepted {
		return byteAccepted
	}
	return x.allowsSurrogates(t.a, max(from, highFirst), min(to, highLast))
}

// allowsSurrogates reports whether a character with a high surrogate between first and last is allowed.
func (x *stringRule) allowsSurrogates(a uint64, first, last uint32) byteResult {
	if first > last {
		return byteRefused
	}
	return x.allowsAny(a, firstSupplementary+rune(first-highFirst)<<10, firstSupplementary+rune(last-highFirst)<<10|0x3FF)
}

// acceptLowHexDigit processes a digit of the second \u of a character.
func (x *stringRule) acceptLowHexDigit(t *thread, b byte) byteResult {
	d, ok := parseHexDigit(b)
	if !ok {
		return byteRefused
	}
	high := t.b >> 16
	unit := t.b<<4&0xFFFF | d
	t.b = high<<16 | unit
	left := 4 * (low3 - t.c)
	from := max(unit<<left, lowFirst)
	to := min(unit<<left|(1<<left-1), lowLast)
	if from > to {
		return byteRefused
	}
	of := func(low uint32) rune { return firstSupplementary + rune(high-highFirst)<<10 + rune(low-lowFirst) }
	if t.c == low3 {
		t.b, t.c = 0, modePlain
		return x.acceptRune(t, of(unit))
	}
	t.c++
	return x.allowsAny(t.a, of(from), of(to))
}

func parseHexDigit(b byte) (uint32, bool) {
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
func (x *stringRule) canEnd(a uint64) bool {
	if x.dfa != nil {
		return x.dfa.accept[a]
	}
	return uint32(a) >= x.min
}

// allowsAny reports whether a character between first and last, other than a surrogate, is allowed.
func (x *stringRule) allowsAny(a uint64, first, last rune) byteResult {
	if first >= highFirst && last <= lowLast || first > last {
		return byteRefused
	}
	if x.dfa == nil {
		if x.max != unlimited && uint32(a) >= x.max {
			return byteRefused
		}
		return byteAccepted
	}
	if first < highFirst && last > lowLast {
		if x.dfa.hasTransition(a, first, highFirst-1) || x.dfa.hasTransition(a, lowLast+1, last) {
			return byteAccepted
		}
		return byteRefused
	}
	if first <= lowLast && first >= highFirst {
		first = lowLast + 1
	}
	if last >= highFirst && last <= lowLast {
		last = highFirst - 1
	}
	if x.dfa.hasTransition(a, first, last) {
		return byteAccepted
	}
	return byteRefused
}

// acceptRune processes a whole character.
func (x *stringRule) acceptRune(t *thread, r rune) byteResult {
	if x.dfa != nil {
		q := x.dfa.nextState(t.a, r)
		if q < 0 {
			return byteRefused
		}
		t.a = uint64(q)
		return byteAccepted
	}
	switch n := uint32(t.a); {
	case x.max == unlimited && n >= x.min: // counting further is useless
	case n >= x.max:
		return byteRefused
	default:
		t.a++
	}
	return byteAccepted
}
