package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"penstock/internal/backoff"
)

// dialConn dials ep and does the handshake, within HandshakeTimeout.
func dialConn(ctx context.Context, ep Endpoint, socket string, o *Options) (*peerConn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, ep.network, ep.netAddress())
	if err != nil {
		return nil, err
	}
	return handshakeContext(ctx, conn, dialled, socket, o)
}

// errNoGreeting is the error for a port whose listener does not send a greeting: an HTTP server,
// for example, waits for more input.
var errNoGreeting = errors.New("what listens there does not speak ZeroMQ, or is stuck; is it the right port?")

// handshakeContext is handshake, which also ends with ctx.
func handshakeContext(ctx context.Context, conn net.Conn, by connSide, socket string, o *Options) (*peerConn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	l, err := handshake(conn, by, socket, o)
	switch ended := ctx.Err(); {
	case stop():
	case errors.Is(ended, context.DeadlineExceeded):
		err = fmt.Errorf("handshake: %w", errNoGreeting)
	case err == nil:
		err = ended // ctx closed the connection although the handshake succeeded
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// stableAfter is the duration of a connection after which the backoff is reset.
const stableAfter = 5 * time.Second

// keepDialing dials ep and serves the connection, repeatedly, until ctx ends or serve returns a
// finalError.
func keepDialing(ctx context.Context, ep Endpoint, socket string, o *Options, serve func(context.Context, *peerConn) error) error {
	if err := ep.checkDialable(); err != nil {
		return err
	}
	retry := backoff.Backoff{Min: o.ReconnectMin, Max: o.ReconnectMax}
	for {
		l, err := dialConn(ctx, ep, socket, o)
		if err == nil {
			began := time.Now()
			err = l.serveConn(ctx, socket, ep.String(), serve)
			if time.Since(began) >= stableAfter {
				retry.Reset()
			}
		} else if ctx.Err() == nil {
			o.reportState(ConnState{Kind: Refused, Peer: ep.String(), Err: err})
		}
		if final, ok := errors.AsType[*finalError](err); ok {
			return final.err
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}

// finalError is an error of the caller which ends the dialling.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }

// acceptAll accepts the connections of ln and serves each in its own goroutine, until ctx ends or
// ln is closed. It returns when all of them have ended.
func acceptAll(ctx context.Context, ln net.Listener, socket string, o *Options, serve func(context.Context, *peerConn) error) {
	var peers sync.WaitGroup
	defer peers.Wait()
	places := make(chan struct{}, o.MaxPeers)
	retry := backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil: // no file descriptors, for example; existing connections continue
			o.reportState(ConnState{Kind: Refused, Peer: "anyone", Err: fmt.Errorf("accept: %w", err)})
			_ = retry.Wait(ctx) // the end of ctx closes ln
			continue
		}
		retry.Reset()
		select {
		case places <- struct{}{}:
		default:
			_ = conn.Close()
			o.reportState(ConnState{Kind: Refused, Peer: remoteName(conn), Err: fmt.Errorf("there are %d connections already", o.MaxPeers)})
			continue
		}
		peers.Go(func() {
			defer func() { <-places }()
			acceptOne(ctx, conn, socket, o, serve)
		})
	}
}

func acceptOne(ctx context.Context, conn net.Conn, socket string, o *Options, serve func(context.Context, *peerConn) error) {
	name := remoteName(conn)
	l, err := handshakeContext(ctx, conn, accepted, socket, o)
	if err != nil {
		if ctx.Err() == nil {
			o.reportState(ConnState{Kind: Refused, Peer: name, Err: err})
		}
		return
	}
	_ = l.serveConn(ctx, socket, name, serve) // reported to OnState
}
