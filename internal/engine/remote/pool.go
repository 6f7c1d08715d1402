package remote

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"
)

// connPool keeps connections with one engine between calls. It is safe for concurrent use.
type connPool struct {
	dialer      net.Dialer
	addr        string
	tls         *tls.Config   // nil without TLS
	inUse       chan struct{} // has an element for each connection in use
	idleTimeout time.Duration // after which an unused connection is closed

	mu struct {
		sync.Mutex
		idle   []*engineConn // the longest idle first
		sweep  *time.Timer
		closed bool
	}
}

// newPool returns a pool of connections with the host of u; host is the value of the Host header.
func newPool(u *url.URL, host string) *connPool {
	p := &connPool{
		dialer:      net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second},
		inUse:       make(chan struct{}, maxConnections),
		idleTimeout: idleTimeout,
	}
	name, port := u.Hostname(), u.Port()
	if h := (&url.URL{Host: host}).Hostname(); h != "" && net.ParseIP(h) == nil {
		name = h // in ASCII
	}
	if u.Scheme == "https" {
		p.tls = &tls.Config{ServerName: name, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	if port == "" {
		port = map[bool]string{false: "80", true: "443"}[p.tls != nil]
	}
	p.addr = net.JoinHostPort(name, port)
	return p
}

// acquireSlot waits until another connection is allowed, until ctx ends, or until the deadline unless it is
// zero.
func (p *connPool) acquireSlot(ctx context.Context, until time.Time) error {
	select {
	case p.inUse <- struct{}{}:
		return nil
	default:
	}
	var late <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		late = t.C
	}
	select {
	case p.inUse <- struct{}{}:
		return nil
	case <-late:
		return errNoHeader
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acquireConn returns a connection for exclusive use until releaseConn or dropConn: an idle one if it is
// usable.
func (p *connPool) acquireConn(ctx context.Context, until time.Time) (*engineConn, error) {
	if err := p.acquireSlot(ctx, until); err != nil {
		return nil, err
	}
	for {
		k := p.popIdle()
		if k == nil {
			break
		}
		if time.Since(k.idleSince) < p.idleTimeout && k.isQuiet() {
			return k, nil
		}
		k.abort()
	}
	k, err := p.dialConn(ctx)
	if err != nil {
		<-p.inUse
	}
	return k, err
}

// popIdle takes the most recently used connection; nil if there is none.
func (p *connPool) popIdle() *engineConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.mu.idle)
	if n == 0 {
		return nil
	}
	k := p.mu.idle[n-1]
	p.mu.idle[n-1] = nil
	p.mu.idle = p.mu.idle[:n-1]
	return k
}

func (p *connPool) dialConn(ctx context.Context) (*engineConn, error) {
	c, err := p.dialer.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	if p.tls == nil {
		return newConn(c, c), nil
	}
	secure := tls.Client(c, p.tls)
	shaken, cancel := context.WithTimeout(ctx, tlsTimeout)
	defer cancel()
	if err := secure.HandshakeContext(shaken); err != nil {
		_ = c.Close()
		return nil, err
	}
	return newConn(secure, c), nil
}

// releaseConn keeps a connection whose last response was read to its end.
func (p *connPool) releaseConn(k *engineConn) {
	if !p.keepIdle(k) {
		k.abort()
	}
	<-p.inUse
}

func (p *connPool) keepIdle(k *engineConn) bool {
	k.idleSince = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.idle = append(p.mu.idle, k)
	if p.mu.sweep == nil {
		p.mu.sweep = time.AfterFunc(p.idleTimeout, p.closeExpired)
	}
	return true
}

// dropConn closes a connection that cannot be reused.
func (p *connPool) dropConn(k *engineConn) {
	k.abort()
	<-p.inUse
}

// closeExpired closes connections that were idle for too long, and schedules itself for the others.
func (p *connPool) closeExpired() {
	for _, k := range p.takeExpired(time.Now()) {
		k.abort()
	}
}

func (p *connPool) takeExpired(now time.Time) (old []*engineConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.mu.idle) && now.Sub(p.mu.idle[n].idleSince) >= p.idleTimeout {
		n++
	}
	old = slices.Clone(p.mu.idle[:n])
	p.mu.idle = slices.Delete(p.mu.idle, 0, n)
	p.mu.sweep = nil
	if len(p.mu.idle) > 0 {
		p.mu.sweep = time.AfterFunc(p.idleTimeout-now.Sub(p.mu.idle[0].idleSince), p.closeExpired)
	}
	return old
}

// closeIdle closes the idle connections.
func (p *connPool) closeIdle() {
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle = nil
	p.mu.Unlock()
	for _, k := range idle {
		k.abort()
	}
}

// close closes the idle connections; connections in use are closed after their calls.
func (p *connPool) close() {
	p.mu.Lock()
	p.mu.closed = true
	if p.mu.sweep != nil {
		p.mu.sweep.Stop()
	}
	p.mu.Unlock()
	p.closeIdle()
}
