package grammar

// numberRule says which numbers may be written. Positive and negative numbers have separate bounds of their
// magnitude.
type numberRule struct {
	whole    bool // no point
	exponent bool // one digit and an exponent are allowed
	positive magnitudeRange
	negative magnitudeRange
}

// magnitudeRange is the magnitudes of one sign, from low to high.
type magnitudeRange struct {
	any       bool // false if it is empty
	low, high bound
	// first and last bound the integer before the point.
	first, last uint64
}

// bound is a decimal number: the integer, and the digits after the point without trailing zeros. An open
// bound excludes the number itself.
type bound struct {
	integer  uint64
	fraction string
	open     bool
}

const (
	maxInteger  = 999_999_999_999_999_999 // 18 digits
	maxFraction = 25                      // digits after the point
	maxExponent = 307                     // of a number which is finite in 64 bits
)

// The state of a thread in a number: a is the integer or the exponent, c what was read last, b the shifted
// count of fraction or exponent digits with flags in the low bits.
const (
	numberStart = iota
	numberMinus
	numberZero
	numberDigits
	numberPoint
	numberFraction
	numberE
	numberSign
	numberExponent
)

const (
	isNegative = 1 << iota
	atLow      // equal to the lower bound so far, digit by digit
	atHigh
	countShift = 8
)

func (n *numberRule) sideOf(t *thread) *magnitudeRange {
	if t.b&isNegative != 0 {
		return &n.negative
	}
	return &n.positive
}

// acceptByte processes a byte. It returns false if no allowed number continues with it.
func (n *numberRule) acceptByte(t *thread, b byte) bool {
	switch {
	case b >= '0' && b <= '9':
		return n.acceptDigit(t, b)
	case b == '-' && t.c == numberStart && n.negative.any:
		t.c, t.b = numberMinus, isNegative
		return true
	case b == '.' && (t.c == numberZero || t.c == numberDigits) && !n.whole:
		return n.acceptPoint(t)
	case (b == 'e' || b == 'E') && n.exponent && t.a > 0 && t.a < 10 && (t.c == numberDigits || t.c == numberFraction):
		t.a, t.b, t.c = 0, 0, numberE
		return true
	case (b == '+' || b == '-') && t.c == numberE:
		t.c = numberSign
		return true
	}
	return false
}

func (n *numberRule) acceptDigit(t *thread, b byte) bool {
	d := uint64(b - '0')
	switch t.c {
	case numberStart, numberMinus:
		s := n.sideOf(t)
		t.a = d
		if d == 0 {
			t.c = numberZero
			return s.any && s.first == 0
		}
		t.c = numberDigits
		return s.any && canReach(d, s.first, s.last)
	case numberDigits:
		s := n.sideOf(t)
		if t.a > (s.last-min(d, s.last))/10 {
			return false
		}
		t.a = t.a*10 + d
		return canReach(t.a, s.first, s.last)
	case numberPoint, numberFraction:
		t.c = numberFraction
		return n.acceptFraction(t, b)
	case numberE, numberSign, numberExponent:
		t.c = numberExponent
		if t.a = t.a*10 + d; t.b>>countShift == 3 || t.a > maxExponent {
			return false
		}
		t.b += 1 << countShift
		return true
	}
	return false
}

// canReach reports whether p, or a number which starts with its digits, is between first and last. p is not
// 0.
func canReach(p, first, last uint64) bool {
	low, high := p, p
	for low <= last {
		if high >= first {
			return true
		}
		if low > last/10 {
			return false
		}
		low, high = low*10, high*10+9
	}
	return false
}

func (n *numberRule) acceptPoint(t *thread) bool {
	s := n.sideOf(t)
	t.c = numberPoint
	if t.a == s.low.integer {
		t.b |= atLow
	}
	if t.a == s.high.integer {
		t.b |= atHigh
	}
	// The integer is between first and last, so some fraction fits.
	return t.a >= s.first && t.a <= s.last
}

// acceptFraction processes a digit after the point. It compares with the bounds from left to right: as long
// as all digits equal a bound's, the next one decides.
func (n *numberRule) acceptFraction(t *thread, b byte) bool {
	s := n.sideOf(t)
	at := int(t.b >> countShift)
	if at == maxFraction {
		return false
	}
	t.b += 1 << countShift
	if t.b&atLow != 0 {
		switch d := s.low.digitAt(at); {
		case b < d:
			return false
		case b > d:
			t.b &^= atLow
		case s.low.open && at+1 == maxFraction: // equal, and no digit is left to exceed it
			return false
		}
	}
	if t.b&atHigh != 0 {
		switch d := s.high.digitAt(at); {
		case b > d:
			return false
		case b < d:
			t.b &^= atHigh
		case s.high.open && at+1 >= len(s.high.fraction): // equal, and more digits only increase it
			return false
		}
	}
	return true
}

func (b *bound) digitAt(at int) byte {
	if at < len(b.fraction) {
		return b.fraction[at]
	}
	return '0'
}

// isComplete reports whether the number may end here.
func (n *numberRule) isComplete(t *thread) bool {
	s := n.sideOf(t)
	switch t.c {
	case numberExponent:
		return true
	case numberZero, numberDigits:
		low, high := &s.low, &s.high
		return (t.a > low.integer || t.a == low.integer && low.fraction == "" && !low.open) &&
			(t.a < high.integer || t.a == high.integer && (high.fraction != "" || !high.open))
	case numberFraction:
		digits := int(t.b >> countShift)
		// Equal so far: less than a bound with more digits, otherwise equal to it.
		low := t.b&atLow == 0 || digits >= len(s.low.fraction) && !s.low.open
		high := t.b&atHigh == 0 || digits < len(s.high.fraction) || !s.high.open
		return low && high
	}
	return false
}
