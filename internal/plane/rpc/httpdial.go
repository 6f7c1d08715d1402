package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// httpDialer dials the connections of a plane. Calls that wait for a connection to one server are
// served one after another. Calls which were already waiting when an attempt failed share its
// error; otherwise each would wait for its own attempt, and the last one for all of them.
type httpDialer struct {
	net       net.Dialer
	keepAlive time.Duration // bounds the silence of a peer
	timeout   time.Duration // bounds one attempt
	conf      *tls.Config
	mu        struct {
		sync.Mutex
		closed bool
		open   map[*httpConn]struct{}
		failed map[string]dialFailure // by address
	}
}

type dialFailure struct {
	at  time.Time
	err error
}

// maxFailed bounds the number of addresses whose last failure is remembered.
const maxFailed = 256

// callStartKey is the context key of a call's start time.
type callStartKey struct{}

func newHTTPDialer(keepAlive time.Duration, conf *tls.Config) *httpDialer {
	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf = conf.Clone()
	conf.NextProtos = []string{"h2"}
	d := &httpDialer{keepAlive: keepAlive, timeout: min(keepAlive, httpDial), conf: conf}
	d.mu.open = make(map[*httpConn]struct{})
	d.mu.failed = make(map[string]dialFailure)
	return d
}

// closeAll closes all connections and prevents new ones.
func (d *httpDialer) closeAll() {
	d.mu.Lock()
	open := slices.Collect(maps.Keys(d.mu.open))
	d.mu.closed = true
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // no caller is left to handle the error
	}
}

func (d *httpDialer) dialPlain(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.shareFailure(ctx, addr, func(ctx context.Context) (net.Conn, error) {
		c, err := d.dialTracked(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.watchSilence(d.keepAlive)
		return c, nil
	})
}

func (d *httpDialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.shareFailure(ctx, addr, func(ctx context.Context) (net.Conn, error) {
		c, err := d.dialTracked(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conf := d.conf
		if conf.ServerName == "" {
			conf = conf.Clone()
			conf.ServerName, _, _ = net.SplitHostPort(addr) // dialling has validated addr
		}
		secure := tls.Client(c, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.watchSilence(d.keepAlive)
		return secure, nil
	})
}

// dialTracked dials a connection and records it for closeAll.
func (d *httpDialer) dialTracked(ctx context.Context, network, addr string) (*httpConn, error) {
	raw, err := d.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &httpConn{silenceConn: silenceConn{Conn: raw}, d: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return nil, errors.Join(errors.New("the request plane is closed"), raw.Close())
	}
	d.mu.open[c] = struct{}{}
	return c, nil
}

// httpConn is a connection which removes itself from its dialer when it is closed.
type httpConn struct {
	silenceConn
	d *httpDialer
}

// Close implements net.Conn.
func (c *httpConn) Close() error {
	c.d.mu.Lock()
	delete(c.d.mu.open, c)
	c.d.mu.Unlock()
	return c.silenceConn.Close()
}

func (d *httpDialer) shareFailure(ctx context.Context, addr string, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	start, _ := ctx.Value(callStartKey{}).(time.Time)
	if err := d.failureSince(addr, start); err != nil {
		return nil, err
	}
	ctx, release := withAwakeTimeout(ctx, d.timeout)
	defer release()
	c, err := dial(ctx)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = fmt.Errorf("no connection within %v", d.timeout)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.mu.failed, addr)
		return c, nil
	}
	if len(d.mu.failed) >= maxFailed {
		clear(d.mu.failed)
	}
	d.mu.failed[addr] = dialFailure{time.Now(), err}
	return nil, err
}

func (d *httpDialer) failureSince(addr string, start time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.mu.failed[addr]; ok && f.at.After(start) {
		return f.err
	}
	return nil
}
