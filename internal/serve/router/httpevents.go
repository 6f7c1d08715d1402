package router

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// keepaliveInterval is how often an idle stream sends a comment.
	beat = 15 * time.Second
	// writeTimeout is how long a client may block one write before it counts as disconnected.
	writeTimeout = 30 * time.Second
)

// EndWatches ends the streams of cache events and refuses new ones for good: a server that drains
// cannot wait for their clients to disconnect. Run also calls it at its end.
func (r *Router) EndWatches() { r.hub.close() }

// serveEvents streams cache events as they arrive, until the client disconnects or EndWatches. An event
// "dropped" reports what a slow client missed.
func (r *Router) serveEvents(w http.ResponseWriter, req *http.Request) error {
	t, err := r.hub.watch()
	if err != nil {
		return err
	}
	defer r.hub.unwatch(t)
	s := newStream(w)
	if s.write(": cache events\n\n") != nil {
		return nil
	}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		var err error
		select {
		case ev := <-t.events:
			err = s.write("data: %s\n\n", ev)
		case <-tick.C:
			err = s.write(":\n\n")
		case <-t.ended:
			return nil
		case <-req.Context().Done():
			return nil
		}
		if n := t.dropped.Swap(0); n > 0 && err == nil {
			err = s.write("event: dropped\ndata: {\"dropped\":%d}\n\n", n)
		}
		if err != nil {
			return nil // the client has disconnected
		}
	}
}

// sseStream is a response of server-sent events.
type stream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// newSSEStream sends the headers of an event stream.
func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	return &stream{w: w, rc: http.NewResponseController(w)}
}

// writeText sends text and flushes it.
func (s *stream) write(format string, args ...any) error {
	bound(s.rc)
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		return err
	}
	return s.rc.Flush()
}

// extendWriteDeadline gives the client writeTimeout from now to take the next write. A writer without
// deadlines is not a connection and does not block.
func bound(rc *http.ResponseController) { _ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) }
