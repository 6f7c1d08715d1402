package zmtp

import (
	"context"
	"errors"
	"net"
)

// exchangeMessages writes the messages of out and passes the messages of the peer to handle, until
// the connection ends, ctx ends, or handle fails. When out is closed and empty, it closes our half
// of the connection and waits for the peer's half: closing a connection with unread bytes may lose
// the last sent ones.
func exchange(ctx context.Context, l *link, out *outbox, handle func(frames [][]byte, c command) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.control = out.control
	l.start()
	closeConn := closeWith(ctx, l.conn)
	written := make(chan error, 1)
	go func() {
		err := out.run(ctx, l.conn)
		if err == nil {
			halfClose(l.conn)
		} else {
			_ = l.conn.Close()
		}
		written <- err
	}()
	var err error
	for err == nil {
		var frames [][]byte
		var c command
		if frames, c, err = l.next(); err == nil {
			err = handle(frames, c)
		}
	}
	cancel()
	closeConn()
	if werr := <-written; werr != nil && errors.Is(err, net.ErrClosed) && !errors.Is(werr, context.Canceled) {
		return werr // the reason why the connection was closed
	}
	return err
}

// halfClose closes the sending half of conn.
func halfClose(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
		return
	}
	_ = conn.Close()
}
