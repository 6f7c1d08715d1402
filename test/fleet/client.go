package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Connections says how a client uses connections.
type Connections int

// The ways to use connections.
const (
	// Fresh opens one per request, so that no request fails because of a
	// connection that somebody closed between requests.
	Fresh Connections = iota
	// Kept keeps them, as official clients do.
	Kept
)

// Client sends streamed requests, each exactly once: it never repeats one, not
// even where HTTP allows it.
type Client struct{ http *http.Client }

// maxRequest bounds a request: one that takes longer hangs.
const maxRequest = 3 * time.Minute

// NewClient returns a client.
func NewClient(c Connections) *Client {
	return &Client{http: &http.Client{Timeout: maxRequest, Transport: &http.Transport{
		DisableKeepAlives: c == Fresh, MaxIdleConnsPerHost: 1024,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}}}
}

// Close closes connections that are kept.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Outcome is what became of a request.
type Outcome struct {
	Answer     Answer
	Err        error // nil if the stream came to its end
	Status     int   // 0 if there was no answer
	RetryAfter string
	Worker     uint64   // that accepted it first
	Workers    []uint64 // of all attempts, of streams that came to their end
	Began      time.Time
	First      time.Duration // to the first text; 0 if there was none
	Last       time.Duration // from the first text to the last
	Took       time.Duration
	Pause      time.Duration // longest between two texts
	Texts      int           // events with text
}

// Moved returns how often the request went to another worker.
func (o *Outcome) Moved() int { return max(0, len(o.Workers)-1) }

// Observer hears of a stream as it comes; calls are in order and hold it up.
type Observer interface {
	// Accepted is called when the headers are there.
	Accepted(worker uint64)
	// Text is called when the nth event with text is there, counted from 1.
	Text(n int, at time.Time)
}

// Stream sends a request and reads its stream to the end. Observer may be nil.
func (c *Client) Stream(ctx context.Context, url string, r Request, watch Observer) Outcome {
	o := Outcome{Began: time.Now()}
	o.Err = c.stream(ctx, url, r, watch, &o)
	o.Took = time.Since(o.Began)
	return o
}

func (c *Client) stream(ctx context.Context, url string, r Request, watch Observer, o *Outcome) error {
	body := maps.Clone(r.Body)
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.Path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.GetBody = nil // else the transport may send it twice
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return plain(err)
	}
	defer resp.Body.Close()
	o.Status, o.RetryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	if o.Worker, err = strconv.ParseUint(resp.Header.Get("x-penstock-worker"), 10, 64); err != nil {
		return fmt.Errorf("x-penstock-worker: %w", err)
	}
	if watch != nil {
		watch.Accepted(o.Worker)
	}
	return o.read(resp.Body, watch)
}

// plain takes address and ports out of a network error, so that equal ones count
// as equal.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// read reads events to the end of the stream.
func (o *Outcome) read(body io.Reader, watch Observer) error {
	last, done := o.Began, false
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			done = true
			continue
		case done:
			return errors.New("the stream goes on after [DONE]")
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if c.Error != nil {
			return fmt.Errorf("error in the stream: %s", c.Error.Message)
		}
		if c.Ext != nil {
			for _, w := range c.Ext.Workers {
				o.Workers = append(o.Workers, w.ID)
			}
		}
		text, err := o.Answer.fold(&c)
		if err != nil {
			return err
		}
		if !text {
			continue
		}
		at := time.Now()
		if o.Texts++; o.Texts == 1 {
			o.First = at.Sub(o.Began)
		} else {
			o.Pause = max(o.Pause, at.Sub(last))
			o.Last = at.Sub(o.Began) - o.First
		}
		last = at
		if watch != nil {
			watch.Text(o.Texts, at)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the stream broke off: %w", plain(err))
	}
	unfinished := slices.ContainsFunc(o.Answer.Choices, func(c Choice) bool { return c.Finish == "" })
	if !done || unfinished {
		return errors.New("the stream broke off")
	}
	return nil
}
