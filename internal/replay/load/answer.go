package load

import (
	"errors"
	"io"
	"time"

	"penstock/internal/replay"
)

const (
	// maxTokens bounds the events with tokens of one answer.
	maxTokens = 1 << 20
	// maxKept bounds what is kept of a buffer that one answer made large, in elements.
	maxKept = 1 << 16
)

// Faults of an answer that began well.
var (
	errFailed     = errors.New("the stream ended with an error")
	errOverloaded = errors.New("the stream ended with an error: no room")
	errLong       = errors.New("answer is too long")
	errEmpty      = errors.New("answer without a token")
	errStream     = errors.New("answer is not a stream of events")
	errCoded      = errors.New("answer is compressed")
)

// answer is what came of one request.
type answer struct {
	sample replay.Sample
	// at are the moments of the events that had tokens.
	at []time.Duration
	usage
	abandoned bool // cut off by the client's own end
	resent    bool // on a new connection, as the server had closed the old one
	err       error
	keepBody  bool // the body of an answer that is not 200 goes to message
	message   []byte

	now      time.Duration // of the piece that is being read
	done     bool          // [DONE] came
	ended    bool          // an event had a reason to end
	finished time.Duration // its moment
	want     int           // tokens that the workload says
}

// reset makes a ready for another request, keeping its memory.
func (a *answer) reset() {
	*a = answer{at: emptied(a.at), message: emptied(a.message)}
}

// emptied returns the memory of s for another use, unless it is large.
func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	return s[:0]
}

// event takes one event of the stream.
func (a *answer) event(data []byte, isError bool) error {
	if a.done {
		return nil // what comes after the end means nothing
	}
	if string(data) == "[DONE]" {
		a.done = true
		return nil
	}
	c, err := parseChunk(data)
	if err != nil {
		return err
	}
	if c.failed || isError {
		if c.overloaded {
			return errOverloaded
		}
		return errFailed
	}
	if c.text {
		if len(a.at) == maxTokens {
			return errLong
		}
		a.at = append(a.at, a.now)
	}
	if c.finished {
		a.ended, a.finished = true, a.now
	}
	if c.usage.reported || c.usage.reportedCached {
		a.usage = c.usage
	}
	return nil
}

// read reads a stream up to its end: [DONE], or the end of the body after a reason
// to end.
func (a *answer) read(in *response, ev *events, visit func([]byte, bool) error) error {
	ev.reset()
	for !a.done {
		piece, err := in.next()
		if err == io.EOF && a.ended {
			a.now = in.at
			return nil // a server without [DONE]
		}
		if err != nil {
			return unexpected(err)
		}
		a.now = in.at
		if err := ev.read(piece, visit); err != nil {
			return err
		}
	}
	return nil
}

// settle makes the sample of what was read; planned are the prompt tokens that the
// workload counts.
func (a *answer) settle(planned int) error {
	s := &a.sample
	s.Input, s.Output = planned, len(a.at)
	if a.reported {
		s.Input = a.prompt
		s.Output = max(a.output, min(len(a.at), 1))
	}
	if a.reportedCached {
		s.Cached = min(a.cache, s.Input)
	}
	switch {
	case len(a.at) > 0:
		s.First, s.Last = a.at[0], a.at[len(a.at)-1]
	case s.Output > 0: // tokens without a text of their own: they were there when the end was told
		end := s.Done
		if a.ended {
			end = a.finished
		}
		s.First, s.Last = end, end
		a.at = append(a.at, end)
	default:
		return errEmpty
	}
	return nil
}

// gaps tells record of the time between each two tokens: between two events with
// tokens that which lies between the reads that brought them, and none between the
// tokens of one event, whose number the usage tells.
func (a *answer) gaps(record Recorder) {
	together := max(a.sample.Output-len(a.at), 0)
	for i := 1; i < len(a.at); i++ {
		if d := a.at[i] - a.at[i-1]; d > 0 {
			record.Gap(d, 1)
		} else {
			together++
		}
	}
	if together > 0 {
		record.Gap(0, together)
	}
}
