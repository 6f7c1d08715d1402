package load

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dialTimeout bounds the time to open a connection, TLS included.
const dialTimeout = 10 * time.Second

// Endpoint is a server with the OpenAI API, and how to reach it.
type Endpoint struct {
	// URL is its address, such as http://127.0.0.1:8000; a path before /v1 is kept, and
	// /v1 at the end may be left out.
	URL string
	// Key is sent to the server as a bearer token; "" is none.
	Key string
	// Header has additional headers of each request.
	Header http.Header
	// TLS verifies https servers; nil uses the system's defaults.
	TLS *tls.Config
}

// reservedHeaders are the headers which the client sets itself.
var reservedHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Accept-Encoding", "X-Request-Id"}

// target is a parsed endpoint.
type target struct {
	addr    string // host:port
	tls     *tls.Config
	path    string // before /v1
	host    string
	headers string // the headers of every request
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (e *Endpoint) resolveTarget() (*target, error) {
	text := e.URL
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("endpoint: want a URL like http://127.0.0.1:8000, without credentials and query")
	}
	p := &target{host: u.Host, path: strings.TrimSuffix(strings.TrimRight(u.EscapedPath(), "/"), "/v1")}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
		p.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if e.TLS != nil {
			p.tls = e.TLS.Clone()
		}
		p.tls.NextProtos = []string{"http/1.1"}
		if p.tls.ServerName == "" {
			p.tls.ServerName = u.Hostname()
		}
	default:
		return nil, fmt.Errorf("endpoint: scheme %q, want http or https", u.Scheme)
	}
	p.addr = net.JoinHostPort(u.Hostname(), port)
	p.dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	p.headers, err = e.formatHeaders()
	return p, err
}

// formatHeaders returns the headers of every request in wire form.
func (e *Endpoint) formatHeaders() (string, error) {
	h := http.Header{
		"User-Agent":   {"penstock-bench"},
		"Content-Type": {"application/json"},
		"Accept":       {"text/event-stream"},
	}
	if e.Key != "" {
		h.Set("Authorization", "Bearer "+e.Key)
	}
	for name, values := range e.Header {
		if !validName([]byte(name)) || slices.Contains(reservedHeaders, http.CanonicalHeaderKey(name)) {
			return "", fmt.Errorf("endpoint: header %q cannot be set", name)
		}
		h[http.CanonicalHeaderKey(name)] = values
	}
	var b strings.Builder
	for name, values := range h {
		for _, v := range values {
			if !validValue([]byte(v)) {
				return "", fmt.Errorf("endpoint: header %q has bytes that no header has", name)
			}
		}
	}
	if err := h.Write(&b); err != nil { // sorted by name
		return "", fmt.Errorf("endpoint headers: %w", err)
	}
	return b.String() + "Accept-Encoding: identity\r\n", nil
}

// appendRequest appends a request with body to path under the endpoint's own path.
func (p *target) appendRequest(dst []byte, path string, id, body []byte) []byte {
	dst = append(dst, "POST "...)
	dst = append(dst, p.path...)
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, p.host...)
	dst = append(dst, "\r\n"...)
	dst = append(dst, p.headers...)
	dst = append(dst, "X-Request-Id: "...)
	dst = append(dst, id...)
	dst = append(dst, "\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// dialConn opens a connection.
func (p *target) dialConn(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", p.addr)
	if err != nil || p.tls == nil {
		return conn, err
	}
	secure := tls.Client(conn, p.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error says more
		return nil, err
	}
	return secure, nil
}
