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
func exchangeMessages(ctx context.Context, l *peerConn, out *outbox, handle func(frames [][]byte, c peerCommand) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.control = out.queueCommand
	l.startHeartbeat()
	closeConn := closeOnDone(ctx, l.conn)
	written := make(chan error, 1)
	go func() {
		err := out.writeQueued(ctx, l.conn)
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
		var c peerCommand
		if frames, c, err = l.nextMessage(); err == nil {
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
