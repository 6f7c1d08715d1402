package strictjson

// SkipValue skips a value of any type. It rejects what reading the value would reject. It allocates
// only to compare keys that are many or have escapes.
func (r *Reader) SkipValue() error {
	r.skipSpace()
	if r.pos >= len(r.data) {
		return r.unexpectedError()
	}
	switch c := r.data[r.pos]; {
	case c == '"':
		if _, problem := r.scanString(); problem != "" {
			return r.syntaxError(problem)
		}
		return nil
	case c == '-' || '0' <= c && c <= '9':
		return r.skipNumber()
	case c == '{':
		return r.visitObject(func([]byte) error { return r.SkipValue() })
	case c == '[':
		return r.skipArray()
	case c == 'n':
		return r.readWord("null")
	case c == 't':
		return r.readWord("true")
	case c == 'f':
		return r.readWord("false")
	}
	return r.unexpectedError()
}

func (r *Reader) skipArray() error {
	if err := r.openContainer(); err != nil {
		return err
	}
	at := len(r.path)
	r.path = append(r.path, pathStep{})
	for i := 0; ; i++ {
		done, err := r.nextElement(']', i == 0)
		if err != nil {
			return err
		}
		if done {
			r.path = r.path[:at]
			return nil
		}
		r.path[at].index = i
		if err := r.SkipValue(); err != nil {
			return err
		}
	}
}

// ReadRaw reads a value of any type and returns its text unchanged, as a part of the Reader's data.
// It is as strict as SkipValue.
func (r *Reader) ReadRaw() ([]byte, error) { return r.CaptureRaw(r.SkipValue) }

// CaptureRaw calls read, which must read one value, and returns the value's text as ReadRaw does.
func (r *Reader) CaptureRaw(read func() error) ([]byte, error) {
	r.skipSpace()
	start := r.pos
	if err := read(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos:r.pos], nil
}
