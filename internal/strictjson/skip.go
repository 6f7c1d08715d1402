package strictjson

// SkipValue skips a value of any type. It rejects what reading the value would reject. It allocates
// only to compare keys that are many or have escapes.
func (r *Reader) Skip() error {
	r.space()
	if r.pos >= len(r.data) {
		return r.unexpected()
	}
	switch c := r.data[r.pos]; {
	case c == '"':
		_, err := r.scan()
		return err
	case c == '-' || '0' <= c && c <= '9':
		return r.skipNumber()
	case c == '{':
		return r.object(func([]byte) error { return r.Skip() })
	case c == '[':
		return r.skipArray()
	case c == 'n':
		return r.word("null")
	case c == 't':
		return r.word("true")
	case c == 'f':
		return r.word("false")
	}
	return r.unexpected()
}

func (r *Reader) skipArray() error {
	if err := r.enter(); err != nil {
		return err
	}
	at := len(r.path)
	r.path = append(r.path, step{})
	for i := 0; ; i++ {
		done, err := r.next(']', i == 0)
		if err != nil {
			return err
		}
		if done {
			r.path = r.path[:at]
			return nil
		}
		r.path[at].index = i
		if err := r.Skip(); err != nil {
			return err
		}
	}
}

// ReadRaw reads a value of any type and returns its text unchanged, as a part of the Reader's data.
// It is as strict as SkipValue.
func (r *Reader) Raw() ([]byte, error) { return r.Capture(r.Skip) }

// CaptureRaw calls read, which must read one value, and returns the value's text as ReadRaw does.
func (r *Reader) Capture(read func() error) ([]byte, error) {
	r.space()
	start := r.pos
	if err := read(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos:r.pos], nil
}
