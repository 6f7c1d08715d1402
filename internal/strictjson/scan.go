package strictjson

import "strconv"

// scanner is the position in a JSON text, and the steps which [Reader] and [Cursor] share.
type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) skipSpace() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// skipByte advances past b if that is the next byte.
func (s *scanner) skipByte(b byte) bool {
	if s.pos == len(s.data) || s.data[s.pos] != b {
		return false
	}
	s.pos++
	return true
}

// skipWord advances past w if that is next.
func (s *scanner) skipWord(w string) bool {
	if len(s.data)-s.pos < len(w) || string(s.data[s.pos:s.pos+len(w)]) != w {
		return false
	}
	s.pos += len(w)
	return true
}

// skipDigits advances past digits and returns their number.
func (s *scanner) skipDigits() int {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

// scanNumber advances past a number; ok means that it has JSON's form. ordinary means that its form
// alone shows that it fits a float64.
func (s *scanner) scanNumber() (ordinary, ok bool) {
	const (
		shortExponent = 2   // digits
		shortNumber   = 100 // bytes without the exponent
	)
	start := s.pos
	s.skipByte('-')
	if !s.skipByte('0') && s.skipDigits() == 0 {
		return false, false
	}
	if s.skipByte('.') && s.skipDigits() == 0 {
		return false, false
	}
	ordinary = s.pos-start <= shortNumber
	if s.skipByte('e') || s.skipByte('E') {
		if !s.skipByte('+') {
			s.skipByte('-')
		}
		n := s.skipDigits()
		return ordinary && n <= shortExponent, n > 0
	}
	return ordinary, true
}

// ParseFloat is strconv.ParseFloat without a copy of its argument for short numbers.
func ParseFloat(b []byte) (float64, error) {
	// Most are short numbers of digits and one point, which are exact.
	if v, ok := shortFloat(b); ok {
		return v, nil
	}
	return strconv.ParseFloat(string(b), 64)
}

// shortFloat reads a number of at most 15 digits without exponent: the division of two exact numbers
// rounds correctly.
func shortFloat(b []byte) (float64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 16 {
		return 0, false
	}
	mantissa, digits, point := uint64(0), 0, -1
	for i, d := range b {
		switch {
		case d >= '0' && d <= '9':
			mantissa = mantissa*10 + uint64(d-'0')
			digits++
		case d == '.' && point < 0 && i > 0 && i < len(b)-1:
			point = digits
		default:
			return 0, false
		}
	}
	if digits == 0 || digits > 15 {
		return 0, false
	}
	v := float64(mantissa)
	if point >= 0 {
		v /= pow10(digits - point)
	}
	if neg {
		v = -v
	}
	return v, true
}

func pow10(n int) float64 {
	v := 1.0
	for range n {
		v *= 10
	}
	return v
}

// readNumberText reads a number and returns its text, which aliases the Reader's data.
func (r *Reader) readNumberText(want string) ([]byte, error) {
	if r.Kind() != NumberKind {
		return nil, r.WrongTypeError(want)
	}
	start := r.pos
	if _, err := r.skipNumberText(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos], nil
}

// skipNumberText advances past a number of bounded length. ordinary is that of scanNumber.
func (r *Reader) skipNumberText() (ordinary bool, err error) {
	start := r.pos
	ordinary, ok := r.scanNumber()
	if !ok {
		return false, r.syntaxError("invalid number")
	}
	if n := r.pos - start; n > maxNumber {
		return false, r.InvalidError("is a number out of range: it has %d characters, the limit is %d", n, maxNumber)
	}
	return ordinary, nil
}

// skipNumber skips a number, and rejects it if ReadFloat would.
func (r *Reader) skipNumber() error {
	start := r.pos
	ordinary, err := r.skipNumberText()
	if ordinary || err != nil {
		return err
	}
	if _, err := ParseFloat(r.data[start:r.pos]); err != nil {
		return r.rangeError()
	}
	return nil
}

func (r *Reader) rangeError() error { return r.InvalidError("is a number out of range") }
