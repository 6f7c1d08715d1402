package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/plane/endpoint"
)

// tcpLinger is how long a draining server waits for a client to close a connection without calls. A
// client closes it at once; then both sides know that nothing was lost.
const tcpLinger = time.Second

// greetingShare bounds the connections that have not greeted yet: one in greetingShare of a
// server's connections.
const greetingShare = 4

// tcpServer is one Serve in progress.
type tcpServer struct {
	plane    *TCPPlane
	cfg      *TCPConfig
	handler  Handler
	bodies   byteBudget
	warnings throttledLog
	conns    sync.WaitGroup
	mu       struct {
		sync.Mutex
		greeting []net.Conn // connections that have not greeted yet, in order of arrival
		links    map[*serverLink]bool
		leaving  bool
	}
}

func (t *TCPPlane) newServer(h Handler) *tcpServer {
	s := &tcpServer{plane: t, cfg: &t.cfg, handler: h, bodies: byteBudget{limit: t.cfg.Bodies}, warnings: throttledLog{log: t.cfg.Log}}
	s.mu.links = make(map[*serverLink]bool)
	return s
}

// Serve implements Plane. addr is "host:port", with or without the scheme; an empty addr is the
// configured one. When ctx ends, Serve closes the listener, tells clients to use other servers, and
// waits for the calls that were started.
func (t *TCPPlane) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	if addr == "" {
		addr = t.cfg.Listen
	}
	at, err := listenAddress(addr)
	if err != nil {
		return err
	}
	l, err := t.listen(at)
	if err != nil {
		return endpoint.ListenError(addr, err)
	}
	if at, err = endpoint.AdvertiseAddress("rpc", t.cfg.Advertise, l.Addr()); err != nil {
		l.Close()
		return err
	}
	s := t.newServer(h)
	if ready != nil {
		ready(tcpScheme + at)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	err = s.acceptConns(ctx, l)
	stop()
	l.Close()
	s.drainLinks()
	s.conns.Wait()
	return err
}

// listenAddress returns the "host:port" of addr, which may begin with the scheme.
func listenAddress(addr string) (string, error) {
	at := trimTCPScheme(addr)
	if _, _, err := net.SplitHostPort(at); err != nil {
		return "", fault.New(fault.Invalid, "serve %q: the address must be host:port: %w", addr, err)
	}
	return at, nil
}

// acceptConns accepts connections until ctx ends, which closes l.
func (s *tcpServer) acceptConns(ctx context.Context, l net.Listener) error {
	again := backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			again.Reset()
			s.admitConn(conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("serve %v: %w", l.Addr(), err)
		default: // out of descriptors, or the client disconnected early
			s.warnings.warnThrottled("accepting a connection failed", l.Addr(), err)
			if again.Wait(ctx) != nil {
				return nil
			}
		}
	}
}

// admitConn serves conn in its own goroutine, unless there are too many connections. If too many
// have not greeted yet, it closes the oldest of these: a client greets at once, so a peer which
// opens silent connections displaces its own.
func (s *tcpServer) admitConn(conn net.Conn) {
	s.mu.Lock()
	room := min(s.cfg.Conns-len(s.mu.links), max(s.cfg.Conns/greetingShare, 1))
	var oldest net.Conn
	if room > 0 {
		if len(s.mu.greeting) >= room {
			oldest = s.mu.greeting[0]
			s.mu.greeting = slices.Delete(s.mu.greeting, 0, 1)
		}
		s.mu.greeting = append(s.mu.greeting, conn)
		s.conns.Add(1)
	}
	s.mu.Unlock()
	if room <= 0 {
		conn.Close()
		s.warnings.warnThrottled("refused a connection: there are too many", conn.RemoteAddr(), nil)
		return
	}
	if oldest != nil {
		oldest.Close()
		s.warnings.warnThrottled("closed a connection that did not greet: too many do not", oldest.RemoteAddr(), nil)
	}
	go func() {
		defer s.conns.Done()
		s.serveConn(conn)
	}()
}

// serveConn serves one connection until the connection and its handlers have ended.
func (s *tcpServer) serveConn(raw net.Conn) {
	defer raw.Close()
	conn, theirs, err := s.receiveGreeting(raw)
	if err != nil {
		s.mu.Lock()
		s.removeGreetingLocked(raw)
		s.mu.Unlock()
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) { // closed by the peer or by drainLinks
			s.warnings.warnThrottled("refused a connection", raw.RemoteAddr(), err)
		}
		return
	}
	l := newServerLink(s, conn, theirs)
	s.mu.Lock()
	present, leaving := s.removeGreetingLocked(raw), s.mu.leaving
	if present && !leaving {
		s.mu.links[l] = true
	}
	s.mu.Unlock()
	switch {
	case !present: // it was displaced, and is closed
		l.releaseBuf()
		return
	case leaving:
		l.releaseBuf()
		rejectClient(conn, fault.New(fault.Unavailable, "the server is leaving"))
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.links, l)
	}()
	l.serveConn()
}

// removeGreetingLocked removes conn from the connections that have not greeted, and reports whether
// it was present.
func (s *tcpServer) removeGreetingLocked(conn net.Conn) bool {
	i := slices.Index(s.mu.greeting, conn)
	if i < 0 {
		return false
	}
	s.mu.greeting = slices.Delete(s.mu.greeting, i, i+1)
	return true
}

// receiveGreeting reads the client's greeting, within TLS if configured, and checks its version and
// token. It tells a refused client the reason.
func (s *tcpServer) receiveGreeting(conn net.Conn) (net.Conn, hello, error) {
	if err := conn.SetDeadline(time.Now().Add(s.cfg.Handshake)); err != nil {
		return conn, hello{}, err
	}
	if s.cfg.ServerTLS != nil {
		secure := tls.Server(conn, s.cfg.ServerTLS)
		if err := secure.Handshake(); err != nil {
			return conn, hello{}, err
		}
		conn = secure
	}
	if err := readMagic(conn); err != nil {
		return conn, hello{}, err
	}
	t, payload, err := readFirstFrame(conn)
	if err != nil {
		return conn, hello{}, err
	}
	if t != frameHello {
		return conn, hello{}, fmt.Errorf("the first frame is of type %d", t)
	}
	h, err := decodeHello(payload)
	if err != nil {
		return conn, hello{}, err
	}
	if !h.speaksOurVersion() {
		err := errVersions(&h)
		rejectClient(conn, fault.New(fault.Unimplemented, "%w", err))
		return conn, hello{}, err
	}
	if !endpoint.TokensMatch(h.token, s.cfg.Token) {
		rejectClient(conn, fault.New(fault.Unauthorized, "the rpc token of the client is missing or not the server's; give all processes the same"))
		return conn, hello{}, errors.New("the rpc token is missing or wrong")
	}
	return conn, h, nil
}

// rejectClient tells a client the reason of a refusal, instead of a greeting.
func rejectClient(conn net.Conn, why *fault.Error) {
	// An error means that the client has disconnected.
	_, _ = conn.Write(appendFirstFrame(nil, frameGoaway, appendGoaway(nil, 0, why)))
}

// drainLinks tells all clients to use other servers.
func (s *tcpServer) drainLinks() {
	s.mu.Lock()
	s.mu.leaving = true
	var links []*serverLink
	for l := range s.mu.links {
		links = append(links, l)
	}
	for _, conn := range s.mu.greeting {
		conn.Close()
	}
	s.mu.Unlock()
	for _, l := range links {
		l.sendGoaway()
	}
}

// throttledLog logs at most one warning per second, because peers can cause them at will.
type throttledLog struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		next    time.Time
		skipped int
	}
}

func (c *throttledLog) warnThrottled(msg string, peer net.Addr, err error) {
	c.mu.Lock()
	now := time.Now()
	if now.Before(c.mu.next) {
		c.mu.skipped++
		c.mu.Unlock()
		return
	}
	skipped := c.mu.skipped
	c.mu.skipped, c.mu.next = 0, now.Add(time.Second)
	c.mu.Unlock()
	args := []any{"peer", fmt.Sprint(peer), "err", err}
	if skipped > 0 {
		args = append(args, "skipped", skipped)
	}
	c.log.Warn(msg, args...)
}
