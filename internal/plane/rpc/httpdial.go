package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// httpDialer makes the connections of a plane. Calls that wait for a connection
// to one server get theirs one after another; those that were there before an
// attempt failed share its failure, else each would wait for its own, and the
// last of them for all.
type httpDialer struct {
	plain net.Dialer
	tls   tls.Dialer
	mu    struct {
		sync.Mutex
		failed map[string]dialFailure // by address
	}
}

type dialFailure struct {
	at  time.Time
	err error
}

// maxFailed bounds the addresses whose last failure is kept.
const maxFailed = 256

// callStart is the key under which a call's context has the time of its start.
type callStart struct{}

func newHTTPDialer(timeout time.Duration, conf *tls.Config) *httpDialer {
	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf = conf.Clone()
	conf.NextProtos = []string{"h2"}
	d := &httpDialer{plain: net.Dialer{Timeout: timeout}}
	d.tls = tls.Dialer{NetDialer: &d.plain, Config: conf}
	d.mu.failed = make(map[string]dialFailure)
	return d
}

func (d *httpDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.share(ctx, addr, func() (net.Conn, error) { return d.plain.DialContext(ctx, network, addr) })
}

func (d *httpDialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.plain.Timeout)
	defer cancel()
	return d.share(ctx, addr, func() (net.Conn, error) { return d.tls.DialContext(ctx, network, addr) })
}

func (d *httpDialer) share(ctx context.Context, addr string, dial func() (net.Conn, error)) (net.Conn, error) {
	start, _ := ctx.Value(callStart{}).(time.Time)
	if err := d.failedSince(addr, start); err != nil {
		return nil, err
	}
	c, err := dial()
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

func (d *httpDialer) failedSince(addr string, start time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.mu.failed[addr]; ok && f.at.After(start) {
		return f.err
	}
	return nil
}
