package frontend

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"

	"penstock/core/fault"
)

// firstBody is the memory that a body begins with at most; it doubles as the body comes.
const firstBody = 16 << 10

// trusted is how many times what came of a body may be taken for the rest of it, if its
// length was announced: a client that announces much and sends little holds little.
const trusted = 64

// decoded reads the request's body and decodes it. The body's memory counts
// against the budget of all bodies until the call is released: what was decoded
// is as large.
func decoded[T any](c *call, decode func(body []byte) (*T, error)) (*T, error) {
	body, held, err := c.body()
	c.held += held
	if err != nil {
		return nil, err
	}
	return decode(body)
}

// release gives back what the call's body counts: the prompt is made, or nobody
// wants it. It may be called again.
func (c *call) release() {
	c.f.bodies.Give(c.held)
	c.held = 0
}

// body reads the request's body within its bounds. held is what it took from the
// budget, also if it fails.
func (c *call) body() (body []byte, held int64, err error) {
	limit := c.f.cfg.MaxBodyBytes
	if c.r.ContentLength > limit {
		// The rest of the body is not worth reading to save the connection.
		c.answer.w.Header().Set("Connection", "close")
		return nil, 0, tooLarge(limit)
	}
	in := http.MaxBytesReader(connection(c.answer.w), c.r.Body, limit)
	for {
		if len(body) == cap(body) {
			more := nextBody(len(body), c.r.ContentLength)
			if !c.f.bodies.Take(int64(more)) {
				c.f.bodies.Give(held)
				// A client reads no answer before it has sent all: what is left is read,
				// within the bounds of every body, and dropped.
				_, _ = io.Copy(io.Discard, in)
				return nil, 0, c.f.noMemory()
			}
			held += int64(more)
			body = append(make([]byte, 0, cap(body)+more), body...) // exactly what was taken
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, held, nil
		}
		if err != nil {
			return nil, held, c.unread(err)
		}
	}
}

// nextBody returns how much more memory a body takes that filled what it had, and whose
// announced length is announced, below 0 if it is not: exactly what it needs if that is known and
// enough of it has come, and a byte, so that the end is met without more.
func nextBody(came int, announced int64) int {
	more := max(came, firstBody)
	rest := announced + 1 - int64(came)
	if announced < 0 || rest <= 0 || rest > max(firstBody, trusted*int64(came)) {
		return more
	}
	return int(rest)
}

// noMemory is the error of a request that the budget has no room for.
func (f *Frontend) noMemory() error {
	f.metrics.rejections.WithLabelValues("body_memory").Inc()
	return &fault.Error{Code: fault.Overloaded, Message: "too many large requests at once: try again later", RetryAfter: retrySoon}
}

func tooLarge(limit int64) error {
	return fault.New(fault.TooLarge, "the request body is larger than %d bytes", limit)
}

// unread says why a body could not be read.
func (c *call) unread(err error) error {
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge(over.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Deadline, "the request body did not arrive within %v", c.f.cfg.BodyTimeout)
	}
	var broken net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) || c.r.Context().Err() != nil {
		return &fault.Error{Code: fault.Canceled, Message: "the request body ended early", Err: err}
	}
	return &fault.Error{Code: fault.Invalid, Message: "the request body is not sent as HTTP has it: check Transfer-Encoding and its chunks", Err: err}
}
