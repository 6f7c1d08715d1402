package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock/core/fault"
)

// HTTP is the request plane over HTTP/2, in clear with prior knowledge or over
// TLS. Addresses are "http://host:port" and "https://host:port". The calls of one
// process to one server are streams of one connection. The bytes are in
// docs/format/rpc-http.md.
//
// A handler is ahead of its caller by the credit, and by what the flow control of
// HTTP/2 lets into the socket and into the caller's window of the stream.
type HTTP struct {
	cfg       HTTPConfig
	dialer    *httpDialer
	transport *http.Transport
}

var _ Plane = (*HTTP)(nil)

const (
	// httpWindow is how many bytes of one stream may be under way unread, in
	// either direction.
	httpWindow = 256 << 10
	// httpServerWindow is the same of a connection towards a server, which reads
	// at once. Towards callers there is no bound but that of their streams: one
	// slow caller must not stop the others.
	httpServerWindow = 2 << 20
	// spareStreams are those of a connection beyond the calls that a server takes,
	// so that one too many is told so instead of waiting in silence.
	spareStreams = 256
	// httpIdle is how long a connection without calls is kept.
	httpIdle = 5 * time.Minute
	// httpDial is how long an attempt to connect may take, TLS included.
	httpDial = 2 * time.Second
	// bodyTime is how long a body may take from its first byte to its last.
	bodyTime = 30 * time.Second
	// lastGoodbye is how long a server whose answers are written waits for its
	// callers to leave. They have what they need, and net/http takes a second.
	lastGoodbye = 100 * time.Millisecond
)

// NewHTTP returns a plane that talks to nobody yet. Whoever made it closes it.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := newHTTPDialer(cfg.KeepAlive, cfg.ClientTLS)
	conf := cfg.http2()
	conf.StrictMaxConcurrentRequests = true
	return &HTTP{cfg: cfg, dialer: d, transport: &http.Transport{
		DialContext:        d.dial,
		DialTLSContext:     d.dialTLS,
		MaxConnsPerHost:    1,
		IdleConnTimeout:    httpIdle,
		DisableCompression: true,
		Protocols:          http2Only(),
		HTTP2:              conf,
	}}, nil
}

// http2 returns what both ends of a connection have in common.
func (c *HTTPConfig) http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxReceiveBufferPerStream: httpWindow,
		SendPingTimeout:           c.KeepAlive / 2,
		PingTimeout:               lateShare * c.KeepAlive, // silenceConn is sooner
		WriteByteTimeout:          lateShare * c.KeepAlive,
	}
}

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Close closes the connections: calls in progress end in Unavailable, as do later
// ones. Servers are not affected. It is idempotent.
func (p *HTTP) Close() {
	p.transport.CloseIdleConnections()
	p.dialer.close()
}

// Serve implements Plane. addr is "host:port" or a URL; an address that is in use
// is a Conflict. Handlers in progress outlive ctx: they end by themselves or with
// their callers.
func (p *HTTP) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	at, err := p.listenAt(addr)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return errListen(at, err)
	}
	told, err := advertised(p.cfg.Advertise, l.Addr())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s := newHTTPServer(&p.cfg, h)
	conf := p.cfg.http2()
	conf.MaxConcurrentStreams = p.cfg.MaxCalls + spareStreams
	conf.MaxReceiveBufferPerConnection = httpServerWindow
	srv := &http.Server{
		Handler:           s,
		Protocols:         http2Only(),
		HTTP2:             conf,
		ReadHeaderTimeout: bodyTime,
		IdleTimeout:       2 * httpIdle, // the caller's is the shorter
		ConnState:         watchActive(p.cfg.KeepAlive),
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- p.accept(srv, silenceListener{l}) }()
	if ready != nil {
		ready(p.scheme() + "://" + told)
	}
	select {
	case err := <-done: // the listener broke
		s.drain()
		s.calls.Wait()
		return errors.Join(fault.New(fault.Unavailable, "serve %s: %w", at, err), srv.Close())
	case <-ctx.Done():
	}
	s.drain()
	shutdown(srv, s)
	<-done
	return nil
}

func (p *HTTP) accept(srv *http.Server, l net.Listener) error {
	if p.cfg.ServerTLS == nil {
		return srv.Serve(l)
	}
	srv.TLSConfig = p.cfg.ServerTLS.Clone()
	return srv.ServeTLS(l, "", "")
}

// shutdown closes the listener, tells the callers to come no more on their
// connections, and returns when the calls in progress are done and their ends are
// written.
func shutdown(srv *http.Server, s *httpServer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = srv.Shutdown(ctx) // it fails when ctx ends, and Close does the rest
	}()
	s.calls.Wait()
	t := time.AfterFunc(lastGoodbye, cancel)
	defer t.Stop()
	<-gone
	_ = srv.Close()
}

// listenAt returns the host:port that addr, as Serve takes it, stands for.
func (p *HTTP) listenAt(addr string) (string, error) {
	if addr == "" {
		return p.cfg.Listen, nil
	}
	scheme, at, ok := strings.Cut(addr, "://")
	if !ok {
		return addr, nil
	}
	if scheme != p.scheme() {
		return "", fault.New(fault.Invalid, "serve %.100q: this plane's addresses begin with %s://", addr, p.scheme())
	}
	return at, nil
}

func (p *HTTP) scheme() string {
	if p.cfg.ServerTLS != nil {
		return "https"
	}
	return "http"
}

// httpTarget returns the URL of a method at addr.
func httpTarget(addr, method string) (*url.URL, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return nil, fault.New(fault.Unavailable, "call %s: %.100q is no address of the HTTP plane; it is http://HOST:PORT", method, addr)
	}
	u.Path = httpPath + method
	u.RawPath = httpPath + url.PathEscape(method)
	return u, nil
}
