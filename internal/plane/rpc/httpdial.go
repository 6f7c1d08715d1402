package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// httpDialer dials the connections of a plane. Calls that wait for a connection to one server are
// served one after another. Calls which were already waiting when an attempt failed share its
// error; otherwise each would wait for its own attempt, and the last one for all of them.
type httpDialer struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	timeout time.Duration // bounds one attempt
	mu      struct {
		sync.Mutex
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

func newHTTPDialer(timeout time.Duration) *httpDialer {
	d := &httpDialer{dial: new(net.Dialer).DialContext, timeout: timeout}
	d.mu.failed = make(map[string]dialFailure)
	return d
}

// dialContext is for [http.Transport].
func (d *httpDialer) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	start, _ := ctx.Value(callStartKey{}).(time.Time)
	if err := d.failureSince(addr, start); err != nil {
		return nil, err
	}
	ctx, release := withAwakeTimeout(ctx, d.timeout)
	defer release()
	c, err := d.dial(ctx, network, addr)
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
