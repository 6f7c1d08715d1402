package trace

import (
	"errors"
	"fmt"
	"io"
	"time"

	"penstock/internal/replay"
)

// rowDecoder returns the rows of a file in order: At is a time on the file's own clock, or unknownTime. It
// skips rows of requests without a response.
type decoder interface {
	// nextRow sets all of r except Index. The memory of r is valid until the next call.
	next(r *replay.Request) error
	// failedRows is how many rows were skipped.
	failed() int
}

// unknownTime is the time of a row without one.
const unknown time.Duration = -1

// traceSource is a file being read.
type source struct {
	name  string
	file  *content
	rows  decoder
	sort  *sorter // nil if the rows must be in order
	clock clock
	index int
	err   error // the final error
}

func newSource(w *Workload, file *content) *source {
	s := &source{name: w.name, file: file, rows: w.decoder(file)}
	if w.opts.Sort {
		s.sort = &sorter{rows: s.rows, limit: w.opts.SortBytes}
		s.clock.reach = w.opts.SortBytes
	}
	return s
}

func (w *Workload) decoder(file *content) decoder {
	switch w.format {
	case Azure:
		return newAzure(file.Reader, &w.opts)
	case BurstGPT:
		return newBurst(file.Reader, &w.opts)
	case ShareGPT:
		return newConversations(file.Reader)
	case Bailian:
		return newBailian(file.Reader, &w.opts)
	}
	return newMooncake(file.Reader, &w.opts)
}

// Next implements [replay.Source].
func (s *source) Next(r *replay.Request) error {
	if s.err == nil {
		s.err = s.next(r)
		if s.err != nil && s.err != io.EOF {
			s.err = fmt.Errorf("read trace %s: %w", s.name, s.err)
		}
	}
	return s.err
}

func (s *source) next(r *replay.Request) error {
	var err error
	if s.sort != nil {
		err = s.sort.next(r)
	} else if err = s.rows.next(r); err == nil {
		err = s.clock.follow(r)
	}
	switch {
	case err == io.EOF && s.index == 0 && s.rows.failed() > 0:
		return fmt.Errorf("has no request that had an answer, in %d rows", s.rows.failed())
	case err == io.EOF && s.index == 0:
		return errors.New("has no request")
	case err == io.EOF:
		return io.EOF
	case err != nil:
		return fail(r.Line, err)
	}
	if err := s.clock.set(r); err != nil {
		return fail(r.Line, err)
	}
	r.Index = s.index
	s.index++
	return nil
}

// Failed returns how many rows were skipped so far because their request had no response.
func (s *source) Failed() int { return s.rows.failed() }

// Close implements [replay.Source].
func (s *source) Close() error {
	if s.err == nil {
		s.err = fmt.Errorf("read trace %s: the source is closed", s.name)
	}
	return s.file.Close()
}

// rowClock converts the times of rows to the clock of the workload, which starts with its first request, and
// checks that they do not go back.
type clock struct {
	begun bool
	timed bool          // the first row has a time
	begin time.Duration // its time
	last  time.Duration // of the previous row
	line  int           // of that row
	reach int           // bytes of the sort buffer; 0 if rows are not sorted
}

// inheritTime gives a row without a time in a file with times the time of the previous row. That is only a
// lower bound, as its session decides when it is sent.
func (c *clock) follow(r *replay.Request) error {
	if !c.begun {
		return nil
	}
	switch {
	case c.timed && r.At == unknown && r.Session == "":
		return errors.New("has no time while rows before it have one: give it a 'timestamp', or the 'session_id' of the requests that it follows")
	case c.timed && r.At == unknown:
		r.At = c.last
	case !c.timed && r.At != unknown:
		return errors.New("has a time while rows before it have none: give all a 'timestamp' or none")
	}
	return nil
}

// setTime sets the time of r, the next request.
func (c *clock) set(r *replay.Request) error {
	if !c.begun {
		c.begun, c.timed, c.begin, c.last = true, r.At != unknown, r.At, r.At
	}
	if !c.timed {
		return nil
	}
	switch {
	case r.At < c.last && c.reach > 0:
		return fmt.Errorf("goes back in time by %v from line %d, which is farther than sorting within %d bytes reaches; sort the file by time, or allow more", c.last-r.At, c.line, c.reach)
	case r.At < c.last:
		return fmt.Errorf("goes back in time by %v from line %d; sort the file by time, or have it sorted as it is read", c.last-r.At, c.line)
	}
	c.last, c.line = r.At, r.Line
	r.At -= c.begin
	return nil
}
