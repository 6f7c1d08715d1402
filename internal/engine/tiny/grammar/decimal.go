package grammar

import (
	"math"
	"strconv"
	"strings"
)

// decimal is an exact number of a schema: ±0.digits × 10^point, without zeros at either end; zero has no
// digits.
type decimal struct {
	negative bool
	digits   string
	point    int
}

// parseDecimal parses a JSON number. ok is false if it has implausibly many digits or too large an
// exponent.
func parseDecimal(s string) (d decimal, ok bool) {
	s, d.negative = strings.CutPrefix(s, "-")
	exponent := 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		n, err := strconv.Atoi(strings.TrimPrefix(s[i+1:], "+"))
		if err != nil || n < -400 || n > 400 {
			return d, false
		}
		s, exponent = s[:i], n
	}
	integer, fraction, _ := strings.Cut(s, ".")
	if len(integer)+len(fraction) > 400 {
		return d, false
	}
	d.digits, d.point = integer+fraction, len(integer)+exponent
	trimmed := strings.TrimLeft(d.digits, "0")
	d.point -= len(d.digits) - len(trimmed)
	if d.digits = strings.TrimRight(trimmed, "0"); d.digits == "" {
		return decimal{}, true // minus zero too
	}
	return d, true
}

// splitPoint returns the digits before and after the point. The exponent must be bounded, as parseDecimal
// ensures.
func (d decimal) splitPoint() (integer, fraction string) {
	switch {
	case d.point <= 0 && d.digits != "":
		return "", strings.Repeat("0", -d.point) + d.digits
	case d.point >= len(d.digits):
		return d.digits + strings.Repeat("0", d.point-len(d.digits)), ""
	}
	return d.digits[:d.point], d.digits[d.point:]
}

// compareTo returns -1, 0 or 1 if a is less than, equal to or more than b.
func (a decimal) compareTo(b decimal) int {
	if a.sign() != b.sign() {
		return compareInts(a.sign(), b.sign())
	}
	order := 0
	if a.digits != "" {
		if order = compareInts(a.point, b.point); order == 0 {
			order = strings.Compare(a.digits, b.digits)
		}
	}
	if a.negative {
		return -order
	}
	return order
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

func compareInts(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// numberLimit is an end of a range of numbers.
type numberLimit struct {
	decimal
	open bool // the number itself is excluded
}

// integerRange returns the integers between the limits with a magnitude below 2^63. A nil limit is no
// limit. ok is false if there are none.
func integerRange(low, high *numberLimit) (n numberRule, ok bool) {
	least, most := int64(-math.MaxInt64), int64(math.MaxInt64)
	if low != nil {
		if least, ok = low.nearestInside(1); !ok {
			return n, false
		}
	}
	if high != nil {
		if most, ok = high.nearestInside(-1); !ok {
			return n, false
		}
	}
	if least > most {
		return n, false
	}
	n.whole = true
	if most >= 0 {
		n.positive = integerMagnitudes(uint64(max(least, 0)), uint64(most))
	}
	if least < 0 {
		n.negative = integerMagnitudes(uint64(-min(most, -1)), uint64(-least))
	}
	return n, true
}

func integerMagnitudes(low, high uint64) magnitudeRange {
	return magnitudeRange{any: true, low: bound{integer: low}, high: bound{integer: high}, first: low, last: high}
}

// nearestInside returns the nearest integer on the inner side of a limit: upwards for direction 1,
// downwards for -1. ok is false if all integers are outside.
func (l *numberLimit) nearestInside(direction int) (v int64, ok bool) {
	integer, fraction := l.splitPoint()
	v, err := strconv.ParseInt("0"+integer, 10, 64)
	if err != nil { // farther out than any integer
		return int64(-direction) * math.MaxInt64, l.sign() != direction
	}
	if l.negative {
		v = -v
	}
	// v is the limit without its fraction, so it is not farther from zero.
	if fraction == "" && !l.open || fraction != "" && l.sign() != direction {
		return v, true
	}
	if v == int64(direction)*math.MaxInt64 {
		return 0, false
	}
	return v + int64(direction), true
}

// maxBoundDigits is the largest number of digits after the point in a bound. It is less than the digits
// which are written, so that there is a number between any two bounds.
const maxBoundDigits = 20

// decimalRange returns the numbers between the limits. A nil limit is no limit. ok is false if there are
// none, or if a limit has too many digits.
func decimalRange(low, high *numberLimit) (n numberRule, ok bool) {
	zero, none := bound{}, bound{integer: maxInteger + 1, open: true}
	n.exponent = low == nil && high == nil
	lowBound, highBound := zero, none
	for _, l := range []*numberLimit{low, high} {
		if l == nil {
			continue
		}
		b, ok := l.toBound()
		if !ok {
			return n, false
		}
		if l == low {
			lowBound = b
		} else {
			highBound = b
		}
	}
	// Zero, with either sign, is within the bounds if both sides allow it.
	switch {
	case low == nil || low.sign() < 0:
		n.positive = newMagnitudeRange(zero, highBound, high == nil || high.sign() >= 0)
	default:
		n.positive = newMagnitudeRange(lowBound, highBound, high == nil || high.sign() >= 0)
	}
	magnitude := none
	if low != nil {
		magnitude = lowBound
	}
	if low == nil || low.sign() < 0 {
		if high == nil || high.sign() > 0 {
			n.negative = newMagnitudeRange(zero, magnitude, true)
		} else {
			n.negative = newMagnitudeRange(highBound, magnitude, true)
		}
	}
	return n, n.positive.any || n.negative.any
}

// toBound returns the magnitude of a limit. ok is false if it has too many digits.
func (l *numberLimit) toBound() (b bound, ok bool) {
	integer, fraction := l.splitPoint()
	b = bound{fraction: fraction, open: l.open}
	var err error
	b.integer, err = strconv.ParseUint("0"+integer, 10, 64)
	return b, err == nil && b.integer <= maxInteger && len(fraction) <= maxBoundDigits
}

// newMagnitudeRange returns the magnitudes between two bounds, if there are any.
func newMagnitudeRange(low, high bound, possible bool) magnitudeRange {
	s := magnitudeRange{low: low, high: high, first: low.integer, last: high.integer}
	if high.fraction == "" && high.open {
		if high.integer == 0 {
			return magnitudeRange{}
		}
		s.last--
	}
	order := compareInts(int(low.integer), int(high.integer))
	if order == 0 {
		order = strings.Compare(low.fraction, high.fraction)
	}
	s.any = possible && (order < 0 || order == 0 && !low.open && !high.open)
	if !s.any {
		return magnitudeRange{}
	}
	return s
}
