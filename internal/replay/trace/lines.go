package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// lines reads a text line by line.
type lines struct {
	from   *bufio.Reader
	number int    // of the line read last, from 1
	long   []byte // a line that is longer than the reader's buffer
}

// next returns the next line that is not blank, without its end; it is good until
// the next call. A line longer than maxLine is refused when so much of it has been
// read.
func (l *lines) next() ([]byte, error) {
	for {
		l.number++
		line, err := l.from.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			line, err = l.rest(line)
		}
		if err != nil && err != io.EOF {
			return nil, fail(l.number, err)
		}
		if line := bytes.TrimRight(line, " \t\r\n"); len(line) > 0 {
			return line, nil
		}
		if err == io.EOF {
			return nil, io.EOF
		}
	}
}

// rest gathers a line of which begin is the beginning.
func (l *lines) rest(begin []byte) ([]byte, error) {
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
