package enginemock

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// trackedConn is a handler's view of its connection.
type trackedConn struct {
	net.Conn
	requests atomic.Int64
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &trackedConn{Conn: c})
}

// trackConn keeps the set of open connections.
func (s *Server) trackConn(c net.Conn, state http.ConnState) {
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

// closeConns closes every connection, as the end of a process does.
func (s *Server) closeConns() {
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

// resetIdle resets the connection of a request which is not its first, if a fault is due: a client sees the
// same if its request crosses the close of an idle connection.
func (s *Server) resetIdle(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*trackedConn)
	if !ok || c.requests.Add(1) == 1 {
		return
	}
	if _, hit := s.faults.takeDue(FaultReset); !hit {
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
	panic(http.ErrAbortHandler)
}
