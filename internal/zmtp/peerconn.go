package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// peerConn is one connection after its handshake. One goroutine reads from it; its owner decides
// which goroutine writes.
type peerConn struct {
	conn      net.Conn
	opts      *Options
	rd        frameReader
	peer      peerInfo
	name      string                     // of the peer, for ConnState
	connected bool                       // OnState was called with Connected
	control   func(command []byte) error // sends a command; set before the first read

	heartbeat struct {
		heard bool // bytes were received since the deadline was set
		asked bool // a PING was sent
	}
	scratch []byte
}

// peerCommand is a command which the owner of a connection handles: a subscription at a PUB.
type peerCommand struct {
	name string // "SUBSCRIBE" or "CANCEL"; "" is none
	data []byte // valid until the next read
}

// serveConn runs use with the connection until it ends, and reports the changes of state. A SUB
// calls markConnected itself.
func (l *peerConn) serveConn(ctx context.Context, socket, peer string, use func(context.Context, *peerConn) error) error {
	l.name = peer
	if socket != typeSub {
		l.markConnected()
	}
	err := use(ctx, l)
	switch {
	case ctx.Err() != nil:
	case l.connected:
		l.opts.reportState(ConnState{Kind: Lost, Peer: peer, Err: err})
	default:
		l.opts.reportState(ConnState{Kind: Refused, Peer: peer, Err: err})
	}
	return err
}

// markConnected reports Connected, once.
func (l *peerConn) markConnected() {
	if !l.connected {
		l.connected = true
		l.opts.reportState(ConnState{Kind: Connected, Peer: l.name})
	}
}

// startHeartbeat starts the detection of silence.
func (l *peerConn) startHeartbeat() {
	if l.sendsHeartbeats() {
		_ = l.conn.SetReadDeadline(time.Now().Add(l.opts.Heartbeat))
	}
}

// sendsHeartbeats reports whether the peer gets PINGs. A peer of ZMTP 3.0 may take a PING for a
// message.
func (l *peerConn) sendsHeartbeats() bool { return l.opts.Heartbeat > 0 && l.peer.minor >= 1 }

// nextMessage waits for the next message, or command for the owner.
func (l *peerConn) nextMessage() (frames [][]byte, c peerCommand, err error) {
	for {
		frames, c, err = l.nextBuffered()
		if frames != nil || c.name != "" || err != nil {
			return frames, c, err
		}
		if err := l.readMore(); err != nil {
			return nil, peerCommand{}, err
		}
	}
}

// nextBuffered returns the next message or command which has been received already, if any.
func (l *peerConn) nextBuffered() (frames [][]byte, c peerCommand, err error) {
	for {
		kind, body, err := l.rd.nextToken()
		switch {
		case err != nil || kind == tokenNone:
			return nil, peerCommand{}, err
		case kind == tokenMessage:
			return l.rd.frames, peerCommand{}, nil
		}
		if c, err = l.handleCommand(body); err != nil || c.name != "" {
			return nil, c, err
		}
	}
}

// handleCommand handles a command, or returns it for the owner. It ignores unknown commands, which
// later versions may have.
func (l *peerConn) handleCommand(body []byte) (peerCommand, error) {
	name, data, err := splitCommand(body)
	if err != nil {
		return peerCommand{}, err
	}
	switch string(name) {
	case "PING":
		return peerCommand{}, l.answerPing(data)
	case "PONG":
		if string(data) == afterSubscriptions {
			l.markConnected()
		}
		return peerCommand{}, nil
	case "ERROR":
		return peerCommand{}, fmt.Errorf("%w: the peer gives up: %s", ErrProtocol, errorReason(data))
	case "SUBSCRIBE":
		return peerCommand{"SUBSCRIBE", data}, nil
	case "CANCEL":
		return peerCommand{"CANCEL", data}, nil
	}
	return peerCommand{}, nil
}

// answerPing answers a PING: two bytes of TTL, which our own heartbeat makes unnecessary, and up to
// 16 bytes to send back.
func (l *peerConn) answerPing(data []byte) error {
	if len(data) < 2 || len(data) > 2+16 {
		return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(data))
	}
	l.scratch = append(l.scratch[:0], flagCommand, byte(5+len(data)-2))
	l.scratch = append(l.scratch, "\x04PONG"...)
	l.scratch = append(l.scratch, data[2:]...)
	return l.control(l.scratch)
}

// readMore reads once. It returns ErrSilent after a silence beyond the bounds. The deadline is
// moved when it has passed, not with each read, so reads cost no timer.
func (l *peerConn) readMore() error {
	for {
		err := l.rd.fillBuffer()
		if err == nil {
			l.heartbeat.heard = true
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !l.sendsHeartbeats() {
			return err
		}
		wait := l.opts.Heartbeat
		switch {
		case l.heartbeat.heard:
			l.heartbeat.asked = false
		case l.heartbeat.asked:
			return ErrSilent
		default:
			l.heartbeat.asked, wait = true, l.opts.HeartbeatTimeout
			// TTL 0: we send PINGs only after silence, so a promise to send more would not hold.
			if err := l.control([]byte("\x04\x07\x04PING\x00\x00")); err != nil {
				return err
			}
		}
		l.heartbeat.heard = false
		_ = l.conn.SetReadDeadline(time.Now().Add(wait))
	}
}

// writeCommandsDirectly makes the reading goroutine write commands, for a connection which sends
// nothing else.
func (l *peerConn) writeCommandsDirectly() {
	l.control = func(command []byte) error {
		_ = l.conn.SetWriteDeadline(time.Now().Add(l.opts.HandshakeTimeout))
		_, err := l.conn.Write(command)
		return err
	}
}

// closeOnDone closes conn when ctx ends, so that blocked reads and writes return. The returned
// function closes it in any case.
func closeOnDone(ctx context.Context, conn net.Conn) (done func()) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func() {
		stop()
		_ = conn.Close()
	}
}

// remoteName returns a name for the remote end.
func remoteName(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil && a.String() != "" && a.String() != "@" {
		return a.String()
	}
	return "a local peer"
}

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
