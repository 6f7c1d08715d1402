package load

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// maxBodyOfError is how much of an error body is read so that the connection can be used again.
	maxBodyOfError = 64 << 10
	// drainTimeout bounds the wait for the end of a body after the end of its stream.
	drainTimeout = time.Second
)

// loadWorker sends requests one after another over one keep-alive connection.
type loadWorker struct {
	run     *loadRun
	next    chan *job // room for one
	conn    net.Conn  // nil without a connection
	in      *responseReader
	ev      sseDecoder
	out     *outcome
	onEvent func([]byte, bool) error
}

func newLoadWorker(r *loadRun) *loadWorker {
	w := &loadWorker{run: r, next: make(chan *job, 1)}
	w.onEvent = func(data []byte, isError bool) error { return w.out.handleEvent(data, isError) }
	return w
}

// ensureConnected opens the connection, if there is none.
func (w *loadWorker) ensureConnected(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	conn, err := w.run.peer.dialConn(ctx)
	if err != nil {
		return err
	}
	if !w.run.conns.addConn(conn) {
		_ = conn.Close() // nothing was sent over it
		return net.ErrClosed
	}
	w.conn = conn
	if w.in == nil {
		w.in = newResponseReader(nil, w.run.elapsed)
	}
	w.in.src, w.in.r, w.in.w = conn, 0, 0
	return nil
}

// closeConn closes the connection.
func (w *loadWorker) closeConn() {
	if w.conn == nil {
		return
	}
	w.run.conns.removeConn(w.conn)
	_ = w.conn.Close() // nothing is left to read
	w.conn = nil
}

// serveRequest sends j and reads its response into out. When it returns, out is complete; the connection may
// still have to be drained.
func (w *loadWorker) serveRequest(ctx context.Context, j *job, out *outcome) {
	out.reset()
	w.serveIntoOutcome(ctx, j, out)
}

// serveIntoOutcome is serveRequest with an outcome which was reset.
func (w *loadWorker) serveIntoOutcome(ctx context.Context, j *job, out *outcome) {
	w.out = out
	s := &out.sample
	s.Index, s.Due = j.index, j.due
	s.Sent = w.run.elapsed()
	err := w.exchangeWithRetry(ctx, j)
	s.Done = w.run.elapsed()
	if err == nil && s.Error == "" {
		s.Done = out.readAt
		err = out.finishSample(j.input)
	}
	if err != nil {
		w.closeConn()
		out.err = err
		out.abandoned = w.run.conns.isClosed()
		if s.Error == "" {
			s.Error = errorKind(err)
		}
	}
}

// exchangeWithRetry writes the request and reads the response up to the end of its stream.
func (w *loadWorker) exchangeWithRetry(ctx context.Context, j *job) error {
	waited := w.conn != nil
	err := w.tryExchange(ctx, j)
	if err != nil && waited && w.isStaleConnection(err) {
		// A server may close an idle connection at any time, whether new or used; the client cannot know
		// whether this request reached it.
		w.closeConn()
		w.out.resent = true
		err = w.tryExchange(ctx, j)
	}
	return err
}

// isStaleConnection reports whether err is the error of a connection which the server closed before it saw
// the request.
func (w *loadWorker) isStaleConnection(err error) bool {
	nothing := w.in.status == 0 && w.in.r == w.in.w
	return nothing && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

func (w *loadWorker) tryExchange(ctx context.Context, j *job) error {
	if err := w.ensureConnected(ctx); err != nil {
		return err
	}
	if err := w.conn.SetDeadline(time.Now().Add(w.run.cfg.Timeout)); err != nil {
		return err
	}
	w.in.status = 0
	// The server may respond and close before it has read a long body: its response says more than the write
	// error.
	_, writing := w.conn.Write(j.wire)
	if err := w.in.readHead(); err != nil {
		if writing != nil && !errors.Is(writing, io.EOF) {
			return writing
		}
		return err
	}
	w.out.sample.Worker = w.in.worker
	switch {
	case w.in.status != 200:
		w.out.sample.Error = statusKind(w.in.status)
		w.readErrorBody(writing)
		if w.out.keepBody {
			w.out.err = w.out.refusalError(w.in.status)
		}
		return nil
	case w.in.compressed:
		return errCompressed
	case !w.in.eventStream:
		return errStream
	}
	return w.out.readStream(w.in, &w.ev, w.onEvent)
}

// readErrorBody reads the body of an error response, and closes the connection unless it reaches the end.
func (w *loadWorker) readErrorBody(writing error) {
	w.out.readAt = w.in.readAt
	for n := 0; writing == nil && w.in.keepAlive && n < maxBodyOfError; {
		piece, err := w.in.nextPiece()
		if w.out.keepBody {
			w.out.message = append(w.out.message, piece...)
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			break
		}
		n += len(piece)
	}
	w.closeConn()
}

// drainBody reads to the end of the response body, so that the connection can be used again, or closes it.
func (w *loadWorker) drainBody() {
	if w.conn == nil {
		return
	}
	if !w.in.done {
		if err := w.conn.SetDeadline(time.Now().Add(drainTimeout)); err != nil {
			w.closeConn()
			return
		}
		for n := 0; n < maxBodyOfError && !w.in.done; {
			piece, err := w.in.nextPiece()
			if err != nil && err != io.EOF {
				break
			}
			n += len(piece)
		}
	}
	if !w.in.done || !w.in.keepAlive || w.in.r != w.in.w {
		w.closeConn()
	}
}

// connSet has the open connections, so that they can be closed.
type connSet struct {
	mu struct {
		sync.Mutex
		open map[net.Conn]struct{}
		cut  bool
	}
}

// addConn reports whether conn may be used.
func (c *connSet) addConn(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.cut {
		return false
	}
	if c.mu.open == nil {
		c.mu.open = map[net.Conn]struct{}{}
	}
	c.mu.open[conn] = struct{}{}
	return true
}

func (c *connSet) removeConn(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.open, conn)
}

func (c *connSet) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.cut
}

// closeAll closes all connections and refuses new ones.
func (c *connSet) closeAll() {
	c.mu.Lock()
	c.mu.cut = true
	open := c.mu.open
	c.mu.open = nil
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Close() // its reader gets an error
	}
}
