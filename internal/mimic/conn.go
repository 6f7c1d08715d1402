package mimic

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// conn is what a handler knows of its connection.
type conn struct {
	net.Conn
	requests atomic.Int64
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &conn{Conn: c})
}

// track keeps the connections that are open.
func (s *Server) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.mu.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.mu.conns, c)
	default:
	}
}

// hangUp closes every connection, as the end of a process does.
func (s *Server) hangUp() {
	s.mu.Lock()
	var all []net.Conn
	for c := range s.mu.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// reset closes the connection of a request that is not its first with a reset, where a fault
// wants it; that is what a client sees whose request crosses the end of an idle connection.
func (s *Server) resetIdle(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || c.requests.Add(1) == 1 {
		return
	}
	if _, hit := s.faults.strikes(FaultReset); !hit {
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
	panic(http.ErrAbortHandler)
}
