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
type link struct {
	conn    net.Conn
	o       *Options
	rd      reader
	peer    hello
	name    string                     // of the peer, for ConnState
	stands  bool                       // OnState was called with Connected
	control func(command []byte) error // sends a command; set before the first read

	pulse struct {
		heard bool // bytes were received since the deadline was set
		asked bool // a PING was sent
	}
	scratch []byte
}

// peerCommand is a command which the owner of a connection handles: a subscription at a PUB.
type command struct {
	name string // "SUBSCRIBE" or "CANCEL"; "" is none
	data []byte // valid until the next read
}

// serveConn runs use with the connection until it ends, and reports the changes of state. A SUB
// calls markConnected itself.
func (l *link) serve(ctx context.Context, socket, peer string, use func(context.Context, *link) error) error {
	l.name = peer
	if socket != typeSub {
		l.stand()
	}
	err := use(ctx, l)
	switch {
	case ctx.Err() != nil:
	case l.stands:
		l.o.tell(State{Kind: Lost, Peer: peer, Err: err})
	default:
		l.o.tell(State{Kind: Refused, Peer: peer, Err: err})
	}
	return err
}

// markConnected reports Connected, once.
func (l *link) stand() {
	if !l.stands {
		l.stands = true
		l.o.tell(State{Kind: Connected, Peer: l.name})
	}
}

// startHeartbeat starts the detection of silence.
func (l *link) start() {
	if l.heartbeats() {
		_ = l.conn.SetReadDeadline(time.Now().Add(l.o.Heartbeat))
	}
}

// sendsHeartbeats reports whether the peer gets PINGs. A peer of ZMTP 3.0 may take a PING for a
// message.
func (l *link) heartbeats() bool { return l.o.Heartbeat > 0 && l.peer.minor >= 1 }

// nextMessage waits for the next message, or command for the owner.
func (l *link) next() (frames [][]byte, c command, err error) {
	for {
		frames, c, err = l.buffered()
		if frames != nil || c.name != "" || err != nil {
			return frames, c, err
		}
		if err := l.fill(); err != nil {
			return nil, command{}, err
		}
	}
}

// nextBuffered returns the next message or command which has been received already, if any.
func (l *link) buffered() (frames [][]byte, c command, err error) {
	for {
		kind, body, err := l.rd.next()
		switch {
		case err != nil || kind == tokenNone:
			return nil, command{}, err
		case kind == tokenMessage:
			return l.rd.frames, command{}, nil
		}
		if c, err = l.obey(body); err != nil || c.name != "" {
			return nil, c, err
		}
	}
}

// handleCommand handles a command, or returns it for the owner. It ignores unknown commands, which
// later versions may have.
func (l *link) obey(body []byte) (command, error) {
	name, data, err := splitCommand(body)
	if err != nil {
		return command{}, err
	}
	switch string(name) {
	case "PING":
		return command{}, l.pong(data)
	case "PONG":
		if string(data) == afterSubscriptions {
			l.stand()
		}
		return command{}, nil
	case "ERROR":
		return command{}, fmt.Errorf("%w: the peer gives up: %s", ErrProtocol, errorReason(data))
	case "SUBSCRIBE":
		return command{"SUBSCRIBE", data}, nil
	case "CANCEL":
		return command{"CANCEL", data}, nil
	}
	return command{}, nil
}

// answerPing answers a PING: two bytes of TTL, which our own heartbeat makes unnecessary, and up to
// 16 bytes to send back.
func (l *link) pong(data []byte) error {
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
func (l *link) fill() error {
	for {
		err := l.rd.fill()
		if err == nil {
			l.pulse.heard = true
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !l.heartbeats() {
			return err
		}
		wait := l.o.Heartbeat
		switch {
		case l.pulse.heard:
			l.pulse.asked = false
		case l.pulse.asked:
			return ErrSilent
		default:
			l.pulse.asked, wait = true, l.o.HeartbeatTimeout
			// TTL 0: we send PINGs only after silence, so a promise to send more would not hold.
			if err := l.control([]byte("\x04\x07\x04PING\x00\x00")); err != nil {
				return err
			}
		}
		l.pulse.heard = false
		_ = l.conn.SetReadDeadline(time.Now().Add(wait))
	}
}

// writeCommandsDirectly makes the reading goroutine write commands, for a connection which sends
// nothing else.
func (l *link) direct() {
	l.control = func(command []byte) error {
		_ = l.conn.SetWriteDeadline(time.Now().Add(l.o.HandshakeTimeout))
		_, err := l.conn.Write(command)
		return err
	}
}

// closeOnDone closes conn when ctx ends, so that blocked reads and writes return. The returned
// function closes it in any case.
func closeWith(ctx context.Context, conn net.Conn) (done func()) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func() {
		stop()
		_ = conn.Close()
	}
}

// remoteName returns a name for the remote end.
func peerName(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil && a.String() != "" && a.String() != "@" {
		return a.String()
	}
	return "a local peer"
}
