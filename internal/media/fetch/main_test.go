package fetch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// here is the one address that tests may fetch from.
var here = netip.MustParsePrefix("127.0.0.1/32")

// fetcher returns a Fetcher that may fetch from this machine, in any time, and ends with the test.
func fetcher(t testing.TB, change func(*Config)) *Fetcher {
	t.Helper()
	cfg := Config{AllowNets: []netip.Prefix{here}, Timeout: time.Hour, DialTimeout: time.Hour, HeaderTimeout: time.Hour, IdleTimeout: time.Hour}
	cfg.dialled = func(a netip.Addr) error { // whatever is broken, tests stay on this machine
		if here.Contains(a) {
			return nil
		}
		t.Errorf("%s was let through", a)
		return errors.New("the test ends here")
	}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// piped returns a fetcher whose connections lead to answer, each for one request: for synctest bubbles.
func piped(t testing.TB, change func(*Config), answer func(conn net.Conn, r *http.Request)) *Fetcher {
	t.Helper()
	var answers sync.WaitGroup
	t.Cleanup(answers.Wait)
	f := fetcher(t, change)
	f.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		answers.Go(func() { // ends when the fetcher closes the connection
			defer server.Close()
			if r, err := http.ReadRequest(bufio.NewReader(server)); err == nil {
				answer(server, r)
			}
		})
		return client, nil
	}
	return f
}

// drip writes a byte every 5 ms, until the other side goes.
func drip(conn net.Conn) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := conn.Write([]byte("x")); err != nil {
			return
		}
	}
}

// serve returns the URL of a server, which ends with the test, and counts its requests.
func serve(t testing.TB, h http.HandlerFunc) (string, *requests) {
	t.Helper()
	r := &requests{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.add(req)
		h(w, req)
	}))
	t.Cleanup(s.Close)
	return s.URL, r
}

// requests is what a server has heard.
type requests struct {
	mu   sync.Mutex
	list []*http.Request
}

func (r *requests) add(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, req)
}

func (r *requests) all() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list
}

// picture is a PNG file of noise, which does not get smaller.
func picture(t testing.TB, width, height int) []byte {
	t.Helper()
	im := image.NewRGBA(image.Rect(0, 0, width, height))
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(im.Pix)
	var b bytes.Buffer
	if err := png.Encode(&b, im); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// content serves a file, and ranges of it.
func content(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

// refused expects an error of a code with words in it.
func refused(t testing.TB, what string, err error, code fault.Code, words string) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, words) {
		t.Errorf("%s: error is %v; want %v with %q", what, err, code, words)
	}
}

// both expects that neither way of fetching gets anything.
func both(t testing.TB, f *Fetcher, url, words string) {
	t.Helper()
	_, err := f.Size(t.Context(), url)
	refused(t, "size of "+url, err, fault.Invalid, words)
	_, err = f.Get(t.Context(), url)
	refused(t, "get of "+url, err, fault.Invalid, words)
	if n := f.Memory(); n != 0 {
		t.Errorf("%s: %d bytes are taken", url, n)
	}
}

// names is a name server, which answers each question for an address of IPv4 with the next
// answer, the last of them for ever.
type names struct {
	conn    net.PacketConn
	mu      sync.Mutex
	answers []netip.Addr
	asked   int
}

func nameServer(t testing.TB, answers ...string) (*names, *net.Resolver) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &names{conn: conn}
	for _, a := range answers {
		n.answers = append(n.answers, netip.MustParseAddr(a))
	}
	var wg sync.WaitGroup
	wg.Go(n.run)
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return n, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (n *names) run() {
	b := make([]byte, 1500)
	for {
		m, from, err := n.conn.ReadFrom(b)
		if err != nil {
			return
		}
		if a, ok := n.answer(b[:m]); ok {
			_, _ = n.conn.WriteTo(a, from)
		}
	}
}

// count returns how many questions were answered with an address.
func (n *names) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// answer answers a message with one question.
func (n *names) answer(q []byte) ([]byte, bool) {
	end := 12
	for end < len(q) && q[end] != 0 {
		end += int(q[end]) + 1
	}
	if end+5 > len(q) {
		return nil, false
	}
	kind := q[end+2]
	question := q[12 : end+5]
	a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
	n.mu.Lock()
	defer n.mu.Unlock()
	next := n.answers[min(n.asked, len(n.answers)-1)]
	switch {
	case kind == 1 && next.Is4():
		n.asked++
		ip := next.As4()
		a[7] = 1
		a = append(a, 0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		a = append(a, ip[:]...)
	case kind == 28 && next.Is6():
		n.asked++
		ip := next.As16()
		a[7] = 1
		a = append(a, 0xC0, 12, 0, 28, 0, 1, 0, 0, 0, 0, 0, 16)
		a = append(a, ip[:]...)
	}
	return a, true
}

// portOf returns the port of a URL as it is written in one.
func portOf(url string) string { return url[strings.LastIndexByte(url, ':'):] }

// once returns a handler which answers and closes the connection, so that the next request opens a
// new one.
func once(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		h(w, r)
	}
}

// raw serves an answer that is written as it stands.
func raw(t testing.TB, answer string) string {
	t.Helper()
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprint(conn, answer)
	})
	return url
}
