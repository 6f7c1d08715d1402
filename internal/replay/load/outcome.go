package load

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"penstock/internal/replay"
)

const (
	// maxTokens bounds the events with tokens in one response.
	maxTokens = 1 << 20
	// maxKeptElements bounds the capacity of a reused buffer, in elements.
	maxKeptElements = 1 << 16
)

// Errors of a response which started well.
var (
	errFailed     = errors.New("the stream ended with an error")
	errOverloaded = errors.New("the stream ended with an error: no room")
	errTooLong    = errors.New("answer is too long")
	errEmpty      = errors.New("answer without a token")
	errStream     = errors.New("answer is not a stream of events")
	errCompressed = errors.New("answer is compressed")
)

// outcome is the result of one request.
type outcome struct {
	sample replay.Sample
	// tokenTimes are the times of the events with tokens.
	tokenTimes []time.Duration
	tokenUsage
	abandoned bool // cut off at the end of the run
	resent    bool // on a new connection, since the server had closed the old one
	err       error
	keepBody  bool // an error body is copied to message
	message   []byte

	readAt     time.Duration // when the current piece was read
	done       bool          // [DONE] was received
	finished   bool          // an event had a finish reason
	finishedAt time.Duration // when that was
	wantTokens int           // tokens in the workload
}

// reset prepares a for another request, keeping its memory.
func (a *outcome) reset() {
	*a = outcome{tokenTimes: reuseSlice(a.tokenTimes), message: reuseSlice(a.message)}
}

// reuseSlice empties s for reuse, or drops it if it is large.
func reuseSlice[T any](s []T) []T {
	if cap(s) > maxKeptElements {
		return nil
	}
	return s[:0]
}

// handleEvent handles one event of the stream.
func (a *outcome) handleEvent(data []byte, isError bool) error {
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
		if len(a.tokenTimes) == maxTokens {
			return errTooLong
		}
		a.tokenTimes = append(a.tokenTimes, a.readAt)
	}
	if c.finished {
		a.finished, a.finishedAt = true, a.readAt
	}
	if c.tokenUsage.reported || c.tokenUsage.reportedCached {
		a.tokenUsage = c.tokenUsage
	}
	return nil
}

// readStream reads a stream up to its end: [DONE], or the end of the body after a finish reason.
func (a *outcome) readStream(in *responseReader, ev *sseDecoder, visit func([]byte, bool) error) error {
	ev.reset()
	for !a.done {
		piece, err := in.nextPiece()
		if err == io.EOF && a.finished {
			a.readAt = in.readAt
			return nil // a server which sends no [DONE]
		}
		if err != nil {
			return unexpectedEOF(err)
		}
		a.readAt = in.readAt
		if err := ev.decodePiece(piece, visit); err != nil {
			return err
		}
	}
	return nil
}

// finishSample fills the sample from the response; planned is the workload's count of prompt tokens.
func (a *outcome) finishSample(planned int) error {
	s := &a.sample
	s.Input, s.Output = planned, len(a.tokenTimes)
	if a.reported {
		s.Input = a.prompt
		s.Output = max(a.output, min(len(a.tokenTimes), 1))
	}
	if a.reportedCached {
		s.Cached = min(a.cache, s.Input)
	}
	switch {
	case len(a.tokenTimes) > 0:
		s.First, s.Last = a.tokenTimes[0], a.tokenTimes[len(a.tokenTimes)-1]
	case s.Output > 0: // no event had text: the tokens were there when the finish reason came
		end := s.Done
		if a.finished {
			end = a.finishedAt
		}
		s.First, s.Last = end, end
		a.tokenTimes = append(a.tokenTimes, end)
	default:
		return errEmpty
	}
	return nil
}

// recordGaps records the time between every two tokens: for tokens of two events the time between the reads
// which brought them, and 0 for tokens of one event, whose number comes from the usage.
func (a *outcome) recordGaps(record Recorder) {
	together := max(a.sample.Output-len(a.tokenTimes), 0)
	for i := 1; i < len(a.tokenTimes); i++ {
		if d := a.tokenTimes[i] - a.tokenTimes[i-1]; d > 0 {
			record.RecordGap(d, 1)
		} else {
			together++
		}
	}
	if together > 0 {
		record.RecordGap(0, together)
	}
}

// errorKind returns a word for why there is no complete response.
func errorKind(err error) string {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, errOverloaded):
		return "overloaded"
	case errors.Is(err, errFailed):
		return "error_event"
	case errors.Is(err, errJSON), errors.Is(err, errEvent):
		return "malformed_stream"
	case errors.Is(err, errMalformed):
		return "malformed_http"
	case errors.Is(err, errStream):
		return "not_a_stream"
	case errors.Is(err, errCompressed):
		return "compressed"
	case errors.Is(err, errTooLong):
		return "too_long"
	case errors.Is(err, errEmpty):
		return "empty"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "timeout"
	case errors.As(err, &dns):
		return "no_such_host"
	case errors.As(err, &certificate), errors.As(err, &record), errors.As(err, &alert):
		return "tls"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "truncated"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no_socket"
	}
	return "connection"
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// statusKind names a response which is not 200.
func statusKind(status int) string {
	if status == 503 || status == 529 {
		return "overloaded"
	}
	return "status_" + strconv.Itoa(status)
}
