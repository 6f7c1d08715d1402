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

// PeekType returns the string under the key "type" of the next value, an object, without consuming
// it; "" if it has none. It validates the object as SkipValue would. Where the meaning of an
// object's keys depends on its type, which may come last, this avoids buffering the other keys.
func (r *Reader) PeekType() (string, error) {
	ahead := *r // the copy's stacks grow beyond r's, so r does not change
	var kind string
	err := ahead.ReadObject(func(key string) error {
		if key == "type" && ahead.Kind() == StringKind {
			return ahead.ReadStringInto(&kind)
		}
		return ahead.SkipValue()
	})
	return kind, err
}
