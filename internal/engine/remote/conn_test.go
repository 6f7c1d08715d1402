package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
)

// rough returns a client of an engine whose connections are served by serve, which gets the number of the
// connection.
func rough(t *testing.T, serve func(n int, c net.Conn, r *bufio.Reader)) *Client {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	client := clientOf(t, "http://"+ln.Addr().String())
	t.Cleanup(func() { client.Close(); ln.Close(); wg.Wait() })
	return client
}

// request reads one request, and reports whether there was one.
func request(r *bufio.Reader) bool {
	q, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, q.Body)
	return err == nil
}

// say sends a text.
func say(c net.Conn, text string) {
	_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
}

func read(c *Client) (string, error) {
	body, err := c.ReadBody(context.Background(), &Call{Path: "/x", Body: []byte("{}")}, 100)
	return string(body), err
}

func wantText(t *testing.T, c *Client, want string) {
	t.Helper()
	if got, err := read(c); got != want || err != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// awaitNoise returns when what the engine did to the idle connection has arrived: the system delivers it later than the
// engine's call returns.
func awaitNoise(t *testing.T, c *Client) {
	t.Helper()
	k := c.pool.popIdle()
	defer c.pool.keepIdle(k)
	if err := backoff.Poll(fixturetest.PatientContext(t), time.Millisecond, func() bool { return !k.isQuiet() }); err != nil {
		t.Fatal("the connection stays quiet")
	}
}

// TestUnasked checks that unsolicited bytes of an engine are not taken for the response to the next call.
func TestUnasked(t *testing.T) {
	said := make(chan struct{})
	c := rough(t, func(n int, c net.Conn, r *bufio.Reader) {
		for request(r) {
			say(c, fmt.Sprint("from ", n))
			if n == 0 {
				say(c, "of nobody")
				close(said)
			}
		}
	})
	wantText(t, c, "from 0")
	<-said
	awaitNoise(t, c)
	wantText(t, c, "from 1")
	wantText(t, c, "from 1")
}

// TestHungUp checks that a connection which the engine closed between two calls is not used.
func TestHungUp(t *testing.T) {
	closed := make(chan struct{})
	c := rough(t, func(n int, c net.Conn, r *bufio.Reader) {
		for i := 0; request(r); i++ {
			say(c, fmt.Sprint(n))
			if n == 0 {
				c.Close()
				close(closed)
			}
		}
	})
	wantText(t, c, "0")
	<-closed
	awaitNoise(t, c)
	k, err := c.pool.acquireConn(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if !k.isQuiet() {
		t.Error("get returned a connection that is closed")
	}
	c.pool.releaseConn(k)
	wantText(t, c, "1")
}

// TestHeaders checks that interim responses are skipped, and that an invalid header is refused.
func TestHeaders(t *testing.T) {
	for header, want := range map[string]string{
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok": "ok",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto its end":                                    "to its end",
		"HTTP/1.0 200 OK\r\n\r\nof old":                                                             "of old",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nin\r\n7\r\n pieces\r\n0\r\n\r\n": "in pieces",
		strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100):                                        "",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n":                                    "",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n":                    "",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n":                                                  "",
		"SSH-2.0-x\r\n": "",
	} {
		calls := 0
		c := rough(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if request(r) {
				calls++
				_, _ = io.WriteString(c, header)
			}
		})
		got, err := read(c)
		c.Close()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.60q: %q, %v", header, got, err)
		}
		if err != nil && fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%.60q: %v", header, err)
		}
		if calls != 1 {
			t.Errorf("%.60q: called %d times", header, calls)
		}
	}
}

// TestLargeBodies checks that bodies of many lengths arrive complete, and that a response before the end of a
// body is read.
func TestLargeBodies(t *testing.T) {
	read := make(chan struct{})
	defer close(read)
	c := rough(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for q, err := http.ReadRequest(r); err == nil; q, err = http.ReadRequest(r) {
			if q.URL.Path == "/refuses" {
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 32\r\n\r\n"+`{"error":{"message":"too long"}}`)
				<-read // closing now would reset the connection, with what was not read of the response
				return
			}
			n, _ := io.Copy(io.Discard, q.Body)
			say(c, fmt.Sprint(n))
		}
	})
	for _, n := range []int{0, 1, smallBody, smallBody + 1, 100_000, 8 << 20} {
		large := NewBody()
		large.B = append(large.B, bytes.Repeat([]byte{'x'}, n)...)
		a, err := c.Do(t.Context(), &Call{Path: "/takes", Large: large})
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.ReadAll(t.Context())
		if a.Close(); string(got) != fmt.Sprint(n) || err != nil {
			t.Errorf("of %d bytes arrived %s, %v", n, got, err)
		}
		if n > smallBody {
			if a, err = c.Do(t.Context(), &Call{Path: "/refuses", Large: large}); err != nil {
				t.Fatal(err)
			}
			wantFault(t, "refused", a.RefusalError(), fault.TooLarge, "too long")
			a.Close()
		}
		large.Release()
	}
}

// TestStuck checks that a call which waits for an engine, to take a request or to answer it, can be canceled.
func TestStuck(t *testing.T) {
	stuck, free := make(chan struct{}, 1), make(chan struct{})
	c := rough(t, func(n int, c net.Conn, r *bufio.Reader) {
		switch n {
		case 0: // reads nothing
		case 1:
			request(r)
		case 2:
			request(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhalf")
		}
		stuck <- struct{}{}
		<-free
	})
	defer close(free)
	for n := range 3 {
		large := NewBody()
		if n == 0 {
			large.B = append(large.B, make([]byte, 64<<20)...)
		}
		ctx, cancel := context.WithCancel(t.Context())
		callBack := func() { <-stuck; cancel() }
		if n < 2 {
			go callBack()
		}
		a, err := c.Do(ctx, &Call{Path: "/x", Large: large, Wait: -1})
		if n == 2 {
			if err != nil {
				t.Fatal(err)
			}
			go callBack()
			_, err = io.Copy(io.Discard, a)
			err = a.ReadError(ctx, err)
			a.Close()
		}
		if err != context.Canceled {
			t.Errorf("%d: %v, want context.Canceled", n, err)
		}
		large.Release()
	}
	if n := len(c.pool.inUse); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}

// TestRoom checks that connections in use are bounded, and that calls above the limit wait for one.
func TestRoom(t *testing.T) {
	c := rough(t, func(n int, c net.Conn, r *bufio.Reader) {
		for request(r) {
			say(c, fmt.Sprint(n))
		}
	})
	c.pool.inUse = make(chan struct{}, 1)
	a, err := c.Do(t.Context(), &Call{Path: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Do(t.Context(), &Call{Path: "/x", Wait: time.Millisecond})
	wantFault(t, "no room in time", err, fault.Unavailable, "did not begin to answer")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, &Call{Path: "/x"}); err != context.DeadlineExceeded {
		t.Errorf("%v, want context.DeadlineExceeded", err)
	}
	a.DrainAndClose()
	wantText(t, c, "0")
}

// TestIdle checks that connections unused for a while are closed, and that none is kept after Close.
func TestIdle(t *testing.T) {
	c := rough(t, func(n int, c net.Conn, r *bufio.Reader) {
		for request(r) {
			say(c, fmt.Sprint(n))
		}
	})
	one, _ := c.Do(t.Context(), &Call{Path: "/x"})
	two, _ := c.Do(t.Context(), &Call{Path: "/x"})
	two.DrainAndClose()
	one.DrainAndClose()
	// expire calls closeExpired for a time after the oldest connection was released.
	expire := func(after time.Duration, closed, left int) {
		t.Helper()
		c.pool.mu.Lock()
		at := c.pool.mu.idle[0].idleSince.Add(after)
		c.pool.mu.Unlock()
		old := c.pool.takeExpired(at)
		for _, k := range old {
			k.abort()
		}
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		if n, sweeps := len(c.pool.mu.idle), c.pool.mu.sweep != nil; len(old) != closed || n != left || sweeps != (left > 0) {
			t.Errorf("%d connections are too old, %d are not, and will be looked at: %v", len(old), n, sweeps)
		}
	}
	c.pool.mu.Lock()
	c.pool.mu.idle[0].idleSince = c.pool.mu.idle[0].idleSince.Add(-time.Second) // clocks may be coarse
	c.pool.mu.Unlock()
	expire(c.pool.idleTimeout, 1, 1)
	wantText(t, c, "0")
	expire(2*c.pool.idleTimeout, 1, 0)
	wantText(t, c, "2")
	c.Close()
	wantText(t, c, "3")
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if n := len(c.pool.mu.idle); n != 0 {
		t.Errorf("%d connections were kept after Close", n)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d bytes by %s", n, r.Proto)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // for the failing handshake
	s.StartTLS()
	defer s.Close()
	c := clientOf(t, s.URL)
	if _, err := read(c); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("with a certificate of nobody that is known: %v", err)
	}
	c.pool.tls.RootCAs = x509.NewCertPool()
	c.pool.tls.RootCAs.AddCert(s.Certificate())
	for range 3 {
		wantText(t, c, "2 bytes by HTTP/1.1")
	}
	large := NewBody()
	large.B = append(large.B, make([]byte, 1<<20)...)
	defer large.Release()
	a, err := c.Do(t.Context(), &Call{Path: "/x", Large: large})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.ReadAll(t.Context()); string(got) != "1048576 bytes by HTTP/1.1" {
		t.Errorf("%s, %v", got, err)
	}
	a.Close()
	c.Close()
}

// TestUnaskedTLS is TestUnasked for bytes that left the socket with the previous response and are buffered in
// TLS.
func TestUnaskedTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	config := server.TLS.Clone()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				under := &corked{Conn: c}
				secure := tls.Server(under, config)
				defer c.Close()
				r := bufio.NewReader(secure)
				for request(r) {
					under.cork = true
					say(secure, fmt.Sprint("from ", n))
					if n == 0 {
						say(secure, "of nobody")
					}
					under.flush()
				}
			})
		}
	})
	defer func() { ln.Close(); wg.Wait() }()
	c := clientOf(t, "https://"+ln.Addr().String())
	defer c.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c.pool.tls.RootCAs = roots
	wantText(t, c, "from 0")
	wantText(t, c, "from 1")
	wantText(t, c, "from 1")
}

// corked is a connection that holds back writes until flush.
type corked struct {
	net.Conn
	cork bool
	held []byte
}

func (c *corked) Write(b []byte) (int, error) {
	if !c.cork {
		return c.Conn.Write(b)
	}
	c.held = append(c.held, b...)
	return len(b), nil
}

func (c *corked) flush() {
	_, _ = c.Conn.Write(c.held)
	c.cork, c.held = false, nil
}

// TestHead checks that requests are written as net/http would write them, and that no value ends a line
// early.
func TestHead(t *testing.T) {
	for _, c := range []struct {
		root string
		call Call
		want string
	}{
		{"http://h", Call{Path: "/v1/x"}, "POST /v1/x HTTP/1.1\r\nHost: h\r\nUser-Agent: penstock\r\nContent-Length: 0\r\nAuthorization: Bearer secret\r\n\r\n"},
		{"http://h:80/a/", Call{Method: "GET", Path: "/b c", Query: "q=1"}, "GET /a/b%20c?q=1 HTTP/1.1\r\nHost: h:80\r\nUser-Agent: penstock\r\nAuthorization: Bearer secret\r\n\r\n"},
		{"http://[fe80::1%25eth0]:8000", Call{Path: "/", ID: "a\r\nb", Headers: []string{"X", "1\r\nY: 2"}, Body: []byte("{}")}, "POST / HTTP/1.1\r\nHost: [fe80::1]:8000\r\nUser-Agent: penstock\r\nContent-Type: application/json\r\nContent-Length: 2\r\nAuthorization: Bearer secret\r\nX-Request-Id: a__b\r\nX: 1  Y: 2\r\n\r\n"},
		{"http://bücher:1", Call{Path: "/ü"}, "POST /%C3%BC HTTP/1.1\r\nHost: xn--bcher-kva:1\r\nUser-Agent: penstock\r\nContent-Length: 0\r\nAuthorization: Bearer secret\r\n\r\n"},
	} {
		client := clientOf(t, c.root)
		got := client.appendHead(nil, &c.call)
		if string(got) != c.want {
			t.Errorf("%s: %q\nwant %q", c.root, got, c.want)
		}
		if _, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(got))); err != nil {
			t.Errorf("%s: %v", c.root, err)
		}
	}
	for root, want := range map[string]string{
		"http://h": "h:80", "https://h": "h:443", "http://h:81": "h:81", "http://[::1]": "[::1]:80",
		"http://[fe80::1%25eth0]:8000": "[fe80::1%eth0]:8000", "https://bücher": "xn--bcher-kva:443",
	} {
		if got := clientOf(t, root).pool.addr; got != want {
			t.Errorf("%s: dials %s, want %s", root, got, want)
		}
	}
}

// FuzzConn checks that for any bytes of an engine a call ends, and the connection is kept only if they were
// one complete response.
func FuzzConn(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay", "HTTP/1.0 200 OK\r\n\r\nx", "x",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_ = request(bufio.NewReader(theirs))
			_, _ = theirs.Write(data)
			_ = theirs.Close()
		}()
		c := clientOf(t, "http://h")
		k := newConn(ours, ours)
		c.pool.inUse <- struct{}{}
		k.head = c.appendHead(k.head, &Call{Path: "/x", Body: []byte("{}")})
		a := &Response{client: &Client{}, conn: k, pool: c.pool, maxSilence: time.Minute, stopAbort: func() bool { return true }}
		if resp, _, err := k.roundTrip([]byte("{}"), nil, time.Now().Add(time.Minute)); err == nil {
			a.body, a.closing = resp.Body, resp.Close
			n, err := io.Copy(io.Discard, a)
			if int(n) > len(data) || err == nil != a.complete {
				t.Errorf("%d bytes of %d, whole %v: %v", n, len(data), a.complete, err)
			}
		}
		a.Close()
		c.Close()
		<-sent
	})
}
