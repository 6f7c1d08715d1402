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
type proxy struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup
	bits   flipper
	mu     struct {
		sync.Mutex
		open   chan struct{} // closed while bytes may pass
		conns  map[net.Conn]bool
		closed bool
	}
}

// dialPatience bounds a connection attempt of a proxy or balancer.
const dialPatience = 2 * time.Second

// newCutProxyConn listens at addr and forwards to target.
func newProxy(addr, target string) (*proxy, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target, ln: ln}
	p.mu.open = make(chan struct{})
	close(p.mu.open)
	p.mu.conns = map[net.Conn]bool{}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

// cutTraffic holds everything up until restoreTraffic.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
		p.mu.open = make(chan struct{})
	default: // already cut
	}
}

// restoreTraffic ends a cut.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
	default:
		close(p.mu.open)
	}
}

// closeAll ends everything, and waits.
func (p *proxy) close() {
	_ = p.ln.Close()
	p.mend()
	p.mu.Lock()
	p.mu.closed = true
	for c := range p.mu.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// awaitOpen waits until b may pass, and damages it if flipping is on.
func (p *proxy) pass(b []byte) {
	p.bits.flip(b)
	p.mu.Lock()
	open := p.mu.open
	p.mu.Unlock()
	<-open
}

// addConn registers a connection for closeAll; false after closeAll.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.conns[c] = true
	return true
}

func (p *proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c)
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *proxy) serve(in net.Conn) {
	defer p.drop(in)
	if !p.keep(in) {
		return
	}
	p.pass(nil)
	out, err := net.DialTimeout("tcp", p.target, dialPatience)
	if err != nil {
		return
	}
	defer p.drop(out)
	if !p.keep(out) {
		return
	}
	join(in, out, p.pass)
}

// joinConns copies between two connections until both directions have ended; it calls pass before anything
// goes through, with nil for an end. An end without an error is forwarded as such, an error ends both.
func join(a, b net.Conn, pass func([]byte)) {
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
type balancer struct {
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

func newBalancer(addr string, targets ...string) (*balancer, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	b := &balancer{ln: ln}
	b.mu.targets = targets
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			b.wg.Go(func() { b.serve(ctx, c) })
		}
	})
	return b, nil
}

func (b *balancer) url() string { return "http://" + b.ln.Addr().String() }

// closeAll ends all connections and waits.
func (b *balancer) close() {
	_ = b.ln.Close()
	b.cancel()
	b.wg.Wait()
}

// targetOrder returns all targets, starting with the next in turn.
func (b *balancer) order() []string {
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
func (b *balancer) retries() (refused, lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.refused, b.mu.lost
}

func (b *balancer) serve(ctx context.Context, in net.Conn) {
	defer in.Close()
	out := b.dial(ctx)
	if out == nil {
		return
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = in.Close()
		_ = out.Close()
	})
	defer stop()
	join(in, out, func([]byte) {})
}

// dialNext connects to the first target which accepts the connection.
func (b *balancer) dial(ctx context.Context) net.Conn {
	d := net.Dialer{Timeout: dialPatience}
	for _, target := range b.order() {
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
