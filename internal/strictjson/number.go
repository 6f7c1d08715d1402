package strictjson

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
