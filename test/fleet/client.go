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

// ConnectionMode says how a client uses connections.
type ConnectionMode int

// The connection modes.
const (
	// FreshConnections opens one per request, so that no request fails because of a connection closed between
	// requests.
	FreshConnections ConnectionMode = iota
	// KeepAlive keeps them, as official clients do.
	KeepAlive
)

// Client sends streamed requests, each exactly once: it never retries, not even where HTTP allows it.
type Client struct{ http *http.Client }

// maxRequest bounds the time of a request; a longer one hangs.
const maxRequest = 3 * time.Minute

// NewClient returns a client.
func NewClient(c ConnectionMode) *Client {
	return &Client{http: &http.Client{Timeout: maxRequest, Transport: &http.Transport{
		DisableKeepAlives: c == FreshConnections, MaxIdleConnsPerHost: 1024,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Outcome is the outcome of a request.
type Outcome struct {
	Answer     Answer
	Err        error // nil if the stream completed
	Status     int   // 0 without a response
	RetryAfter string
	Worker     uint64   // the first which accepted it
	Workers    []uint64 // of all attempts, for completed streams
	Began      time.Time
	First      time.Duration // to the first text; 0 without one
	Last       time.Duration // from the first text to the last
	Took       time.Duration
	Pause      time.Duration // longest between two texts
	Texts      int           // events with text
	Cached     int           // tokens of the prompt that were cached, from usage
}

// CountMoves returns how often the request went to another worker.
func (o *Outcome) CountMoves() int { return max(0, len(o.Workers)-1) }

// Observer is notified of the events of a stream; calls are in order and block it.
type Observer interface {
	// OnAccepted is called when the headers have arrived.
	OnAccepted(worker uint64)
	// OnText is called when the nth event with text has arrived, counted from 1.
	OnText(n int, at time.Time)
}

// Stream sends a request and reads its stream to the end. Observer may be nil.
func (c *Client) Stream(ctx context.Context, url string, r Request, watch Observer) Outcome {
	o := Outcome{Began: time.Now()}
	o.Err = c.sendRequest(ctx, url, r, watch, &o)
	o.Took = time.Since(o.Began)
	return o
}

func (c *Client) sendRequest(ctx context.Context, url string, r Request, watch Observer, o *Outcome) error {
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
	req.GetBody = nil // otherwise the transport may send it twice
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return stripAddress(err)
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
		watch.OnAccepted(o.Worker)
	}
	return o.readStream(resp.Body, watch)
}

// stripAddress removes address and ports from a network error, so that equal ones count as equal.
func stripAddress(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// readStream reads events to the end of the stream.
func (o *Outcome) readStream(body io.Reader, watch Observer) error {
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
		var c streamChunk
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
		if c.Usage != nil {
			o.Cached = c.Usage.Of.Cached
		}
		text, err := o.Answer.addEvent(&c)
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
			watch.OnText(o.Texts, at)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the stream broke off: %w", stripAddress(err))
	}
	unfinished := slices.ContainsFunc(o.Answer.Choices, func(c Choice) bool { return c.Finish == "" })
	if !done || unfinished {
		return errors.New("the stream broke off")
	}
	return nil
}
