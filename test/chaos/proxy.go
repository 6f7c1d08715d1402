package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// cutProxyConn forwards connections to one address until it is cut: then no byte and no end of a connection
// passes, in either direction, without notice. New connections are accepted and left without an answer. When
// the cut ends, the held-up data arrives, as after a network outage under TCP.
type cutProxyConn struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup
	bits   bitFlipper
	mu     struct {
		sync.Mutex
		open   chan struct{} // closed while bytes may pass
		conns  map[net.Conn]bool
		closed bool
	}
}

const (
	// dialPatience bounds a connection attempt of a proxy or client, which has no other target.
	dialPatience = time.Minute
	// balancerPatience bounds an attempt of a balancer, which tries the next target then.
	balancerPatience = 2 * time.Second
)

// newCutProxyConn listens at addr and forwards to target.
func newCutProxyConn(addr, target string) (*cutProxyConn, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &cutProxyConn{target: target, ln: ln}
	p.mu.open = make(chan struct{})
	close(p.mu.open)
	p.mu.conns = map[net.Conn]bool{}
	p.wg.Go(p.acceptConns)
	return p, nil
}

func (p *cutProxyConn) listenAddr() string { return p.ln.Addr().String() }

// cutTraffic holds everything up until restoreTraffic.
func (p *cutProxyConn) cutTraffic() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
		p.mu.open = make(chan struct{})
	default: // already cut
	}
}

// restoreTraffic ends a cut.
func (p *cutProxyConn) restoreTraffic() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
	default:
		close(p.mu.open)
	}
}

// closeAll ends everything, and waits.
func (p *cutProxyConn) closeAll() {
	_ = p.ln.Close()
	p.restoreTraffic()
	p.mu.Lock()
	p.mu.closed = true
	for c := range p.mu.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// awaitOpen waits until b may pass, and damages it if flipping is on.
func (p *cutProxyConn) awaitOpen(b []byte) {
	p.bits.damageBytes(b)
	p.mu.Lock()
	open := p.mu.open
	p.mu.Unlock()
	<-open
}

// addConn registers a connection for closeAll; false after closeAll.
func (p *cutProxyConn) addConn(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.conns[c] = true
	return true
}

func (p *cutProxyConn) dropConn(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c)
}

func (p *cutProxyConn) acceptConns() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serveConn(c) })
	}
}

func (p *cutProxyConn) serveConn(in net.Conn) {
	defer p.dropConn(in)
	if !p.addConn(in) {
		return
	}
	p.awaitOpen(nil)
	out, err := net.DialTimeout("tcp", p.target, dialPatience)
	if err != nil {
		return
	}
	defer p.dropConn(out)
	if !p.addConn(out) {
		return
	}
	joinConns(in, out, p.awaitOpen)
}

// joinConns copies between two connections until both directions have ended; it calls pass before anything
// goes through, with nil for an end. An end without an error is forwarded as such, an error ends both.
func joinConns(a, b net.Conn, pass func([]byte)) {
	var both sync.WaitGroup
	way := func(dst, src net.Conn) {
		err := copyThrough(dst, src, pass)
		pass(nil)
		if err != nil {
			_ = a.Close()
			_ = b.Close()
			return
		}
		if half, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // it may be gone
		}
	}
	both.Go(func() { way(a, b) })
	both.Go(func() { way(b, a) })
	both.Wait()
}

func copyThrough(dst io.Writer, src io.Reader, pass func([]byte)) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			pass(buf[:n])
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// connBalancer forwards each connection to one of several processes, in turn, and tries the next one if it
// cannot connect. It does not look at requests, check health, or retry.
type connBalancer struct {
	ln     net.Listener
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		targets []string
		next    int
		refused int // connects which went elsewhere
		lost    int // connections which no process accepted
	}
}

func newConnBalancer(addr string, targets ...string) (*connBalancer, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	b := &connBalancer{ln: ln}
	b.mu.targets = targets
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			b.wg.Go(func() { b.serveConn(ctx, c) })
		}
	})
	return b, nil
}

// closeAll ends all connections and waits.
func (b *connBalancer) closeAll() {
	_ = b.ln.Close()
	b.cancel()
	b.wg.Wait()
}

// targetOrder returns all targets, starting with the next in turn.
func (b *connBalancer) targetOrder() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.next++
	order := make([]string, 0, len(b.mu.targets))
	for i := range b.mu.targets {
		order = append(order, b.mu.targets[(b.mu.next+i)%len(b.mu.targets)])
	}
	return order
}

// retryCounts returns how many connects went to another process than the next in turn, and how many
// connections found none.
func (b *connBalancer) retryCounts() (refused, lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.refused, b.mu.lost
}

func (b *connBalancer) serveConn(ctx context.Context, in net.Conn) {
	defer in.Close()
	out := b.dialNext(ctx)
	if out == nil {
		return
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = in.Close()
		_ = out.Close()
	})
	defer stop()
	joinConns(in, out, func([]byte) {})
}

// dialNext connects to the first target which accepts the connection.
func (b *connBalancer) dialNext(ctx context.Context) net.Conn {
	d := net.Dialer{Timeout: balancerPatience}
	for _, target := range b.targetOrder() {
		out, err := d.DialContext(ctx, "tcp", target)
		if err == nil {
			return out
		}
		b.mu.Lock()
		b.mu.refused++
		b.mu.Unlock()
	}
	b.mu.Lock()
	b.mu.lost++
	b.mu.Unlock()
	return nil
}
