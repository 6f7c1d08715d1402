package rpc_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

// newHTTP returns a plane that ends with the test. It is patient where cfg does not say otherwise.
func newHTTP(t *testing.T, cfg rpc.HTTPConfig) *rpc.HTTPPlane {
	t.Helper()
	cfg.KeepAlive, cfg.Dial = cmp.Or(cfg.KeepAlive, rpc.Patience), cmp.Or(cfg.Dial, rpc.Patience)
	p, err := rpc.NewHTTPPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestHTTP(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane { return newHTTP(t, rpc.HTTPConfig{}) })
}

func TestHTTPWithTLSAndToken(t *testing.T) {
	server, client := rpc.Certificates(t)
	rpctest.Run(t, func(t *testing.T) rpc.Plane {
		return newHTTP(t, rpc.HTTPConfig{ServerTLS: server, ClientTLS: client, Token: "s3cret"})
	})
}

// serve serves h on p at addr and returns the address and what stops it.
func serve(t *testing.T, p rpc.Plane, addr string, h rpc.Handler) (string, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- p.Serve(ctx, addr, h, func(a string) { ready <- a }) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	select {
	case addr = <-ready:
	case err := <-done:
		t.Fatalf("Serve: %v", err)
	}
	t.Cleanup(stop)
	return addr, stop
}

func nothing(context.Context, string, []byte, func([]byte) error) error { return nil }

func ignore([]byte) error { return nil }

// proxy stands between a caller and a server and can let nothing through any more.
type proxy struct {
	addr  string
	conns chan struct{} // one per connection that was made
	held  sync.RWMutex  // held while nothing passes
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), conns: make(chan struct{}, 10_000)}
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	work.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			p.conns <- struct{}{}
			b, err := net.Dial("tcp", target)
			if err != nil {
				a.Close()
				continue
			}
			mu.Lock()
			open = append(open, a, b)
			mu.Unlock()
			work.Go(func() { p.pass(a, b) })
			work.Go(func() { p.pass(b, a) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return p
}

// pass moves bytes until one end breaks, which the other learns only if bytes pass.
func (p *proxy) pass(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.held.RLock()
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
		}
		p.held.RUnlock()
		if err != nil {
			return
		}
	}
}

// A peer that is cut off without a word is noticed by both ends. A machine which cannot make a call within the keep-alive
// gets a longer one.
func TestHTTPDeadPeer(t *testing.T) {
	for keepAlive := 400 * time.Millisecond; !cutOffPeer(t, keepAlive); keepAlive *= 4 {
		t.Logf("a keep-alive of %v is too short for this machine", keepAlive)
	}
}

// cutOffPeer cuts a call off at its first frame, and reports whether that came.
func cutOffPeer(t *testing.T, keepAlive time.Duration) (came bool) {
	t.Helper()
	p := newHTTP(t, rpc.HTTPConfig{KeepAlive: keepAlive})
	over := make(chan struct{})
	addr, stop := serve(t, p, "", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
		if err := send(nil); err != nil {
			return err
		}
		<-ctx.Done()
		close(over)
		return ctx.Err()
	})
	between := newProxy(t, strings.TrimPrefix(addr, "http://"))
	err := p.Call(t.Context(), "http://"+between.addr, "m", nil, func([]byte) error {
		came = true
		between.held.Lock()
		return nil
	})
	if fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v, want Unavailable", err)
	}
	if came {
		<-over // while nothing passes
		between.held.Unlock()
	}
	stop()
	return came || keepAlive > rpc.Patience
}

// testTenThousand has as many calls in progress at once, which reach addr by way
// of what there is between.
func testTenThousand(t *testing.T, p rpc.Plane, between func(addr string) string) {
	t.Helper()
	const calls = 10_000
	var entered sync.WaitGroup
	entered.Add(calls)
	addr, _ := serve(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		entered.Done()
		entered.Wait()
		return send(body)
	})
	addr = between(addr)
	var callers sync.WaitGroup
	for range calls {
		callers.Go(func() {
			if err := p.Call(t.Context(), addr, "m", []byte("b"), ignore); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
}

// Calls that begin together, before there is a connection, share one.
func TestHTTPOneConnection(t *testing.T) {
	var to *proxy
	testTenThousand(t, newHTTP(t, rpc.HTTPConfig{}), func(addr string) string {
		to = newProxy(t, strings.TrimPrefix(addr, "http://"))
		return "http://" + to.addr
	})
	if n := len(to.conns); n != 1 {
		t.Errorf("%d connections, want one", n)
	}
}

// The next call finds a server that was away for a while.
func TestHTTPServerReturns(t *testing.T) {
	p := newHTTP(t, rpc.HTTPConfig{})
	addr, stop := serve(t, p, fixturetest.ReserveAddr(t), nothing)
	for range 3 {
		if err := p.Call(t.Context(), addr, "m", nil, ignore); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := p.Call(t.Context(), addr, "m", nil, ignore); fault.CodeOf(err) != fault.Unavailable {
			t.Fatalf("without a server: %v", err)
		}
		_, stop = serve(t, p, addr, nothing)
	}
}

// A server that leaves with calls in progress does not keep callers from the one
// that takes its place.
func TestHTTPReplacedWhileDraining(t *testing.T) {
	p := newHTTP(t, rpc.HTTPConfig{})
	entered, leave := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string), make(chan error)
	go func() {
		done <- p.Serve(ctx, fixturetest.ReserveAddr(t), func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
			if method == "probe" {
				return nil
			}
			close(entered)
			<-leave
			return send([]byte("old"))
		}, func(a string) { ready <- a })
	}()
	addr := <-ready
	called := make(chan error)
	go func() {
		called <- p.Call(t.Context(), addr, "slow", nil, func(f []byte) error {
			if string(f) != "old" {
				t.Errorf("the old call got %q", f)
			}
			return nil
		})
	}()
	<-entered
	cancel()
	// A call fails already before the port is free.
	for conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "http://")); err == nil; conn, err = net.Dial("tcp", strings.TrimPrefix(addr, "http://")) {
		conn.Close()
	}
	serve(t, p, addr, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error { return send([]byte("new")) })
	// The caller's connection is told to leave a moment after the server began to.
	got := ""
	for got == "" {
		if err := p.Call(t.Context(), addr, "probe", nil, func(f []byte) error { got = string(f); return nil }); err != nil && fault.CodeOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
	}
	if got != "new" {
		t.Errorf("got %q, want the new server's", got)
	}
	close(leave)
	if err := <-called; err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A caller with TLS does not talk without: an address in discovery cannot talk it
// out of asking for a certificate.
func TestHTTPDoesNotStepDown(t *testing.T) {
	_, client := rpc.Certificates(t)
	addr, _ := serve(t, newHTTP(t, rpc.HTTPConfig{}), "", func(context.Context, string, []byte, func([]byte) error) error {
		t.Error("the call, and the token, were sent in clear")
		return nil
	})
	err := newHTTP(t, rpc.HTTPConfig{ClientTLS: client, Token: "secret"}).Call(t.Context(), addr, "m", nil, ignore)
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "without") {
		t.Errorf("calling %s with TLS: %v", addr, err)
	}
}

func TestHTTPStrangers(t *testing.T) {
	server, client := rpc.Certificates(t)
	_, other := rpc.Certificates(t)
	plain, _ := serve(t, newHTTP(t, rpc.HTTPConfig{Token: "right-one"}), "", nothing)
	secure, _ := serve(t, newHTTP(t, rpc.HTTPConfig{ServerTLS: server}), "", nothing)
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		name, addr, says string
		cfg              rpc.HTTPConfig
	}{
		{"no token", plain, "token", rpc.HTTPConfig{}},
		{"wrong token", plain, "token", rpc.HTTPConfig{Token: "wrong-one"}},
		{"unknown authority", secure, "unknown authority", rpc.HTTPConfig{ClientTLS: other}},
		{"no TLS", strings.Replace(secure, "https", "http", 1), "", rpc.HTTPConfig{}},
		{"TLS to none", strings.Replace(plain, "http", "https", 1), "", rpc.HTTPConfig{ClientTLS: client, Token: "right-one"}},
		{"another server", web.URL, "", rpc.HTTPConfig{}},
		{"a silent server", "https://" + silent.Addr().String(), "", rpc.HTTPConfig{ClientTLS: client, Dial: 20 * time.Millisecond}},
		{"no port", "http://127.0.0.1", "http://HOST:PORT", rpc.HTTPConfig{}},
		{"a path", plain + "/x", "http://HOST:PORT", rpc.HTTPConfig{}},
	} {
		err := newHTTP(t, c.cfg).Call(t.Context(), c.addr, "m", []byte("body"), ignore)
		if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want Unavailable that says %q", c.name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "-one") {
			t.Errorf("%s: the error has the token: %v", c.name, err)
		}
	}
	if err := newHTTP(t, rpc.HTTPConfig{ClientTLS: client}).Call(t.Context(), secure, "m", nil, ignore); err != nil {
		t.Errorf("with the right authority: %v", err)
	}
}

// Close ends what is in progress, and nothing begins after it.
func TestHTTPClose(t *testing.T) {
	server, client := rpc.Certificates(t)
	for _, cfg := range []rpc.HTTPConfig{{}, {ServerTLS: server, ClientTLS: client}} {
		p := newHTTP(t, cfg)
		over := make(chan struct{})
		addr, _ := serve(t, newHTTP(t, cfg), "", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
			_ = send(nil)
			<-ctx.Done()
			close(over)
			return nil
		})
		err := p.Call(t.Context(), addr, "m", nil, func([]byte) error {
			p.Close()
			return nil
		})
		if fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("error %v, want Unavailable", err)
		}
		<-over
		p.Close()
		if err := p.Call(t.Context(), addr, "m", nil, ignore); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a call after Close: %v", err)
		}
	}
}

// What a server does not take it refuses with a typed error.
func TestHTTPOverloaded(t *testing.T) {
	p := newHTTP(t, rpc.HTTPConfig{MaxCalls: 2, MaxBodies: rpc.MaxBody})
	testOverloaded(t, p)
}

// testOverloaded is for servers of at most two calls and one body of the largest size.
func testOverloaded(t *testing.T, p rpc.Plane) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	addr, _ := serve(t, p, "", func(context.Context, string, []byte, func([]byte) error) error {
		entered <- struct{}{}
		<-leave
		return nil
	})
	var calls sync.WaitGroup
	call := func(body []byte) {
		calls.Go(func() {
			if err := p.Call(t.Context(), addr, "m", body, ignore); err != nil {
				t.Error(err)
			}
		})
		<-entered
	}
	call(make([]byte, 1<<20))
	if err := p.Call(t.Context(), addr, "m", make([]byte, rpc.MaxBody), ignore); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("more bodies than there is room for: %v", err)
	}
	call(nil)
	if err := p.Call(t.Context(), addr, "m", nil, ignore); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("a third call: %v", err)
	}
	close(leave)
	calls.Wait()
}

// testLongPrompt sends the body of a prompt of a million tokens.
func testLongPrompt(t *testing.T, p rpc.Plane) (stop func()) {
	t.Helper()
	body := bytes.Repeat([]byte("toke"), 1<<20)
	addr, stop := serve(t, p, "", func(_ context.Context, _ string, got []byte, send func([]byte) error) error {
		if !bytes.Equal(got, body) {
			return fault.New(fault.Internal, "the body of %d bytes differs", len(got))
		}
		return send([]byte("whole"))
	})
	got := ""
	if err := p.Call(t.Context(), addr, "m", body, func(f []byte) error { got = string(f); return nil }); err != nil || got != "whole" {
		t.Errorf("got %q, %v", got, err)
	}
	return stop
}

// testMethods calls methods by names that are something else in a URL.
func testMethods(t *testing.T, p rpc.Plane) {
	t.Helper()
	addr, _ := serve(t, p, "", func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
		return send([]byte(method))
	})
	for _, method := range []string{"", "/", "a/b", "..", "a//../b", "ü %2F?#;", "\x00\xff"} {
		got := "none"
		if err := p.Call(t.Context(), addr, method, nil, func(f []byte) error { got = string(f); return nil }); err != nil || got != method {
			t.Errorf("%q arrives as %q, %v", method, got, err)
		}
	}
}

func TestHTTPMethods(t *testing.T) { testMethods(t, newHTTP(t, rpc.HTTPConfig{})) }

func TestHTTPLongPrompt(t *testing.T) { testLongPrompt(t, newHTTP(t, rpc.HTTPConfig{})) }

func TestHTTPConfig(t *testing.T) {
	for _, c := range []rpc.HTTPConfig{
		{Listen: "nowhere"}, {Advertise: "http://a"}, {Advertise: "0.0.0.0"}, {Token: "a b"}, {KeepAlive: 1}, {Dial: -1}, {MaxCalls: -1}, {MaxBodies: 1},
	} {
		if _, err := rpc.NewHTTPPlane(c); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestHTTPAdvertise(t *testing.T) {
	for _, c := range []struct{ listen, advertise, want string }{
		{"127.0.0.1:0", "", "http://127.0.0.1:PORT"},
		{"[::1]:0", "", "http://[::1]:PORT"},
		{":0", "", ""},
		{"0.0.0.0:0", "node-1", "http://node-1:PORT"},
		{":0", "[2001:db8::1]", "http://[2001:db8::1]:PORT"},
		{":0", "2001:db8::1", "http://[2001:db8::1]:PORT"},
		{":0", "[2001:db8::1]:7", "http://[2001:db8::1]:7"},
		{"127.0.0.1:0", "gate:99", "http://gate:99"},
	} {
		p := newHTTP(t, rpc.HTTPConfig{Listen: c.listen, Advertise: c.advertise})
		ctx, cancel := context.WithCancel(t.Context())
		got := ""
		err := p.Serve(ctx, "", nothing, func(a string) {
			got = a
			cancel()
		})
		cancel()
		if c.want == "" {
			if fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%+v: %q, %v, want an error that asks for a host", c, got, err)
			}
			continue
		}
		host, _, ok := strings.Cut(c.want, "PORT")
		if err != nil || ok && (!strings.HasPrefix(got, host) || len(got) == len(host)) || !ok && got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestHTTPServeRefusesAddresses(t *testing.T) {
	p := newHTTP(t, rpc.HTTPConfig{})
	for _, addr := range []string{"https://127.0.0.1:0", "tcp://127.0.0.1:0", "192.0.2.1:0"} {
		err := p.Serve(t.Context(), addr, nothing, func(string) { t.Error("it serves") })
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// brokenBody is a body whose reads fail.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("broken") }

// Bodies that are announced and do not come do not cost what they would.
func TestHTTPAnnouncedBodies(t *testing.T) {
	addr, stop := serve(t, newHTTP(t, rpc.HTTPConfig{}), "", func(context.Context, string, []byte, func([]byte) error) error {
		t.Error("a handler was called")
		return nil
	})
	// It begins a body when the server has begun to read it.
	transport := &http.Transport{ExpectContinueTimeout: time.Minute, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, addr+"/v1/rpc/m", brokenBody{})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = rpc.MaxBody
		req.Header.Set("Expect", "100-continue")
		if resp, err := transport.RoundTrip(req); err == nil {
			resp.Body.Close()
			t.Error("a request without its body was answered")
		}
	}
	stop()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > rpc.MaxBody {
		t.Errorf("%d bytes were allocated for four bodies of %d that did not come", n, rpc.MaxBody)
	}
}
