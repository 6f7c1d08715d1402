package frontend

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"

	"penstock/core/fault"
)

// firstBody is the initial memory of a body at most; it doubles as the body arrives.
const firstBody = 16 << 10

// trustFactor is how many times the received bytes may be allocated for the rest of a body with a
// Content-Length: a client that announces much and sends little uses little memory.
const trustFactor = 64

// decodeBody reads the request's body and decodes it. The body's memory counts against the budget of
// all bodies until the call is released, because the decoded request is as large.
func decodeBody[T any](c *apiCall, decode func(body []byte) (T, error)) (none T, err error) {
	body, held, err := c.readBody()
	c.heldBytes += held
	if err != nil {
		return none, err
	}
	return decode(body)
}

// releaseBody returns the call's share of the body budget: the prompt is made, or is no longer needed.
// It may be called again.
func (c *apiCall) releaseBody() {
	c.f.bodies.Release(c.heldBytes)
	c.heldBytes = 0
}

// readBody reads the request's body within its bounds. held is the memory taken from the budget, also
// on an error.
func (c *apiCall) readBody() (body []byte, held int64, err error) {
	limit := c.f.cfg.MaxBodyBytes
	if c.r.ContentLength > limit {
		// Reading the rest of the body only to keep the connection is not worth it.
		c.answer.w.Header().Set("Connection", "close")
		return nil, 0, newTooLargeError(limit)
	}
	in := http.MaxBytesReader(serverWriter(c.answer.w), c.r.Body, limit)
	for {
		if len(body) == cap(body) {
			more := nextBody(len(body), c.r.ContentLength)
			if !c.f.bodies.TryReserve(int64(more)) {
				c.f.bodies.Release(held)
				// A client reads no answer before it has sent all: the rest is read, within the bounds
				// of every body, and dropped.
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
			return nil, held, c.readError(err)
		}
	}
}

// nextBody returns how much more memory to allocate for a body that has filled came bytes;
// announced is its Content-Length, negative if unknown. It is exactly the rest if that is known and
// enough has arrived, plus one byte, so that EOF is found without another allocation.
func nextBody(came int, announced int64) int {
	more := max(came, firstBody)
	rest := announced + 1 - int64(came)
	if announced < 0 || rest <= 0 || rest > max(firstBody, trustFactor*int64(came)) {
		return more
	}
	return int(rest)
}

// noMemory is the error of a request that does not fit into the body budget.
func (f *Frontend) noMemory() error {
	f.metrics.rejections.WithLabelValues("body_memory").Inc()
	return &fault.Error{Code: fault.Overloaded, Message: "too many large requests at once: try again later", RetryAfter: retrySoon}
}

func newTooLargeError(limit int64) error {
	return fault.New(fault.TooLarge, "the request body is larger than %d bytes", limit)
}

// readError says why a body could not be read.
func (c *apiCall) readError(err error) error {
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return newTooLargeError(over.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Deadline, "the request body did not arrive within %v", c.f.cfg.BodyTimeout)
	}
	var broken net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) || c.r.Context().Err() != nil {
		return &fault.Error{Code: fault.Canceled, Message: "the request body ended early", Err: err}
	}
	return &fault.Error{Code: fault.Invalid, Message: "the request body is not sent as HTTP has it: check Transfer-Encoding and its chunks", Err: err}
}
