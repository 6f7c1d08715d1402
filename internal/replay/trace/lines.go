package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// lineReader reads a text line by line.
type lineReader struct {
	from   *bufio.Reader
	number int    // of the last line, from 1
	long   []byte // a line longer than the reader's buffer
}

// nextLine returns the next line which is not blank, without its end; it is valid until the next call. It
// refuses a line once more than maxLine bytes of it have been read.
func (l *lineReader) nextLine() ([]byte, error) {
	for {
		l.number++
		line, err := l.from.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			line, err = l.readLongLine(line)
		}
		if err != nil && err != io.EOF {
			return nil, errorAtLine(l.number, err)
		}
		if line := bytes.TrimRight(line, " \t\r\n"); len(line) > 0 {
			return line, nil
		}
		if err == io.EOF {
			return nil, io.EOF
		}
	}
}

// readLongLine reads the rest of a line after begin.
func (l *lineReader) readLongLine(begin []byte) ([]byte, error) {
	l.long = append(l.long[:0], begin...)
	for {
		piece, err := l.from.ReadSlice('\n')
		if len(l.long)+len(piece) > maxLine {
			return nil, fmt.Errorf("is longer than %d MiB", maxLine>>20)
		}
		l.long = append(l.long, piece...)
		if err != bufio.ErrBufferFull {
			return l.long, err
		}
	}
}
