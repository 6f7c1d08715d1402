package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

// certify writes a new certificate and its key, and returns a pool which trusts it.
func certify(t *testing.T, name, certPath, keyPath string) *x509.CertPool {
	t.Helper()
	p := fixturetest.NewPair(t, fixturetest.CertOptions{Name: name})
	write(t, certPath, p.Cert)
	write(t, keyPath, p.Key)
	return p.Pool
}

const (
	adminKey = "sk-admin-0123456789"
	userKey  = "sk-user-0123456789a"
)

// startGuarded is start with TLS and keys.
func startGuarded(t *testing.T, settings ...string) (s *server, certPath, keyPath string) {
	t.Helper()
	dir := t.TempDir()
	certPath, keyPath = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	keyFile := filepath.Join(dir, "keys.yaml")
	roots := certify(t, "first", certPath, keyPath)
	write(t, keyFile, []byte("keys:\n- {name: admin, key: "+adminKey+", admin: true}\n- {name: user, key: "+userKey+"}\n"))
	s = start(t, append(settings, "tls-cert="+certPath, "tls-key="+keyPath, "api-key-file="+keyFile, "access-log=on")...)
	transport := s.client.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	transport.ForceAttemptHTTP2 = true
	return s, certPath, keyPath
}

// TestGuarded: with TLS and keys the API is served over HTTP/2 to clients with a key, and
// new files are taken over while it runs.
func TestGuarded(t *testing.T) {
	t.Parallel()
	s, certPath, keyPath := startGuarded(t)
	if !strings.HasPrefix(s.url, "https://") {
		t.Fatalf("the URL is %s", s.url)
	}
	body := map[string]any{"model": "penstock-tiny", "prompt": "hello", "max_tokens": 4}
	for _, tt := range []struct {
		method, path, key string
		body              any
		status            int
	}{
		{"GET", "/health", "", nil, 200},
		{"GET", "/metrics", "", nil, 401},
		{"GET", "/v1/config", userKey, nil, 403},
		{"GET", "/v1/config", adminKey, nil, 200},
		{"GET", "/v1/router/workers", "", nil, 401},
		{"GET", "/v1/router/workers", adminKey, nil, 200},
		{"POST", "/v1/completions", "", body, 401},
		{"POST", "/v1/completions", userKey, body, 200},
	} {
		resp, data := s.do(tt.method, tt.path, tt.body, "x-api-key", tt.key)
		if resp.StatusCode != tt.status || resp.ProtoMajor != 2 {
			t.Errorf("%s %s with %q: %s %s %s", tt.method, tt.path, tt.key, resp.Proto, resp.Status, data)
		}
	}
	host := strings.TrimPrefix(s.url, "https://")
	if conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	if resp, err := http.Get("http://" + host + "/health"); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %v, %v", resp, err)
	} else {
		resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	}
	// A line comes when a request is over, which is after its answer.
	until(t, func() bool {
		text := s.log.String()
		return strings.Contains(text, "component=access method=POST path=/v1/completions status=200") && strings.Contains(text, "key=user")
	})
	if text := s.log.String(); strings.Contains(text, "sk-") {
		t.Errorf("the log has a key:\n%s", text)
	}

	certify(t, "second", certPath, keyPath)
	until(t, func() bool {
		conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName == "second"
	})
}

// The beginning of an HTTP/2 connection, an empty SETTINGS frame, and a request for
// a path that has a body to come; the headers are in the plainest form of HPACK.
const (
	preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
)

func headersFrame(flags byte) string {
	block := "\x83\x87\x41\x01x\x44\x0f/v1/completions" // POST, https, authority, path
	return string([]byte{0, 0, byte(len(block)), 1, flags, 0, 0, 0, 1}) + block
}

// TestSlowClients: a client which is slow at any stage of a connection is cut off, however
// many there are, and others are served meanwhile.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	s, _, _ := startGuarded(t, "header-timeout=5s", "body-timeout=5s", "write-timeout=5s", "idle-timeout=5s")
	// A client that is in time opens its own connection: one that was idle may be closed at the moment at which it is used again.
	s.client.Transport.(*http.Transport).DisableKeepAlives = true
	host := strings.TrimPrefix(s.url, "https://")
	const each = 25
	var all, sent sync.WaitGroup
	for name, c := range map[string]struct {
		proto string // of TLS; "" sends what is to be sent as it is
		send  string
	}{
		"nothing":                     {"", ""},
		"half a handshake":            {"", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		"nothing after the handshake": {"http/1.1", ""},
		"half of the headers":         {"http/1.1", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-A: "},
		"half of the body":            {"http/1.1", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: " + userKey + "\r\nContent-Length: 100\r\n\r\n{"},
		"headers without an end":      {"http/1.1", "GET /live HTTP/1.1\r\n" + strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 100)},
		"h2: no preface":              {"h2", "PRI * HT"},
		"h2: nothing after settings":  {"h2", preface + settings},
		"h2: half of a frame":         {"h2", preface + settings + headersFrame(4)[:20]},
		"h2: headers without an end":  {"h2", preface + settings + headersFrame(0)},
		"h2: no body":                 {"h2", preface + settings + headersFrame(4)},
	} {
		for range each {
			sent.Add(1)
			all.Go(func() {
				if err := untilCut(t, host, c.proto, c.send, sent.Done); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	sent.Wait() // their handshakes are not to take the time of a client which is in time
	for range 10 {
		if resp, data := s.do(http.MethodPost, "/v1/completions", map[string]any{"model": "penstock-tiny", "prompt": "hello", "max_tokens": 4}, "x-api-key", userKey); resp.StatusCode != 200 {
			t.Errorf("meanwhile: %s %s", resp.Status, data)
		}
	}
	all.Wait()
}

// untilCut sends on a new connection, calls sent, and waits until the server closes it.
func untilCut(t *testing.T, host, proto, send string, sent func()) error {
	isSent := sync.OnceFunc(sent)
	defer isSent()
	raw, err := net.Dial("tcp", host)
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := raw
	if proto != "" {
		conn = tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}})
	}
	_ = conn.SetDeadline(time.Now().Add(fixturetest.TimeLeft(t)))
	// The server may close while this is being written.
	_, _ = io.WriteString(conn, send)
	isSent()
	_, err = io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the connection stays open")
	}
	return nil
}

// TestKeyFileTakenOver: a key that is added works without a restart.
func TestKeyFileTakenOver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, path, []byte("keys: [{name: user, key: "+userKey+"}]"))
	s := start(t, "api-key-file="+path)
	status := func(key string) int {
		resp, _ := s.do(http.MethodGet, "/v1/models", nil, "Authorization", "Bearer "+key)
		return resp.StatusCode
	}
	if a, b := status(userKey), status(adminKey); a != 200 || b != 401 {
		t.Fatalf("%d, %d", a, b)
	}
	write(t, path, bytes.Replace([]byte("keys: [{name: other, key: KEY}]"), []byte("KEY"), []byte(adminKey), 1))
	until(t, func() bool { return status(adminKey) == 200 })
	if got := status(userKey); got != 401 {
		t.Errorf("the old key: %d", got)
	}
}
