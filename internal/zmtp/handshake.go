package zmtp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"
)

// Socket types in this package, as READY names them.
const (
	typePub    = "PUB"
	typeXPub   = "XPUB"
	typeSub    = "SUB"
	typeXSub   = "XSUB"
	typeDealer = "DEALER"
	typeRouter = "ROUTER"
	typeReq    = "REQ"
	typeRep    = "REP"
)

// compatibleTypes returns the socket types that may connect to the given type.
func compatibleTypes(socket string) []string {
	switch socket {
	case typePub:
		return []string{typeSub, typeXSub}
	case typeSub:
		return []string{typePub, typeXPub}
	case typeDealer:
		return []string{typeRouter, typeDealer, typeRep}
	default:
		return []string{typeDealer, typeRouter, typeReq}
	}
}

// connSide tells which side established a connection.
type connSide uint8

const (
	dialled connSide = iota
	accepted
)

// handshake prepares a new connection for traffic as a socket of the given type, or closes it.
func handshake(conn net.Conn, by connSide, socket string, o *Options) (*peerConn, error) {
	l := &peerConn{conn: conn, opts: o, rd: frameReader{src: conn, maxMessage: o.MaxMessage, maxFrames: o.MaxFrames}}
	_ = conn.SetDeadline(time.Now().Add(o.HandshakeTimeout))
	if err := l.runHandshake(by, socket); err != nil {
		_ = conn.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errNoGreeting
		}
		return nil, fmt.Errorf("handshake: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

// runHandshake exchanges greetings and READY. The dialling side sends the mechanism only after it
// has the listener's greeting: libzmq does not tell which mechanism it requires once it knows that
// ours differs, and the error message needs it.
func (l *peerConn) runHandshake(by connSide, socket string) error {
	ours := appendGreeting(nil)
	first := ours
	if by == dialled {
		first = ours[:mechanismAt]
	}
	if _, err := l.conn.Write(first); err != nil {
		return err
	}
	g, err := l.rd.peekBytes(signatureSize)
	if err == nil {
		err = checkSignature(g)
	}
	if err == nil {
		g, err = l.rd.peekBytes(greetingSize)
	}
	if err == nil {
		l.peer.minor, err = checkGreeting(g)
	}
	if err != nil {
		return err
	}
	l.rd.r += greetingSize
	if _, err := l.conn.Write(appendReady(ours[len(first):], socket, l.opts.Identity)); err != nil {
		return err
	}
	switch err := l.readReady(); {
	case errors.Is(err, io.EOF):
		// libzmq closes without an error when the socket types are incompatible.
		return fmt.Errorf("the peer closed the connection on hearing that this is a %s; is it the port of a %s? (%w)", socket, compatibleTypes(socket)[0], err)
	case err != nil:
		return err
	}
	if legal := compatibleTypes(socket); !slices.Contains(legal, l.peer.socket) {
		_, _ = l.conn.Write(appendCommand(nil, "ERROR", "\x1aInvalid socket combination"))
		return fmt.Errorf("%w: the peer is a socket of type %.20q, a %s talks with %v", ErrProtocol, l.peer.socket, socket, legal)
	}
	return nil
}

// readReady reads the command that ends the peer's part of the handshake.
func (l *peerConn) readReady() error {
	for {
		kind, body, err := l.rd.nextToken()
		switch {
		case err != nil:
			return err
		case kind == tokenNone:
			if err := l.rd.fillBuffer(); err != nil {
				return err
			}
			continue
		case kind == tokenMessage:
			return fmt.Errorf("%w: a message before READY", ErrProtocol)
		}
		name, data, err := splitCommand(body)
		switch {
		case err != nil:
			return err
		case string(name) == "READY":
			return l.peer.readMetadata(data)
		case string(name) == "ERROR":
			return fmt.Errorf("%w: the peer refuses: %s", ErrProtocol, errorReason(data))
		}
		return fmt.Errorf("%w: a command %.20q before READY", ErrProtocol, name)
	}
}

// peekBytes returns the first n unread bytes, without consuming them.
func (rd *frameReader) peekBytes(n int) ([]byte, error) {
	for rd.w-rd.r < n {
		rd.need = n
		if err := rd.fillBuffer(); err != nil {
			return nil, err
		}
	}
	return rd.buf[rd.r : rd.r+n], nil
}
