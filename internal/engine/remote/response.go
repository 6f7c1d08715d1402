package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"penstock/core/fault"
)

// Response is an engine's HTTP response. One goroutine reads and closes it.
type Response struct {
	Status     int
	Type       string        // Content-Type
	RetryAfter time.Duration // 0 if the engine sent none
	client     *Client
	host       string
	conn       *engineConn // nil after Close
	pool       *connPool
	body       io.Reader
	stopAbort  func() bool  // stops the context from aborting the connection
	sent       <-chan error // nil if the whole request was sent before the response came
	maxSilence time.Duration
	deadline   time.Time // the read deadline set on the connection
	complete   bool      // the body was read to its end
	closing    bool      // the server closes the connection after this response
}

// OK reports whether the response is a success.
func (a *Response) OK() bool { return a.Status >= 200 && a.Status < 300 }

// Read reads from the body. It fails with errSilent if nothing comes for longer than engines compute.
func (a *Response) Read(p []byte) (int, error) {
	if a.conn == nil {
		return 0, net.ErrClosed
	}
	a.extendDeadline()
	n, err := a.readBody(p)
	if n > 0 {
		a.client.noteHeard()
	}
	return n, err
}

// extendDeadline moves the read deadline, unless it would move by less than 1/16 of the wait.
func (a *Response) extendDeadline() {
	until := time.Now().Add(a.maxSilence)
	if late := until.Sub(a.deadline); late > a.maxSilence/16 || late < 0 {
		a.deadline = until
		_ = a.conn.net.SetReadDeadline(until) // fails on a closed connection, as reading does
	}
}

func (a *Response) readBody(p []byte) (int, error) {
	n, err := a.body.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		a.complete = true
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSilent
	}
	return n, err
}

// Close ends the call. If the body was not read to its end, it closes the connection, which tells the engine
// to stop.
func (a *Response) Close() {
	k := a.conn
	if k == nil {
		return
	}
	a.conn = nil
	free := a.stopAbort() && a.complete && !a.closing
	if !free {
		k.abort()
	}
	if whole := k.awaitSent(a.sent); free && whole {
		a.pool.releaseConn(k)
		return
	}
	a.pool.dropConn(k)
}

// DrainAndClose is Close for a response whose relevant part was read: it reads up to 4 KiB that may follow,
// so that the connection can serve another call.
func (a *Response) DrainAndClose() {
	if a.conn != nil && !a.complete {
		_ = a.conn.net.SetReadDeadline(time.Now().Add(a.client.drainTimeout))
		var rest [512]byte
		for n := 0; n < 4<<10; {
			m, err := a.readBody(rest[:])
			if n += m; err != nil {
				break
			}
		}
	}
	a.Close()
}

// DoJSON makes a call with a small response and decodes it into v, which may be nil. An unsuccessful status
// is a [Response.RefusalError].
func (c *Client) DoJSON(ctx context.Context, call *Call, v any) error {
	body, err := c.ReadBody(ctx, call, maxWholeResponse)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return &fault.Error{Code: fault.Unavailable, Message: fmt.Sprintf("the engine at %s answers %s with what is not the JSON of its API", c.root.Host, call.Path), Err: err}
	}
	return nil
}

// maxWholeResponse bounds the responses that are read whole, in bytes.
const maxWholeResponse = 16 << 20

// ReadBody makes a call and returns the body of its response, of at most limit bytes.
func (c *Client) ReadBody(ctx context.Context, call *Call, limit int64) ([]byte, error) {
	a, err := c.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if !a.OK() {
		return nil, a.RefusalError()
	}
	body, err := io.ReadAll(io.LimitReader(a, limit+1))
	if err != nil {
		return nil, a.ReadError(ctx, err)
	}
	if int64(len(body)) > limit {
		return nil, fault.New(fault.Unavailable, "the engine at %s answers %s with more than %d bytes", c.root.Host, call.Path, limit)
	}
	return body, nil
}

// hasPath reports whether the engine has a path that takes POST: there it refuses an empty object for its
// missing members, not for the path.
func (c *Client) hasPath(ctx context.Context, path string) (bool, error) {
	a, err := c.Do(ctx, &Call{Path: path, Body: []byte("{}")})
	if err != nil {
		return false, err
	}
	defer a.Close()
	switch a.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusForbidden: // vLLM answers 403 for a disabled endpoint
		return false, nil
	}
	return true, nil
}

// isEventStream reports whether the response is a stream of server-sent events.
func (a *Response) isEventStream() bool { return strings.HasPrefix(a.Type, "text/event-stream") }

// FetchMetrics reads an engine's metrics and calls take with their text, which is valid only during the call.
func (c *Client) FetchMetrics(ctx context.Context, path string, take func(text []byte)) error {
	a, err := c.Do(ctx, &Call{Method: http.MethodGet, Path: path})
	if err != nil {
		return err
	}
	defer a.Close()
	if !a.OK() {
		return a.RefusalError()
	}
	text := NewBody()
	defer text.Release()
	if err := readInto(text, a, maxWholeResponse); err != nil {
		return a.ReadError(ctx, err)
	}
	take(text.B)
	return nil
}

// readInto reads all of src, at most limit bytes.
func readInto(b *BodyBuffer, src io.Reader, limit int) error {
	for {
		if len(b.B) == cap(b.B) {
			b.B = append(b.B, 0)[:len(b.B)]
		}
		n, err := src.Read(b.B[len(b.B):cap(b.B)])
		b.B = b.B[:len(b.B)+n]
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case len(b.B) > limit:
			return fmt.Errorf("more than %d bytes", limit)
		}
	}
}

// ReadAll reads the rest of a small response.
func (a *Response) ReadAll(ctx context.Context) ([]byte, error) {
	body, _, err := a.ReadUpTo(ctx, maxWholeResponse)
	return body, err
}

// ReadUpTo reads the rest of a response, at most limit bytes; more says that the response is longer.
func (a *Response) ReadUpTo(ctx context.Context, limit int64) (body []byte, more bool, err error) {
	body, err = io.ReadAll(io.LimitReader(a, limit+1))
	switch {
	case err != nil:
		return nil, false, a.ReadError(ctx, err)
	case int64(len(body)) > limit:
		return body[:limit], true, nil
	}
	return body, false, nil
}
