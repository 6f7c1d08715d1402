package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// tcpPeer is the connection to one address, from the decision to dial it until its last call has
// ended.
type tcpPeer struct {
	addr    string
	cancel  context.CancelFunc
	ready   chan struct{} // closed when link or err is set
	link    *clientLink
	dialErr error
}

// acquireLink returns the connection to addr. If there is none, it dials. Concurrent callers share
// one attempt, which continues if one of them gives up. If an attempt that was already in progress
// fails, its result may be stale, so acquireLink makes a new attempt.
func (t *TCPPlane) acquireLink(ctx context.Context, addr string) (*clientLink, error) {
	for stale := true; ; stale = false {
		p, ours, err := t.peerFor(addr)
		if err != nil {
			return nil, err
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if p.dialErr == nil || ours || !stale {
			return p.link, p.dialErr
		}
	}
}

// peerFor returns the connection to addr, and whether this call started the attempt to dial it.
func (t *TCPPlane) peerFor(addr string) (p *tcpPeer, ours bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, false, errors.New("this process is stopping")
	}
	if p := t.mu.peers[addr]; p != nil {
		return p, false, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	p = &tcpPeer{addr: addr, cancel: cancel, ready: make(chan struct{})}
	t.mu.peers[addr] = p
	t.mu.all[p] = true
	t.links.Add(1)
	go func() {
		defer t.links.Done()
		defer cancel()
		t.dialAndServe(ctx, p)
		t.forgetPeer(p)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.mu.all, p)
	}()
	return p, true, nil
}

// forgetPeer removes p, so that the next call to its address dials.
func (t *TCPPlane) forgetPeer(p *tcpPeer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.peers[p.addr] == p {
		delete(t.mu.peers, p.addr)
	}
}

// dialAndServe dials p and serves the connection until it ends.
func (t *TCPPlane) dialAndServe(ctx context.Context, p *tcpPeer) {
	conn, greeting, err := t.dialAndGreet(ctx, trimTCPScheme(p.addr))
	if err != nil {
		p.dialErr = fmt.Errorf("%s cannot be reached: %w", p.addr, err)
		t.forgetPeer(p)
		close(p.ready)
		return
	}
	p.link = newClientLink(t, p, conn, greeting)
	defer context.AfterFunc(ctx, func() { p.link.closeWith(errClosed) })()
	close(p.ready)
	p.link.serveConn()
}

// dialAndGreet dials addr and exchanges greetings.
func (t *TCPPlane) dialAndGreet(ctx context.Context, addr string) (net.Conn, hello, error) {
	// A busy process may notice late that the connection is established.
	ctx, release := withAwakeTimeout(ctx, t.cfg.Dial)
	defer release()
	dialled, err := t.dial(ctx, addr)
	if err != nil {
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			err = fmt.Errorf("no connection within %v", t.cfg.Dial)
		}
		return nil, hello{}, err
	}
	stop := context.AfterFunc(ctx, func() { dialled.SetDeadline(time.Unix(1, 0)) })
	conn, greeting, err := t.exchangeGreetings(ctx, dialled, addr)
	if !stop() { // the timeout has passed, or the plane is closing
		err = fmt.Errorf("no greeting within %v", t.cfg.Dial)
	}
	if err != nil {
		conn.Close()
		return nil, hello{}, err
	}
	return conn, greeting, nil
}

// exchangeGreetings sends the client's greeting and reads the server's, within TLS if configured.
// The returned connection replaces conn.
func (t *TCPPlane) exchangeGreetings(ctx context.Context, conn net.Conn, addr string) (net.Conn, hello, error) {
	if t.cfg.ClientTLS != nil {
		secure := tls.Client(conn, clientTLS(t.cfg.ClientTLS, addr))
		if err := secure.HandshakeContext(ctx); err != nil {
			return conn, hello{}, fmt.Errorf("TLS handshake (has the server rpc TLS settings, and do they fit ours?): %w", err)
		}
		conn = secure
	}
	ours := hello{minVersion: tcpVersion, maxVersion: tcpVersion, token: t.cfg.Token, frames: Credit, bytes: tcpWindow}
	if t.cfg.ClientTLS == nil && !t.noChecksums { // TLS detects damage by itself
		ours.checksums = checksumsUsed
	}
	if _, err := conn.Write(encodeGreeting(&ours)); err != nil {
		return conn, hello{}, err
	}
	theirs, err := readGreeting(conn)
	if err == nil && ours.checksums == checksumsUsed && theirs.checksums == checksumsKnown {
		err = fmt.Errorf("the server did not get our greeting as it was sent: %w", errDamaged)
	}
	return conn, theirs, err
}

// readGreeting reads the server's answer to a greeting: its own greeting, or the reason of a
// refusal.
func readGreeting(r io.Reader) (hello, error) {
	if err := readMagic(r); err != nil {
		return hello{}, greetingError(err)
	}
	t, payload, err := readFirstFrame(r)
	if err != nil {
		return hello{}, greetingError(err)
	}
	switch t {
	case frameHello:
		h, err := decodeHello(payload)
		if err == nil && !h.speaksOurVersion() {
			err = errVersions(&h)
		}
		return h, err
	case frameGoaway:
		_, why, err := decodeGoaway(payload)
		if err != nil {
			return hello{}, err
		}
		return hello{}, fmt.Errorf("the server refused: %w", why)
	default:
		return hello{}, fmt.Errorf("the first frame is of type %d", t)
	}
}

func greetingError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server closed the connection instead of greeting (it may want TLS, or have too many connections)")
	}
	return fmt.Errorf("waiting for the server's greeting: %w", err)
}

func errVersions(theirs *hello) error {
	return fmt.Errorf("the peer speaks versions %d to %d of the request plane, this side %d; run builds that share one", theirs.minVersion, theirs.maxVersion, tcpVersion)
}

// clientTLS returns c with ServerName set to the host of addr, unless c already has a name or skips
// verification.
func clientTLS(c *tls.Config, addr string) *tls.Config {
	if c.ServerName != "" || c.InsecureSkipVerify {
		return c
	}
	c = c.Clone()
	c.ServerName, _, _ = net.SplitHostPort(addr)
	return c
}
