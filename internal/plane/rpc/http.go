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
	"penstock/internal/plane/endpoint"
)

// HTTPPlane is the request plane over HTTP/2, in clear text with prior knowledge or over TLS.
// Addresses are "http://host:port" and "https://host:port". The calls of one process to one server
// are streams of one connection. docs/format/rpc-http.md documents the bytes.
//
// net/http closes silent connections, by the wall clock: a process which was stopped for longer than
// the keep-alive loses its calls.
//
// A handler may be ahead of its caller by the credit, plus what HTTP/2 flow control admits into the
// socket and the caller's stream window.
type HTTPPlane struct {
	cfg       HTTPConfig
	transport *http.Transport
	// closed ends with Close, and every call with it.
	closed context.Context
	close  context.CancelFunc
}

var _ Plane = (*HTTPPlane)(nil)

const (
	// httpWindow is how many unread bytes of one stream may be in flight, in either direction.
	httpWindow = 256 << 10
	// httpServerWindow is the same for a connection towards a server, which reads at once. Towards
	// callers only the stream windows apply, so that one slow caller cannot block the others.
	httpServerWindow = 2 << 20
	// spareStreams is the number of streams per connection beyond the server's MaxCalls, so that an
	// excess call gets an error instead of waiting silently.
	spareStreams = 256
	// httpIdle is how long a connection without calls is kept open.
	httpIdle = 5 * time.Minute
	// bodyTimeout is how long a body may take from its first byte to its last.
	bodyTimeout = 30 * time.Second
	// shutdownGrace is how long a server whose answers are written waits for its callers to
	// disconnect. They have everything they need, and net/http would wait a second.
	shutdownGrace = 100 * time.Millisecond
)

// NewHTTPPlane returns a plane without connections. The caller must close it.
func NewHTTPPlane(cfg HTTPConfig) (*HTTPPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conf := cfg.http2Config()
	conf.StrictMaxConcurrentRequests = true
	timeout := min(cfg.KeepAlive, cfg.Dial)
	p := &HTTPPlane{cfg: cfg, transport: &http.Transport{
		DialContext:         newHTTPDialer(timeout).dialContext,
		TLSClientConfig:     cfg.ClientTLS.Clone(),
		TLSHandshakeTimeout: timeout,
		MaxConnsPerHost:     1,
		IdleConnTimeout:     httpIdle,
		DisableCompression:  true,
		Protocols:           http2Only(),
		HTTP2:               conf,
	}}
	p.closed, p.close = context.WithCancel(context.Background())
	return p, nil
}

// http2Config returns the settings common to both ends of a connection.
func (c *HTTPConfig) http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxReceiveBufferPerStream: httpWindow,
		SendPingTimeout:           c.KeepAlive / 2,
		PingTimeout:               c.KeepAlive / 2,
		WriteByteTimeout:          c.KeepAlive,
	}
}

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Close closes the connections of callers. Calls in progress and later calls end with Unavailable.
// It does not affect servers. It is idempotent.
func (p *HTTPPlane) Close() {
	p.close()
	p.transport.CloseIdleConnections() // each call closes the connection which it was the last to use
}

// Serve implements Plane. addr is "host:port" or a URL. An address in use is a Conflict. Handlers
// in progress outlive ctx: they end when they return or when their callers disconnect.
func (p *HTTPPlane) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	at, err := p.listenAddr(addr)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return endpoint.ListenError(at, err)
	}
	told, err := endpoint.AdvertiseAddress("rpc", p.cfg.Advertise, l.Addr())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s := newHTTPServer(&p.cfg, h)
	conf := p.cfg.http2Config()
	conf.MaxConcurrentStreams = p.cfg.MaxCalls + spareStreams
	conf.MaxReceiveBufferPerConnection = httpServerWindow
	srv := &http.Server{
		Handler:           s,
		Protocols:         http2Only(),
		HTTP2:             conf,
		ReadHeaderTimeout: bodyTimeout,
		IdleTimeout:       2 * httpIdle, // longer than the caller's
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- p.serveListener(srv, l) }()
	if ready != nil {
		ready(p.urlScheme() + "://" + told)
	}
	select {
	case err := <-done: // the listener failed
		s.startDraining()
		s.calls.Wait()
		return errors.Join(fault.New(fault.Unavailable, "serve %s: %w", at, err), srv.Close())
	case <-ctx.Done():
	}
	s.startDraining()
	shutdownServer(srv, s)
	<-done
	return nil
}

func (p *HTTPPlane) serveListener(srv *http.Server, l net.Listener) error {
	if p.cfg.ServerTLS == nil {
		return srv.Serve(l)
	}
	srv.TLSConfig = p.cfg.ServerTLS.Clone()
	return srv.ServeTLS(l, "", "")
}

// shutdownServer closes the listener, tells callers to use other connections, and returns when the
// calls in progress are done and their outcomes are written.
func shutdownServer(srv *http.Server, s *httpServer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = srv.Shutdown(ctx) // fails when ctx ends; Close then does the rest
	}()
	s.calls.Wait()
	t := time.AfterFunc(shutdownGrace, cancel)
	defer t.Stop()
	<-gone
	_ = srv.Close()
}

// listenAddr returns the host:port for addr, which is an argument of Serve.
func (p *HTTPPlane) listenAddr(addr string) (string, error) {
	if addr == "" {
		return p.cfg.Listen, nil
	}
	scheme, at, ok := strings.Cut(addr, "://")
	if !ok {
		return addr, nil
	}
	if scheme != p.urlScheme() {
		return "", fault.New(fault.Invalid, "serve %.100q: this plane's addresses begin with %s://", addr, p.urlScheme())
	}
	return at, nil
}

func (p *HTTPPlane) urlScheme() string {
	if p.cfg.ServerTLS != nil {
		return "https"
	}
	return "http"
}

// callURL returns the URL of a method at addr.
func callURL(addr, method string) (*url.URL, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return nil, fault.New(fault.Unavailable, "call %s: %.100q is no address of the HTTP plane; it is http://HOST:PORT", method, addr)
	}
	u.Path = httpPath + method
	u.RawPath = httpPath + url.PathEscape(method)
	return u, nil
}
