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

// Answer is what an engine answers. One goroutine reads it, and closes it.
type Answer struct {
	Status     int
	Type       string        // Content-Type
	RetryAfter time.Duration // 0 if the engine says nothing of it
	client     *Client
	host       string
	conn       *conn // nil after Close
	pool       *pool
	body       io.Reader
	stop       func() bool  // lets the end of the call's context pass
	sent       <-chan error // nil if all of the request was sent when the answer came
	silence    time.Duration
	until      time.Time // when the wait for more ends, as the connection knows
	whole      bool      // the body was read to its end
	last       bool      // the connection takes no further call
}

// OK reports whether the answer is a success.
func (a *Answer) OK() bool { return a.Status >= 200 && a.Status < 300 }

// Read reads of the body. An answer that stands still for longer than engines compute is broken
// off.
func (a *Answer) Read(p []byte) (int, error) {
	if a.conn == nil {
		return 0, net.ErrClosed
	}
	a.listen()
	n, err := a.read(p)
	if n > 0 {
		a.client.heard()
	}
	return n, err
}

// listen moves the end of the wait for more, if it is worth it.
func (a *Answer) listen() {
	until := time.Now().Add(a.silence)
	if late := until.Sub(a.until); late > a.silence/16 || late < 0 {
		a.until = until
		_ = a.conn.net.SetReadDeadline(until) // fails on a closed connection, as reading does
	}
}

func (a *Answer) read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		a.whole = true
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSilent
	}
	return n, err
}

// Close ends the call. If the body was not read to its end, the connection is closed, by which
// the engine knows that nobody waits for more.
func (a *Answer) Close() {
	k := a.conn
	if k == nil {
		return
	}
	a.conn = nil
	free := a.stop() && a.whole && !a.last
	if !free {
		k.abort()
	}
	if whole := k.settle(a.sent); free && whole {
		a.pool.put(k)
		return
	}
	a.pool.drop(k)
}

// Finish is Close for an answer of which all that matters was read: the little that may follow
// is read too, so that the connection can serve another call.
func (a *Answer) Finish() {
	if a.conn != nil && !a.whole {
		_ = a.conn.net.SetReadDeadline(time.Now().Add(drainTimeout))
		var rest [512]byte
		for n := 0; n < 4<<10; {
			m, err := a.read(rest[:])
			if n += m; err != nil {
				break
			}
		}
	}
	a.Close()
}

// JSON makes a call whose answer is small and decodes it into v, which may be nil. What
// is no success is [Answer.Refused].
func (c *Client) JSON(ctx context.Context, call *Call, v any) error {
	body, err := c.Read(ctx, call, maxProbe)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return &fault.Error{Code: fault.Unavailable, Message: fmt.Sprintf("the engine at %s answers %s with what is not the JSON of its API", c.root.Host, call.Path), Err: err}
	}
	return nil
}

// maxProbe bounds the answers that are read whole.
const maxProbe = 16 << 20

// Read makes a call and returns the body of its answer, of at most limit bytes.
func (c *Client) Read(ctx context.Context, call *Call, limit int64) ([]byte, error) {
	a, err := c.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if !a.OK() {
		return nil, a.Refused()
	}
	body, err := io.ReadAll(io.LimitReader(a, limit+1))
	if err != nil {
		return nil, a.Broken(ctx, err)
	}
	if int64(len(body)) > limit {
		return nil, fault.New(fault.Unavailable, "the engine at %s answers %s with more than %d bytes", c.root.Host, call.Path, limit)
	}
	return body, nil
}

// exists reports whether the engine has a path that takes POST: it refuses an empty object
// there for what it lacks, not for the path.
func (c *Client) exists(ctx context.Context, path string) (bool, error) {
	a, err := c.Do(ctx, &Call{Path: path, Body: []byte("{}")})
	if err != nil {
		return false, err
	}
	defer a.Close()
	switch a.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusForbidden: // 403 is vLLM's for what is switched off
		return false, nil
	}
	return true, nil
}

// eventStream reports whether the answer is a stream of server-sent events.
func (a *Answer) eventStream() bool { return strings.HasPrefix(a.Type, "text/event-stream") }

// Scrape reads an engine's metrics and calls take with their text, which is valid during the
// call only.
func (c *Client) Scrape(ctx context.Context, path string, take func(text []byte)) error {
	a, err := c.Do(ctx, &Call{Method: http.MethodGet, Path: path})
	if err != nil {
		return err
	}
	defer a.Close()
	if !a.OK() {
		return a.Refused()
	}
	text := NewBody()
	defer text.Release()
	if err := readInto(text, a, maxProbe); err != nil {
		return a.Broken(ctx, err)
	}
	take(text.B)
	return nil
}

// readInto reads all of src, of at most limit bytes.
func readInto(b *Body, src io.Reader, limit int) error {
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

// All reads the rest of an answer that is small.
func (a *Answer) All(ctx context.Context) ([]byte, error) {
	body, _, err := a.UpTo(ctx, maxProbe)
	return body, err
}

// UpTo reads the rest of an answer, of at most limit bytes; more says that there are others.
func (a *Answer) UpTo(ctx context.Context, limit int64) (body []byte, more bool, err error) {
	body, err = io.ReadAll(io.LimitReader(a, limit+1))
	switch {
	case err != nil:
		return nil, false, a.Broken(ctx, err)
	case int64(len(body)) > limit:
		return body[:limit], true, nil
	}
	return body, false, nil
}
