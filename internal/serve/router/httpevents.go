package router

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// beat is how often a quiet stream shows that it is alive.
	beat = 15 * time.Second
	// writeTimeout is how long a client may hold up one write before it counts
	// as gone.
	writeTimeout = 30 * time.Second
)

// EndWatches ends the streams of cache events, which have no end of their own,
// and begins no new ones. The server that they pass through calls it when it
// starts to wait for its responses; without it they last until the router stops.
// It may be called more than once.
func (r *Router) EndWatches() { r.hub.close() }

// serveEvents streams cache events as they arrive, until the client leaves, the
// router stops or EndWatches is called. What a slow client misses is said with an event "dropped".
func (r *Router) serveEvents(w http.ResponseWriter, req *http.Request) error {
	t, err := r.hub.watch()
	if err != nil {
		return err
	}
	defer r.hub.unwatch(t)
	s := newStream(w)
	defer s.end()
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
			return nil // the client is gone
		}
	}
}

// stream is a response of server-sent events.
type stream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// newStream commits the response to being a stream.
func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	return &stream{w: w, rc: http.NewResponseController(w)}
}

// end takes the deadline off the connection, which may serve another request.
func (s *stream) end() { _ = s.rc.SetWriteDeadline(time.Time{}) }

// write sends text at once.
func (s *stream) write(format string, args ...any) error {
	// A writer without deadlines is not a connection and does not stall.
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		return err
	}
	return s.rc.Flush()
}
