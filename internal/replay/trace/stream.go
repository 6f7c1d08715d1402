package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// elementReader splits a JSON array, or a sequence of JSON values, into its elements without loading it
// whole. It finds only the end of each element; the element's reader validates the rest.
type elementReader struct {
	from    *bufio.Reader
	line    int // current line
	started bool
	array   bool // the elements are in brackets
	ended   bool
	element []byte
}

// nextElement returns the next element, an object, and its first line. It is valid until the next call.
func (s *elementReader) nextElement() (element []byte, line int, err error) {
	c, err := s.skipToElement()
	if err != nil {
		return nil, s.line, err
	}
	if c != '{' {
		return nil, s.line, errors.New("must be an object")
	}
	line = s.line
	err = s.readObject()
	return s.element, line, err
}

// skipToElement skips to the next element and returns its first byte. It returns io.EOF if there is none.
func (s *elementReader) skipToElement() (c byte, err error) {
	if s.ended {
		return 0, io.EOF
	}
	first := !s.started
	if first {
		s.started, s.line = true, 1
		if c, err = s.nextNonSpace(); err != nil {
			return 0, err
		}
		if s.array = c == '['; !s.array {
			return c, nil
		}
	}
	c, err = s.nextNonSpace()
	switch {
	case err == io.EOF && !s.array:
		s.ended = true
		return 0, io.EOF
	case err == io.EOF:
		return 0, errors.New("the file ends without the closing bracket of its array; it was cut off")
	case err != nil || !s.array:
		return c, err
	case c == ']':
		return 0, s.checkEnd()
	case first:
		return c, nil
	case c != ',':
		return 0, errors.New("must have a comma or a closing bracket before it")
	}
	if c, err = s.nextNonSpace(); err == io.EOF {
		return 0, errors.New("the file ends without the closing bracket of its array; it was cut off")
	}
	return c, err
}

// checkEnd checks that nothing follows the array.
func (s *elementReader) checkEnd() error {
	switch _, err := s.nextNonSpace(); err {
	case io.EOF:
		s.ended = true
		return io.EOF
	case nil:
		return errors.New("comes behind the closing bracket of the array; nothing may")
	default:
		return err
	}
}

// nextNonSpace returns the next byte which is not space.
func (s *elementReader) nextNonSpace() (byte, error) {
	for {
		c, err := s.from.ReadByte()
		switch {
		case err != nil:
			return 0, err
		case c == '\n':
			s.line++
		case !isSpace(c):
			return c, nil
		}
	}
}

// readObject collects the object whose first byte was read.
func (s *elementReader) readObject() error {
	s.element = append(s.element[:0], '{')
	depth, inString, escaped := 1, false, false
	for depth > 0 {
		c, err := s.from.ReadByte()
		if err == io.EOF {
			return errors.New("the file ends within it; it was cut off")
		}
		if err != nil {
			return err
		}
		if len(s.element) == maxLine {
			return fmt.Errorf("is longer than %d MiB", maxLine>>20)
		}
		s.element = append(s.element, c)
		switch {
		case c == '\n':
			s.line++
			escaped = false
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
