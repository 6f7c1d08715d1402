package trace

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxTime bounds times and delays. A century covers times since 1970 too.
const maxTime = 100 * 366 * 24 * time.Hour

// parseTime reads a decimal number of units, such as "61.114", to the nanosecond, truncated.
func parseTime(text string, unit time.Duration) (time.Duration, error) {
	if t, ok := parseDecimal(text, unit); ok {
		return t, nil
	}
	f, ok := parseFloat(text)
	switch {
	case !ok:
		return 0, fmt.Errorf("must be a number, not %s", describeValue(text))
	case f < 0:
		return 0, fmt.Errorf("must be at least 0, not %s", describeValue(text))
	case f > float64(maxTime/unit):
		return 0, fmt.Errorf("is %s %s, which is more than a hundred years", describeValue(text), unitName(unit))
	}
	return time.Duration(math.Floor(f * float64(unit))), nil
}

// parseFloat reads a decimal number, infinite if it overflows. It accepts none of Go's other number formats.
func parseFloat(text string) (float64, bool) {
	if strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

func unitName(unit time.Duration) string {
	if unit == time.Second {
		return "seconds"
	}
	return "milliseconds"
}

// parseDecimal is the fast path of parseTime for digits with at most one point, within range.
func parseDecimal(text string, unit time.Duration) (time.Duration, bool) {
	whole, i := time.Duration(0), 0
	for ; i < len(text) && isDigit(text[i]); i++ {
		if whole = whole*10 + time.Duration(text[i]-'0'); whole > maxTime/unit {
			return 0, false
		}
	}
	if i == 0 {
		return 0, false
	}
	total := whole * unit
	if i == len(text) {
		return total, true
	}
	if text[i] != '.' || i+1 == len(text) {
		return 0, false
	}
	for _, c := range []byte(text[i+1:]) {
		if !isDigit(c) {
			return 0, false
		}
		unit /= 10
		total += time.Duration(c-'0') * unit
	}
	return total, total <= maxTime
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// parseCount reads a count, at most limit.
func parseCount(text string, limit int) (int, error) {
	n, ok := 0, text != ""
	for i := 0; i < len(text) && ok; i++ {
		if ok = isDigit(text[i]); ok {
			if n = n*10 + int(text[i]-'0'); n > limit {
				return 0, fmt.Errorf("must be at most %d, not %s", limit, describeValue(text))
			}
		}
	}
	if ok {
		return n, nil
	}
	f, ok := parseFloat(text)
	switch {
	case !ok || f != math.Trunc(f):
		return 0, fmt.Errorf("must be a whole number, not %s", describeValue(text))
	case f < 0:
		return 0, fmt.Errorf("must be at least 0, not %s", describeValue(text))
	case f > float64(limit):
		return 0, fmt.Errorf("must be at most %d, not %s", limit, describeValue(text))
	}
	return int(f), nil
}

// integer is the element type of a list.
type integer interface{ ~int64 | ~uint32 }

// appendIntegers appends the elements of array, a well-formed JSON array of integers within [0, limit]. It
// returns the index of the first other element, or -1. Reading a trace spends most of its time here.
func appendIntegers[T integer](dst []T, array []byte, limit uint64) (_ []T, wrong int) {
	const safe = math.MaxUint64/10 - 1 // room for another digit
	first := len(dst)
	for i := 1; i < len(array); {
		switch c := array[i]; {
		case isDigit(c):
			n := uint64(0)
			for ; isDigit(array[i]); i++ { // ends at the closing bracket at the latest
				if n > safe {
					return dst, len(dst) - first
				}
				n = n*10 + uint64(array[i]-'0')
			}
			if end := array[i]; n > limit || end != ',' && end != ']' && !isSpace(end) {
				return dst, len(dst) - first
			}
			dst = append(dst, T(n))
		case c == ',' || c == ']' || isSpace(c):
			i++
		default:
			return dst, len(dst) - first
		}
	}
	return dst, -1
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
