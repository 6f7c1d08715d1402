package rpc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

func TestTCP(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane { return newTCP(t, rpc.TCPConfig{}) })
}

// With certificates on both sides and a token it is the same plane.
func TestTCPWithTLSAndToken(t *testing.T) {
	server, client := rpc.Certificates(t)
	rpctest.Run(t, func(t *testing.T) rpc.Plane {
		return newTCP(t, rpc.TCPConfig{ServerTLS: server, ClientTLS: client, Token: "open sesame"})
	})
}

// newTCP returns a plane that the end of the test closes.
func newTCP(t *testing.T, cfg rpc.TCPConfig) *rpc.TCPPlane {
	t.Helper()
	p, err := rpc.NewTCPPlane(rpc.WithPatience(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTCPLongPrompt(t *testing.T) { testLongPrompt(t, newTCP(t, rpc.TCPConfig{})) }

func TestTCPMethods(t *testing.T) { testMethods(t, newTCP(t, rpc.TCPConfig{})) }

// syncBuffer is a log that tests read while it is written.
type syncBuffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines chan struct{} // if not nil, gets one for each line
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines != nil {
		s.lines <- struct{}{}
	}
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// What does not fit is refused at once, and both sides say what to change. A
// token is in neither text.
func TestTCPMisfits(t *testing.T) {
	serverTLS, clientTLS := rpc.Certificates(t)
	uncertified := clientTLS.Clone()
	uncertified.Certificates = nil
	foreign := clientTLS.Clone()
	foreign.RootCAs = x509.NewCertPool()
	for _, c := range []struct {
		name           string
		server, client rpc.TCPConfig
		says, logs     string
	}{
		{"wrong token", rpc.TCPConfig{Token: "right"}, rpc.TCPConfig{Token: "wrong"}, "token", "token is missing or wrong"},
		{"no token", rpc.TCPConfig{Token: "right"}, rpc.TCPConfig{}, "token", "token is missing or wrong"},
		{"TLS at the server alone", rpc.TCPConfig{ServerTLS: serverTLS}, rpc.TCPConfig{}, "it may want TLS", "does not look like a TLS handshake"},
		{"TLS at the client alone", rpc.TCPConfig{}, rpc.TCPConfig{ClientTLS: clientTLS}, "TLS handshake", "the peer speaks TLS"},
		{"no certificate", rpc.TCPConfig{ServerTLS: serverTLS}, rpc.TCPConfig{ClientTLS: uncertified}, "", "certificate"},
		{"unknown certificate", rpc.TCPConfig{ServerTLS: serverTLS}, rpc.TCPConfig{ClientTLS: foreign}, "certificate", "bad certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := syncBuffer{lines: make(chan struct{}, 16)}
			c.server.Log = slog.New(slog.NewTextHandler(&log, nil))
			s, p := newTCP(t, c.server), newTCP(t, c.client)
			addr, stop := serveTCP(t, s, func(context.Context, string, []byte, func([]byte) error) error {
				t.Error("a handler was called")
				return nil
			})
			err := p.Call(t.Context(), addr, "m", nil, func([]byte) error { return nil })
			if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want Unavailable that says %q", err, c.says)
			}
			<-log.lines
			stop()
			if !strings.Contains(log.String(), c.logs) {
				t.Errorf("the log lacks %q: %s", c.logs, log.String())
			}
			for _, text := range []string{err.Error(), log.String()} {
				if strings.Contains(text, "right") || strings.Contains(text, "wrong token") || strings.Contains(text, `"wrong"`) {
					t.Errorf("a token is told: %s", text)
				}
			}
		})
	}
}

// serveTCP serves h at an address of p's choice until stop, which waits.
func serveTCP(t *testing.T, p *rpc.TCPPlane, h rpc.Handler) (addr string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- p.Serve(ctx, "", h, func(at string) { ready <- at }) }()
	addr = <-ready
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return addr, stop
}

// A peer which speaks another protocol is rejected without harm.
func TestTCPStrangers(t *testing.T) {
	log := syncBuffer{lines: make(chan struct{}, 16)}
	p := newTCP(t, rpc.TCPConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	addr, stop := serveTCP(t, p, func(context.Context, string, []byte, func([]byte) error) error { return nil })
	conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// An error is that the end came as a reset.
	if b, _ := io.ReadAll(conn); len(b) != 0 {
		t.Errorf("it was answered %q", b)
	}
	if err := p.Call(t.Context(), addr, "m", nil, nil); err != nil {
		t.Error(err)
	}
	<-log.lines
	stop()
	if !strings.Contains(log.String(), "not a Penstock request plane") {
		t.Errorf("the log does not say so: %s", log.String())
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}()
	err = p.Call(t.Context(), "tcp://"+l.Addr().String(), "m", nil, nil)
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "not a Penstock request plane") {
		t.Errorf("a web server: %v", err)
	}
}

func TestTCPAddresses(t *testing.T) {
	for _, c := range []struct {
		cfg       rpc.TCPConfig
		addr      string
		told, err string // their beginnings
	}{
		{cfg: rpc.TCPConfig{}, told: "tcp://127.0.0.1:"},
		{cfg: rpc.TCPConfig{}, addr: "127.0.0.1:0", told: "tcp://127.0.0.1:"},
		{cfg: rpc.TCPConfig{}, addr: "tcp://localhost:0", told: "tcp://127.0.0.1:"},
		{cfg: rpc.TCPConfig{Listen: "0.0.0.0:0"}, err: "serve [::]:"},
		{cfg: rpc.TCPConfig{Listen: ":0"}, err: "serve [::]:"},
		{cfg: rpc.TCPConfig{Listen: "0.0.0.0:0", Advertise: "worker-7.example"}, told: "tcp://worker-7.example:"},
		{cfg: rpc.TCPConfig{Listen: "0.0.0.0:0", Advertise: "worker-7.example:9000"}, told: "tcp://worker-7.example:9000"},
		{cfg: rpc.TCPConfig{Listen: "0.0.0.0:0", Advertise: "2001:db8::1"}, told: "tcp://[2001:db8::1]:"},
		{cfg: rpc.TCPConfig{Listen: "0.0.0.0:0", Advertise: "[2001:db8::1]:0"}, told: "tcp://[2001:db8::1]:"},
		{addr: "worker-7", err: `serve "worker-7": the address must be host:port`},
		{addr: "http://127.0.0.1:0", err: `serve "http://127.0.0.1:0"`},
	} {
		p := newTCP(t, c.cfg)
		ctx, cancel := context.WithCancel(t.Context())
		told := ""
		err := p.Serve(ctx, c.addr, nil, func(at string) { told = at; cancel() })
		cancel()
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) || !strings.HasPrefix(told, c.told) {
			t.Errorf("listen %q, advertise %q, serve %q: told %q, error %v", c.cfg.Listen, c.cfg.Advertise, c.addr, told, err)
		}
	}
	for _, addr := range []string{"mem-1", "http://127.0.0.1:1", "127.0.0.1:1", "tcp://", "tcp://127.0.0.1"} {
		if err := newTCP(t, rpc.TCPConfig{}).Call(t.Context(), addr, "m", nil, nil); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a call to %q: %v", addr, err)
		}
	}
}

func TestTCPConfig(t *testing.T) {
	for _, bad := range []rpc.TCPConfig{
		{Listen: "worker"},
		{Advertise: "0.0.0.0"},
		{Advertise: "tcp://host:1"},
		{ServerTLS: &tls.Config{}},
		{Token: strings.Repeat("x", 5000)},
		{Dial: -1},
		{Ping: time.Second, Dead: time.Second},
		{Conns: -1},
		{Calls: -1},
		{ConnBodies: 1},
		{Bodies: 100 << 20},
		{Answers: 1},
	} {
		if _, err := rpc.NewTCPPlane(bad); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v: %v, want Invalid", bad, err)
		}
	}
	_, err := rpc.NewTCPPlane(rpc.TCPConfig{Token: strings.Repeat("secret", 1000), Conns: -1})
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two problems are reported as %v", err)
	}
}

func TestTCPClose(t *testing.T) {
	s, p := newTCP(t, rpc.TCPConfig{}), newTCP(t, rpc.TCPConfig{})
	in, over := make(chan struct{}), make(chan struct{})
	addr, _ := serveTCP(t, s, func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		close(in)
		<-ctx.Done()
		close(over)
		return nil
	})
	called := make(chan error, 1)
	go func() { called <- p.Call(t.Context(), addr, "m", nil, nil) }()
	<-in
	p.Close()
	if err := <-called; fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the call in progress: %v, want Unavailable", err)
	}
	<-over
	if err := p.Call(t.Context(), addr, "m", nil, nil); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a call after it: %v, want Unavailable", err)
	}
	p.Close()
}

// The crash is for the log of the process that had it; its caller learns that
// there was one.
func TestTCPFailuresAreLoggedWhereTheyHappen(t *testing.T) {
	var log syncBuffer
	s, p := newTCP(t, rpc.TCPConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}), newTCP(t, rpc.TCPConfig{})
	addr, _ := serveTCP(t, s, func(_ context.Context, method string, _ []byte, _ func([]byte) error) error {
		if method == "crash" {
			panic("defect 7")
		}
		return io.ErrNoProgress
	})
	for method, cause := range map[string]string{"crash": "defect 7", "fail": io.ErrNoProgress.Error()} {
		err := p.Call(t.Context(), addr, method, nil, nil)
		if fault.CodeOf(err) != fault.Internal || strings.Contains(err.Error(), cause) {
			t.Errorf("%s: %v", method, err)
		}
		if !strings.Contains(log.String(), cause) {
			t.Errorf("the log does not say %q: %s", cause, log.String())
		}
	}
}
