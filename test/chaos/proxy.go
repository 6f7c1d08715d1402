package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// proxy passes connections on to one address, until it is cut: then no byte and no
// end of a connection goes through, in neither direction, and nobody is told. New
// connections are taken and left without an answer. When the cut ends, what was
// held up arrives, as it does after a network of TCP connections was torn.
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

// dialPatience bounds a proxy's or balancer's attempt to reach a process.
const dialPatience = 2 * time.Second

// newProxy listens at addr and passes on to target.
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

// cut holds everything up until mend.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
		p.mu.open = make(chan struct{})
	default: // it is cut
	}
}

// mend ends a cut.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.open:
	default:
		close(p.mu.open)
	}
}

// close ends everything, and waits.
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

// pass waits until b may pass, and damages it if the proxy is to.
func (p *proxy) pass(b []byte) {
	p.bits.flip(b)
	p.mu.Lock()
	open := p.mu.open
	p.mu.Unlock()
	<-open
}

// keep notes a connection for close; false if that was called.
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

// join copies between two connections until both directions are at their end;
// before anything goes through, pass is asked, with nil for an end. An end without an error is passed
// on as such, an error ends both.
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

// balancer passes each connection on to one of several processes, in turn, and
// tries the next one if it cannot connect. That is all it does: it looks at no
// request, asks for no health, and repeats nothing.
type balancer struct {
	ln     net.Listener
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		targets []string
		next    int
		refused int // connects that went elsewhere
		lost    int // connections that nobody took
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

// close ends all connections and waits.
func (b *balancer) close() {
	_ = b.ln.Close()
	b.cancel()
	b.wg.Wait()
}

// order returns all targets, the one whose turn it is first.
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

// retries returns how many connects went to another process than the one whose
// turn it was, and how many connections found none.
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

// dial connects to the first target that takes the connection.
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
