package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"penstock/internal/replay"
)

// rowDecoder returns the rows of a file in order: At is a time on the file's own clock, or unknownTime. It
// skips rows of requests without a response.
type rowDecoder interface {
	// nextRow sets all of r except Index. The memory of r is valid until the next call.
	nextRow(r *replay.Request) error
	// failedRows is how many rows were skipped.
	failedRows() int
}

// unknownTime is the time of a row without one.
const unknownTime time.Duration = -1

// traceSource is a file being read.
type traceSource struct {
	name  string
	file  *textReader
	rows  rowDecoder
	sort  *sorter // nil if the rows must be in order
	clock rowClock
	index int
	err   error // the final error
}

func newTraceSource(w *Workload, file *textReader) *traceSource {
	s := &traceSource{name: w.name, file: file, rows: w.newRowDecoder(file)}
	if w.opts.Sort {
		s.sort = &sorter{rows: s.rows, limit: w.opts.SortBytes}
		s.clock.sortedBytes = w.opts.SortBytes
	}
	return s
}

func (w *Workload) newRowDecoder(file *textReader) rowDecoder {
	switch w.format {
	case Azure:
		return newAzureDecoder(file.Reader, &w.opts)
	case BurstGPT:
		return newBurstDecoder(file.Reader, &w.opts)
	case ShareGPT:
		return &shareGPTDecoder{stream: elementReader{from: file.Reader}}
	case Bailian:
		return newBailianDecoder(file.Reader, &w.opts)
	}
	return newMooncakeDecoder(file.Reader, &w.opts)
}

// Next implements [replay.Source].
func (s *traceSource) Next(r *replay.Request) error {
	if s.err == nil {
		s.err = s.nextRequest(r)
		if s.err != nil && s.err != io.EOF {
			s.err = fmt.Errorf("read trace %s: %w", s.name, s.err)
		}
	}
	return s.err
}

func (s *traceSource) nextRequest(r *replay.Request) error {
	var err error
	if s.sort != nil {
		err = s.sort.nextRow(r)
	} else if err = s.rows.nextRow(r); err == nil {
		err = s.clock.inheritTime(r)
	}
	switch {
	case err == io.EOF && s.index == 0 && s.rows.failedRows() > 0:
		return fmt.Errorf("has no request that had an answer, in %d rows", s.rows.failedRows())
	case err == io.EOF && s.index == 0:
		return errors.New("has no request")
	case err == io.EOF:
		return io.EOF
	case err != nil:
		return errorAtLine(r.Line, err)
	}
	if err := s.clock.setTime(r); err != nil {
		return errorAtLine(r.Line, err)
	}
	r.Index = s.index
	s.index++
	return nil
}

// Failed returns how many rows were skipped so far because their request had no response.
func (s *traceSource) Failed() int { return s.rows.failedRows() }

// Close implements [replay.Source].
func (s *traceSource) Close() error {
	if s.err == nil {
		s.err = fmt.Errorf("read trace %s: the source is closed", s.name)
	}
	return s.file.Close()
}

// rowClock converts the times of rows to the clock of the workload, which starts with its first request, and
// checks that they do not go back.
type rowClock struct {
	started     bool
	timed       bool          // the first row has a time
	begin       time.Duration // its time
	last        time.Duration // of the previous row
	line        int           // of that row
	sortedBytes int           // bytes of the sort buffer; 0 if rows are not sorted
}

// inheritTime gives a row without a time in a file with times the time of the previous row. That is only a
// lower bound, as its session decides when it is sent.
func (c *rowClock) inheritTime(r *replay.Request) error {
	if !c.started {
		return nil
	}
	switch {
	case c.timed && r.At == unknownTime && r.Session == "":
		return errors.New("has no time while rows before it have one: give it a 'timestamp', or the 'session_id' of the requests that it follows")
	case c.timed && r.At == unknownTime:
		r.At = c.last
	case !c.timed && r.At != unknownTime:
		return errors.New("has a time while rows before it have none: give all a 'timestamp' or none")
	}
	return nil
}

// setTime sets the time of r, the next request.
func (c *rowClock) setTime(r *replay.Request) error {
	if !c.started {
		c.started, c.timed, c.begin, c.last = true, r.At != unknownTime, r.At, r.At
	}
	if !c.timed {
		return nil
	}
	switch {
	case r.At < c.last && c.sortedBytes > 0:
		return fmt.Errorf("goes back in time by %v from line %d, which is farther than sorting within %d bytes reaches; sort the file by time, or allow more", c.last-r.At, c.line, c.sortedBytes)
	case r.At < c.last:
		return fmt.Errorf("goes back in time by %v from line %d; sort the file by time, or have it sorted as it is read", c.last-r.At, c.line)
	}
	c.last, c.line = r.At, r.Line
	r.At -= c.begin
	return nil
}

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
