package strictjson

import "strconv"

// readNumberText reads a number and returns its text, which aliases the Reader's data.
func (r *Reader) readNumberText(want string) ([]byte, error) {
	if r.Kind() != NumberKind {
		return nil, r.WrongTypeError(want)
	}
	start := r.pos
	if _, err := r.scanNumber(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos], nil
}

// scanNumber advances past a number. ordinary means that its form alone shows that it fits a
// float64.
func (r *Reader) scanNumber() (ordinary bool, err error) {
	const (
		shortExponent = 2   // digits
		shortNumber   = 100 // bytes without the exponent
	)
	start := r.pos
	if r.data[r.pos] == '-' {
		r.pos++
	}
	switch {
	case r.pos < len(r.data) && r.data[r.pos] == '0':
		r.pos++
	case r.skipDigits() == 0:
		return false, r.syntaxError("invalid number")
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if r.skipDigits() == 0 {
			return false, r.syntaxError("invalid number")
		}
	}
	ordinary = r.pos-start <= shortNumber
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		n := r.skipDigits()
		if n == 0 {
			return false, r.syntaxError("invalid number")
		}
		ordinary = ordinary && n <= shortExponent
	}
	if n := r.pos - start; n > maxNumber {
		return false, r.InvalidError("is a number out of range: it has %d characters, the limit is %d", n, maxNumber)
	}
	return ordinary, nil
}

// skipDigits advances past digits and returns their number.
func (r *Reader) skipDigits() int {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	return r.pos - start
}

// skipNumber skips a number, and rejects it if ReadFloat would.
func (r *Reader) skipNumber() error {
	start := r.pos
	ordinary, err := r.scanNumber()
	if ordinary || err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(string(r.data[start:r.pos]), 64); err != nil {
		return r.rangeError()
	}
	return nil
}

func (r *Reader) rangeError() error { return r.InvalidError("is a number out of range") }
