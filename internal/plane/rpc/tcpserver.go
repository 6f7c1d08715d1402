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
)

// tcpLinger is how long a server that is leaving waits for a client to close a
// connection without calls. A client does so at once: then both know that
// nothing was lost.
const tcpLinger = time.Second

// tcpGreeting is the part of the connections of a server, one in so many, that may
// be such as have not greeted yet.
const tcpGreeting = 4

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
		greeting []net.Conn // connections that have not greeted yet, as they came
		links    map[*serverLink]bool
		leaving  bool
	}
}

func (t *TCP) newServer(h Handler) *tcpServer {
	s := &tcpServer{plane: t, cfg: &t.cfg, handler: h, bodies: budget{limit: t.cfg.Bodies}, trouble: complaints{log: t.cfg.Log}}
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
		return errListen(addr, err)
	}
	if at, err = advertised(t.cfg.Advertise, l.Addr()); err != nil {
		l.Close()
		return err
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

// listenable returns the address to listen at: "host:port" of addr, which may
// begin with the scheme.
func listenable(addr string) (string, error) {
	at := trimScheme(addr)
	if _, _, err := net.SplitHostPort(at); err != nil {
		return "", fault.New(fault.Invalid, "serve %q: the address must be host:port: %w", addr, err)
	}
	return at, nil
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

// admit serves conn in a goroutine of its own, unless there are too many. Of those
// that have not greeted yet the oldest gives way: a client greets at once, and who
// comes to fill the server with silence drives out his own.
func (s *tcpServer) admit(conn net.Conn) {
	s.mu.Lock()
	room := min(s.cfg.Conns-len(s.mu.links), max(s.cfg.Conns/tcpGreeting, 1))
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
		s.trouble.say("refused a connection: there are too many", conn.RemoteAddr(), nil)
		return
	}
	if oldest != nil {
		oldest.Close()
		s.trouble.say("closed a connection that did not greet: too many do not", oldest.RemoteAddr(), nil)
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
		s.greetedLocked(raw)
		s.mu.Unlock()
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) { // it came to nothing, or leave closed it
			s.trouble.say("refused a connection", raw.RemoteAddr(), err)
		}
		return
	}
	l := newServerLink(s, conn, theirs)
	s.mu.Lock()
	present, leaving := s.greetedLocked(raw), s.mu.leaving
	if present && !leaving {
		s.mu.links[l] = true
	}
	s.mu.Unlock()
	switch {
	case !present: // it gave way, and is closed
		l.give()
		return
	case leaving:
		l.give()
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

// greetedLocked takes conn from those that have not greeted yet, and reports
// whether it was there still. s.mu is held.
func (s *tcpServer) greetedLocked(conn net.Conn) bool {
	i := slices.Index(s.mu.greeting, conn)
	if i < 0 {
		return false
	}
	s.mu.greeting = slices.Delete(s.mu.greeting, i, i+1)
	return true
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
	for _, conn := range s.mu.greeting {
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
