package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// tcpLinger is how long a server that is leaving waits for a client to close a
// connection without calls. A client does so at once: then both know that
// nothing was lost.
const tcpLinger = time.Second

// tcpServer is one Serve in progress.
type tcpServer struct {
	plane   *TCP
	cfg     *TCPConfig
	handler Handler
	bodies  budget
	trouble complaints
	conns   sync.WaitGroup
	mu      struct {
		sync.Mutex
		greeting map[net.Conn]bool // connections that have not greeted yet
		links    map[*serverLink]bool
		leaving  bool
	}
}

func (t *TCP) newServer(h Handler) *tcpServer {
	s := &tcpServer{plane: t, cfg: &t.cfg, handler: h, bodies: budget{limit: t.cfg.Bodies}, trouble: complaints{log: t.cfg.Log}}
	s.mu.greeting = make(map[net.Conn]bool)
	s.mu.links = make(map[*serverLink]bool)
	return s
}

// Serve implements Plane. addr is "host:port", with or without the scheme; an
// empty one is the configured. When ctx ends it closes the listener, tells
// clients to go elsewhere, and waits for the calls that were begun.
func (t *TCP) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	if addr == "" {
		addr = t.cfg.Listen
	}
	at, err := listenable(addr)
	if err != nil {
		return err
	}
	l, err := t.listen(at)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fault.New(fault.Conflict, "serve %q: another process serves there; choose another port: %w", addr, err)
		}
		return fault.New(fault.Invalid, "serve %q: %w", addr, err)
	}
	at = l.Addr().String()
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		if at, err = advertised(t.cfg.Advertise, tcp); err != nil {
			l.Close()
			return err
		}
		if t.cfg.Token != "" && t.cfg.ServerTLS == nil && !tcp.IP.IsLoopback() {
			t.cfg.Log.Warn("the rpc token crosses the network in clear; give the request plane TLS", "listen", tcp.String())
		}
	}
	s := t.newServer(h)
	if ready != nil {
		ready(tcpScheme + at)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	err = s.accept(ctx, l)
	stop()
	l.Close()
	s.leave()
	s.conns.Wait()
	return err
}

// accept takes connections until ctx ends, which closes l.
func (s *tcpServer) accept(ctx context.Context, l net.Listener) error {
	again := backoff.Backoff{Least: 5 * time.Millisecond, Most: time.Second}
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			again.Reset()
			s.admit(conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("serve %v: %w", l.Addr(), err)
		default: // out of descriptors, or the client left before it was accepted
			s.trouble.say("accepting a connection failed", l.Addr(), err)
			if again.Wait(ctx) != nil {
				return nil
			}
		}
	}
}

// admit serves conn in a goroutine of its own, unless there are too many.
func (s *tcpServer) admit(conn net.Conn) {
	s.mu.Lock()
	room := len(s.mu.greeting)+len(s.mu.links) < s.cfg.Conns
	if room {
		s.mu.greeting[conn] = true
		s.conns.Add(1)
	}
	s.mu.Unlock()
	if !room {
		conn.Close()
		s.trouble.say("refused a connection: there are too many", conn.RemoteAddr(), nil)
		return
	}
	go func() {
		defer s.conns.Done()
		s.serve(conn)
	}()
}

// serve serves one connection until it ends, and its handlers have.
func (s *tcpServer) serve(raw net.Conn) {
	defer raw.Close()
	conn, theirs, err := s.greet(raw)
	if err != nil {
		s.mu.Lock()
		delete(s.mu.greeting, raw)
		s.mu.Unlock()
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) { // it came to nothing, or leave closed it
			s.trouble.say("refused a connection", raw.RemoteAddr(), err)
		}
		return
	}
	l := newServerLink(s, conn, theirs)
	s.mu.Lock()
	delete(s.mu.greeting, raw)
	leaving := s.mu.leaving
	if !leaving {
		s.mu.links[l] = true
	}
	s.mu.Unlock()
	if leaving {
		turnAway(conn, fault.New(fault.Unavailable, "the server is leaving"))
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.links, l)
	}()
	l.serve()
}

// greet hears the client out, within TLS if that is configured, and decides
// whether it may call. A client that may not is told why.
func (s *tcpServer) greet(conn net.Conn) (net.Conn, hello, error) {
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
	t, payload, err := readFirst(conn)
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
	if !h.agrees() {
		err := errVersions(&h)
		turnAway(conn, fault.New(fault.Unimplemented, "%w", err))
		return conn, hello{}, err
	}
	if !sameToken(h.token, s.cfg.Token) {
		turnAway(conn, fault.New(fault.Unauthorized, "the rpc token of the client is missing or not the server's; give all processes the same"))
		return conn, hello{}, errors.New("the rpc token is missing or wrong")
	}
	return conn, h, nil
}

// turnAway tells a client, in the place of a greeting, why it gets none.
func turnAway(conn net.Conn, why *fault.Error) {
	// An error is that the client is gone.
	_, _ = conn.Write(appendFirst(nil, frameGoaway, appendGoaway(nil, 0, why)))
}

// leave sends all clients elsewhere.
func (s *tcpServer) leave() {
	s.mu.Lock()
	s.mu.leaving = true
	var links []*serverLink
	for l := range s.mu.links {
		links = append(links, l)
	}
	for conn := range s.mu.greeting {
		conn.Close()
	}
	s.mu.Unlock()
	for _, l := range links {
		l.goaway()
	}
}

// complaints is a log of what strangers do, one line a second at most.
type complaints struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		next    time.Time
		skipped int
	}
}

func (c *complaints) say(msg string, peer net.Addr, err error) {
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
