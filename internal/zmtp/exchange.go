package zmtp

import (
	"context"
	"errors"
	"net"
)

// exchange writes what out holds and has handle take what the peer sends, until
// the connection ends, ctx does, or handle fails. When out is closed and empty, our
// half of the connection ends, and the peer's is awaited: to close a connection
// with unread bytes may lose what was sent last.
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
		return werr // it is why the connection was closed
	}
	return err
}

// halfClose ends what we send.
func halfClose(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
		return
	}
	_ = conn.Close()
}
