package load

import (
	"errors"
	"io"
	"time"

	"penstock/internal/replay"
)

const (
	// maxTokens bounds the events with tokens in one response.
	maxTokens = 1 << 20
	// maxKeptElements bounds the capacity of a reused buffer, in elements.
	maxKept = 1 << 16
)

// Errors of a response which started well.
var (
	errFailed     = errors.New("the stream ended with an error")
	errOverloaded = errors.New("the stream ended with an error: no room")
	errLong       = errors.New("answer is too long")
	errEmpty      = errors.New("answer without a token")
	errStream     = errors.New("answer is not a stream of events")
	errCoded      = errors.New("answer is compressed")
)

// outcome is the result of one request.
type answer struct {
	sample replay.Sample
	// tokenTimes are the times of the events with tokens.
	at []time.Duration
	usage
	abandoned bool // cut off at the end of the run
	resent    bool // on a new connection, since the server had closed the old one
	err       error
	keepBody  bool // an error body is copied to message
	message   []byte

	now      time.Duration // when the current piece was read
	done     bool          // [DONE] was received
	ended    bool          // an event had a finish reason
	finished time.Duration // when that was
	want     int           // tokens in the workload
}

// reset prepares a for another request, keeping its memory.
func (a *answer) reset() {
	*a = answer{at: emptied(a.at), message: emptied(a.message)}
}

// reuseSlice empties s for reuse, or drops it if it is large.
func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	return s[:0]
}

// handleEvent handles one event of the stream.
func (a *answer) event(data []byte, isError bool) error {
	if a.done {
		return nil // events after the end mean nothing
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

// readStream reads a stream up to its end: [DONE], or the end of the body after a finish reason.
func (a *answer) read(in *response, ev *events, visit func([]byte, bool) error) error {
	ev.reset()
	for !a.done {
		piece, err := in.next()
		if err == io.EOF && a.ended {
			a.now = in.at
			return nil // a server which sends no [DONE]
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

// finishSample fills the sample from the response; planned is the workload's count of prompt tokens.
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
	case s.Output > 0: // no event had text: the tokens were there when the finish reason came
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

// recordGaps records the time between every two tokens: for tokens of two events the time between the reads
// which brought them, and 0 for tokens of one event, whose number comes from the usage.
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
