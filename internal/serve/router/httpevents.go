package router

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// keepaliveInterval is how often an idle stream sends a comment.
	keepaliveInterval = 15 * time.Second
	// writeTimeout is how long a client may block one write before it counts as disconnected.
	writeTimeout = 30 * time.Second
)

// EndWatches ends the streams of cache events and refuses new ones for good: a server that drains
// cannot wait for their clients to disconnect. Run also calls it at its end.
func (r *Router) EndWatches() { r.broadcaster.close() }

// serveEvents streams cache events as they arrive, until the client disconnects or EndWatches. An event
// "dropped" reports what a slow client missed.
func (r *Router) serveEvents(w http.ResponseWriter, req *http.Request) error {
	t, err := r.broadcaster.watch()
	if err != nil {
		return err
	}
	defer r.broadcaster.unwatch(t)
	s := newSSEStream(w)
	if s.writeText(": cache events\n\n") != nil {
		return nil
	}
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	for {
		var err error
		select {
		case ev := <-t.events:
			err = s.writeText("data: %s\n\n", ev)
		case <-tick.C:
			err = s.writeText(":\n\n")
		case <-t.ended:
			return nil
		case <-req.Context().Done():
			return nil
		}
		if n := t.dropped.Swap(0); n > 0 && err == nil {
			err = s.writeText("event: dropped\ndata: {\"dropped\":%d}\n\n", n)
		}
		if err != nil {
			return nil // the client has disconnected
		}
	}
}

// sseStream is a response of server-sent events.
type sseStream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// newSSEStream sends the headers of an event stream.
func newSSEStream(w http.ResponseWriter) *sseStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	return &sseStream{w: w, rc: http.NewResponseController(w)}
}

// writeText sends text and flushes it.
func (s *sseStream) writeText(format string, args ...any) error {
	extendWriteDeadline(s.rc)
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		return err
	}
	return s.rc.Flush()
}

// extendWriteDeadline gives the client writeTimeout from now to take the next write. A writer without
// deadlines is not a connection and does not block.
func extendWriteDeadline(rc *http.ResponseController) {
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
}
