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
func connect(ctx context.Context, ep Endpoint, socket string, o *Options) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	conn, err := ep.dial(ctx)
	if err != nil {
		return nil, err
	}
	return shakeWith(ctx, conn, dialled, socket, o)
}

// errNoGreeting is the error for a port whose listener does not send a greeting: an HTTP server,
// for example, waits for more input.
var errSilent = errors.New("somebody listens there and does not speak ZeroMQ, or is stuck; is it the right port?")

// handshakeContext is handshake, which also ends with ctx.
func shakeWith(ctx context.Context, conn net.Conn, by side, socket string, o *Options) (*link, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	l, err := shake(conn, by, socket, o)
	switch ended := ctx.Err(); {
	case stop():
	case errors.Is(ended, context.DeadlineExceeded):
		err = fmt.Errorf("handshake: %w", errSilent)
	case err == nil:
		err = ended // ctx closed the connection although the handshake succeeded
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// stableAfter is the duration of a connection after which the backoff is reset.
const steady = 5 * time.Second

// keepDialing dials ep and serves the connection, repeatedly, until ctx ends or serve returns a
// finalError.
func persist(ctx context.Context, ep Endpoint, socket string, o *Options, serve func(context.Context, *link) error) error {
	if err := ep.dialable(); err != nil {
		return err
	}
	retry := backoff.Backoff{Least: o.ReconnectMin, Most: o.ReconnectMax}
	for {
		l, err := connect(ctx, ep, socket, o)
		if err == nil {
			began := time.Now()
			err = l.serve(ctx, socket, ep.String(), serve)
			if time.Since(began) >= steady {
				retry.Reset()
			}
		} else if ctx.Err() == nil {
			o.tell(State{Kind: Refused, Peer: ep.String(), Err: err})
		}
		var final *finalError
		if errors.As(err, &final) {
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
func acceptAll(ctx context.Context, ln net.Listener, socket string, o *Options, serve func(context.Context, *link) error) {
	var peers sync.WaitGroup
	defer peers.Wait()
	places := make(chan struct{}, o.MaxPeers)
	retry := backoff.Backoff{Least: 5 * time.Millisecond, Most: time.Second}
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil: // no file descriptors, for example; existing connections continue
			o.tell(State{Kind: Refused, Peer: "anyone", Err: fmt.Errorf("accept: %w", err)})
			_ = retry.Wait(ctx) // the end of ctx closes ln
			continue
		}
		retry.Reset()
		select {
		case places <- struct{}{}:
		default:
			_ = conn.Close()
			o.tell(State{Kind: Refused, Peer: peerName(conn), Err: fmt.Errorf("there are %d connections already", o.MaxPeers)})
			continue
		}
		peers.Go(func() {
			defer func() { <-places }()
			acceptOne(ctx, conn, socket, o, serve)
		})
	}
}

func acceptOne(ctx context.Context, conn net.Conn, socket string, o *Options, serve func(context.Context, *link) error) {
	name := peerName(conn)
	l, err := shakeWith(ctx, conn, accepted, socket, o)
	if err != nil {
		if ctx.Err() == nil {
			o.tell(State{Kind: Refused, Peer: name, Err: err})
		}
		return
	}
	_ = l.serve(ctx, socket, name, serve) // reported to OnState
}
