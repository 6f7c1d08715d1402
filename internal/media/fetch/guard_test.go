package fetch

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// TestJudge: which addresses may be connected to.
func TestJudge(t *testing.T) {
	const never, private, public = 0, 1, 2
	for a, want := range map[string]int{
		"8.8.8.8": public, "1.1.1.1": public, "100.63.255.255": public, "100.128.0.1": public, "172.15.0.1": public, "172.32.0.1": public, "198.20.0.1": public, "223.255.255.255": public,
		"127.0.0.1": private, "127.255.255.255": private, "10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private, "192.168.1.1": private, "100.64.0.1": private, "100.127.255.255": private, "198.18.0.1": private, "198.19.255.255": private,
		"0.0.0.0": never, "0.1.2.3": never, "169.254.169.254": never, "169.254.0.1": never, "100.100.100.200": never, "168.63.129.16": never, "192.0.0.192": never, "192.0.2.1": never, "192.88.99.1": never,
		"198.51.100.1": never, "203.0.113.1": never, "224.0.0.1": never, "239.1.1.1": never, "240.0.0.1": never, "255.255.255.255": never,
		"2606:4700::1111": public, "2a00:1450::1": public,
		"::1": private, "fd12:3456::1": private, "fc00::1": private, "fec0::1": private,
		"::": never, "fe80::1": never, "ff02::1": never, "2001:db8::1": never, "2001::1": never, "100::1": never, "fd00:ec2::254": never, "fd20:ce::254": never, "64:ff9b:1::1": never, "4000::1": never, "3fff::1": never, "5f00::1": never,
		"::ffff:8.8.8.8": public, "::ffff:127.0.0.1": private, "::ffff:169.254.169.254": never, "::ffff:a9fe:a9fe": never,
		"64:ff9b::8.8.8.8": public, "64:ff9b::10.0.0.1": private, "64:ff9b::169.254.169.254": never,
		"2002:808:808::1": public, "2002:7f00:1::": private, "2002:a9fe:a9fe::": never,
		"::127.0.0.1": private, "::169.254.169.254": never,
		"2606:4700::5efe:10.0.0.1": private, "2606:4700::200:5efe:169.254.169.254": never,
		"fe80::1%eth0": never, "2606:4700::1%eth0": never,
	} {
		addr := netip.MustParseAddr(a)
		strict, intranet := Config{}, Config{AllowPrivate: true}
		got := never
		if strict.checkAddress(addr) == nil {
			got = public
		} else if intranet.checkAddress(addr) == nil {
			got = private
		}
		if got != want || got == public && intranet.checkAddress(addr) != nil {
			t.Errorf("%s is %d, want %d", a, got, want)
		}
	}
	named := Config{AllowNets: []netip.Prefix{netip.MustParsePrefix("169.254.7.0/24")}}
	if named.checkAddress(netip.MustParseAddr("::ffff:169.254.7.1")) != nil || named.checkAddress(netip.MustParseAddr("169.254.8.1")) == nil || named.checkAddress(netip.Addr{}) == nil {
		t.Error("networks that are named are judged wrong")
	}
	if strictControl := (&Config{}).checkDial("udp4", "8.8.8.8:53", nil); strictControl == nil {
		t.Error("something else than TCP is let through")
	}
}

// TestURLs: URLs which are refused by their text alone, before any DNS lookup.
func TestURLs(t *testing.T) {
	f := fetcher(t, func(c *Config) { c.AllowHosts = nil })
	for u, words := range map[string]string{
		"file:///etc/passwd":                                "scheme",
		"data:image/png;base64,AAAA":                        "scheme",
		"ftp://example.com/a":                               "scheme",
		"gopher://example.com/":                             "scheme",
		"/a.png":                                            "scheme",
		"http:example.com":                                  "no host",
		"http:///a":                                         "no host",
		"http://user:secret@example.com/":                   "user name",
		"http://example.com:0/":                             "port",
		"http://example.com:65536/":                         "port",
		"http://exa mple.com/":                              "not written",
		"http://b\u00fccher.example/":                       "xn--",
		"http://2130706433/":                                "unusual form",
		"http://0177.0.0.1/":                                "unusual form",
		"http://0x7f.0.0.1/":                                "unusual form",
		"http://0x7f000001/":                                "unusual form",
		"http://127.1/":                                     "unusual form",
		"http://2852039166/latest/meta-data/":               "unusual form",
		"http://0251.0376.0251.0376/":                       "unusual form",
		"http://0xa9.0xfe.0xa9.0xfe/":                       "unusual form",
		"http://169.254.169.254./":                          "may be fetched",
		"http://169.254.169.254/latest/meta-data/":          "may be fetched",
		"http://[::ffff:169.254.169.254]/":                  "may be fetched",
		"http://[::ffff:a9fe:a9fe]/":                        "may be fetched",
		"http://[64:ff9b::a9fe:a9fe]/":                      "may be fetched",
		"http://[2002:a9fe:a9fe::]/":                        "may be fetched",
		"http://[fe80::1%25eth0]/":                          "characters",
		"http://[::1]/":                                     "may be fetched",
		"http://127.0.0.2/":                                 "may be fetched",
		"https://10.0.0.1/":                                 "may be fetched",
		"http://example.com/" + strings.Repeat("a", maxURL): "longer",
	} {
		both(t, f, u, words)
	}
	for _, c := range []struct {
		host string
		ok   bool
	}{{"example.com", true}, {"EXAMPLE.com.", true}, {"a.example.com", false}, {"a.example.org", true}, {"example.org", true}, {"badexample.org", false}, {"example.org.evil.com", false}, {"8.8.8.8", false}} {
		cfg := Config{AllowHosts: []string{"Example.com", ".example.org"}}
		cfg.EnsureDefaults()
		if _, err := cfg.parseURL("http://" + c.host + "/x"); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.host, err)
		}
	}
}

// TestNames: names that lead to where nothing may be fetched from.
func TestNames(t *testing.T) {
	target, heard := serve(t, content(picture(t, 4, 4)))
	for _, a := range []string{"169.254.169.254", "10.0.0.1", "127.0.0.2", "::1", "fd00:ec2::254", "::ffff:7f00:2"} {
		_, resolver := nameServer(t, a)
		f := fetcher(t, func(c *Config) { c.Resolver = resolver })
		both(t, f, "http://metadata.example"+portOf(target)+"/", "address is none")
	}
	if n := len(heard.all()); n != 0 {
		t.Errorf("%d requests came through", n)
	}
}

// TestRebinding: a name that led to an allowed address when it was first looked up, and to
// another one then. What counts is the address of each connection.
func TestRebinding(t *testing.T) {
	target, heard := serve(t, once(content(picture(t, 4, 4))))
	for _, then := range []string{"127.0.0.2", "169.254.169.254", "::1", "10.1.2.3"} {
		n, resolver := nameServer(t, "127.0.0.1", then)
		f := fetcher(t, func(c *Config) { c.Resolver = resolver })
		u := "http://rebind.example" + portOf(target)
		b, err := f.Get(t.Context(), u+"/first")
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		before := len(heard.all())
		_, err = f.Get(t.Context(), u+"/second")
		refused(t, then, err, fault.Invalid, "address is none")
		_, err = f.Size(t.Context(), u+"/third")
		refused(t, then, err, fault.Invalid, "address is none")
		if len(heard.all()) != before || n.count() < 2 {
			t.Errorf("%s: a request came through, or the name was not looked up again (%d)", then, n.count())
		}
	}
}

// TestRedirects: each is judged, and there are not many.
func TestRedirects(t *testing.T) {
	good, _ := serve(t, content(picture(t, 30, 20)))
	f := fetcher(t, nil)
	loop, heard := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
		if n == 1000 {
			content(picture(t, 4, 4))(w, r)
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/%d", n+1), http.StatusFound)
	})
	both(t, f, loop+"/0", "redirects more than 3 times")
	if n := len(heard.all()); n != 8 {
		t.Errorf("%d requests for 1,000 redirects, twice", n)
	}
	if info, err := f.Size(t.Context(), loop+"/997"); err != nil || info.Size.Width != 4 {
		t.Errorf("three redirects: %+v %v", info, err)
	}
	for to, words := range map[string]string{
		"http://169.254.169.254/latest/meta-data/":                   "redirects to where",
		"http://[::ffff:169.254.169.254]/":                           "redirects to where",
		"http://2852039166/":                                         "redirects to where",
		"http://localhost.example" + portOf(good):                    "address is none",
		"file:///etc/passwd":                                         "redirects to where",
		"http://a:b@127.0.0.1" + portOf(good) + "/":                  "redirects to where",
		"http://127.0.0.2" + portOf(good) + "/":                      "redirects to where",
		"":                                                           "redirects to nowhere",
		"http://127.0.0.1" + portOf(good) + "/%zz":                   "no URL",
		"http://127.0.0.1/" + strings.Repeat("a", maxURL):            "redirects to nowhere",
		"gopher://127.0.0.1" + portOf(good) + "/_GET%20/%20HTTP/1.0": "redirects to where",
	} {
		g := f
		if strings.Contains(to, "localhost.example") {
			_, resolver := nameServer(t, "127.0.0.2")
			g = fetcher(t, func(c *Config) { c.Resolver = resolver })
		}
		for _, status := range []int{301, 302, 303, 307, 308} {
			from, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", to)
				w.WriteHeader(status)
			})
			both(t, g, from, words)
		}
	}
	off := fetcher(t, func(c *Config) { c.MaxRedirects = -1 })
	both(t, off, loop+"/999", "redirects more than 0 times")
}

// TestNothingIsSent: a host gets the request, but nothing from other hosts' responses or about the
// client.
func TestNothingIsSent(t *testing.T) {
	good, heard := serve(t, content(picture(t, 30, 20)))
	from, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		http.Redirect(w, r, good, http.StatusFound)
	})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	f := fetcher(t, nil)
	for range 2 {
		b, err := f.Get(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if _, err := f.Size(t.Context(), from+"/size"); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range heard.all() {
		for _, h := range []string{"Cookie", "Authorization", "Referer", "X-Forwarded-For"} {
			if r.Header.Get(h) != "" {
				t.Errorf("%s: %s", h, r.Header.Get(h))
			}
		}
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("Accept-Encoding: %s", r.Header.Get("Accept-Encoding"))
		}
	}
	if f.transport.Proxy != nil {
		t.Error("the environment's proxy is used")
	}
}

// TestTLS: certificates are checked, and no redirect leaves encryption.
func TestTLS(t *testing.T) {
	plain, _ := serve(t, content(picture(t, 30, 20)))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain, http.StatusFound)
			return
		}
		content(picture(t, 5, 6))(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust it
	s.StartTLS()
	t.Cleanup(s.Close)
	both(t, fetcher(t, nil), s.URL, "certificate")
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	f := fetcher(t, func(c *Config) { c.RootCAs = roots })
	if info, err := f.Size(t.Context(), s.URL); err != nil || info.Size.Height != 6 {
		t.Errorf("%+v %v", info, err)
	}
	g := fetcher(t, func(c *Config) { c.RootCAs = roots })
	both(t, g, s.URL+"/down", "not encrypted")
}

// TestSlow: servers that take their time end at one of the limits.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const url = "http://127.0.0.1/"
		inDrops := func(conn net.Conn, r *http.Request) {
			_, _ = fmt.Fprint(conn, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4095/100000\r\nContent-Length: 4096\r\n\r\n")
			drip(conn)
		}
		_, err := piped(t, func(c *Config) { c.Timeout = time.Second }, inDrops).Size(t.Context(), url)
		refused(t, "a body in drops", err, fault.Invalid, "within the time")

		header := func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nX-A: ")
			drip(conn)
		}
		both(t, piped(t, func(c *Config) { c.HeaderTimeout = time.Second }, header), url, "did not answer in time")
		both(t, piped(t, func(c *Config) { c.Timeout = time.Second }, header), url, "within the time")

		f := piped(t, func(c *Config) { c.IdleTimeout = time.Second }, func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nabc")
			_, _ = conn.Read(make([]byte, 1)) // until the other side goes
		})
		_, err = f.Get(t.Context(), url)
		refused(t, "a body that stops", err, fault.Invalid, "sent nothing for too long")
		if n := f.Memory(); n != 0 {
			t.Errorf("%d bytes are taken", n)
		}
	})
}

// TestLies: lengths that are not true, and files that are too large.
func TestLies(t *testing.T) {
	f := fetcher(t, func(c *Config) { c.MaxBytes = 1 << 20 })
	for answer, words := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nConnection: close\r\n\r\nshort":    "less than it said",
		"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\nConnection: close\r\n\r\nshort":   "more than 1048576 bytes",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\nConnection: close\r\n\r\n": "more than 1048576 bytes",
		"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n":                                  "could not be reached",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef":        "could not be reached",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\nabc":           "less than it said",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nsecret":                      "status 404",
		"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc":                   "status 206",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n\r\n":             "could not be reached",
		"nonsense": "could not be reached",
	} {
		_, err := f.Get(t.Context(), raw(t, answer))
		refused(t, answer[:min(len(answer), 60)], err, fault.Invalid, words)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error says what the answer does: %v", err)
		}
	}
	endless, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	_, err := f.Get(t.Context(), endless)
	refused(t, "a body without end", err, fault.Invalid, "more than 1048576 bytes")
	exact, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		_, _ = w.Write(make([]byte, 1<<20))
	})
	b, err := f.Get(t.Context(), exact)
	if err != nil || len(b.Bytes) != 1<<20 {
		t.Fatalf("a body of just the limit: %v", err)
	}
	b.Release()
}

// TestRangeLies: answers to requests for a range that are not that range.
func TestRangeLies(t *testing.T) {
	file := picture(t, 100, 100)
	head := string(file[:4096])
	f := fetcher(t, nil)
	for answer, words := range map[string]string{
		"200 OK\r\nContent-Length: 100":                                                                             "does not answer requests for a part",
		"206 Partial Content\r\nContent-Length: 4096":                                                               "another part",
		"206 Partial Content\r\nContent-Range: bytes 1-4096/9999\r\nContent-Length: 4096":                           "another part",
		"206 Partial Content\r\nContent-Range: bytes 1-4095/9999\r\nContent-Length: 4095":                           "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4096/9999\r\nContent-Length: 4097":                           "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-99/9999\r\nContent-Length: 100":                              "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4095/4000\r\nContent-Length: 4096":                           "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4095/x\r\nContent-Length: 4096":                              "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4095\r\nContent-Length: 4096":                                "another part",
		"206 Partial Content\r\nContent-Range: bytes 9-0/9999\r\nContent-Length: 4096":                              "another part",
		"206 Partial Content\r\nContent-Range: lines 0-4095/9999\r\nContent-Length: 4096":                           "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-99999999999999999999/*\r\nContent-Length: 9":                 "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4095/9999\r\nContent-Length: 50":                             "another part",
		"206 Partial Content\r\nContent-Range: bytes 0-4095/9999\r\nContent-Encoding: gzip\r\nContent-Length: 4096": "compressed",
		"206 Partial Content\r\nContent-Type: multipart/byteranges; boundary=x\r\nContent-Length: 4096":             "another part",
		"416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\nContent-Length: 0":                                "status 416",
	} {
		_, err := f.Size(t.Context(), raw(t, "HTTP/1.1 "+answer+"\r\nConnection: close\r\n\r\n"+head))
		refused(t, answer, err, fault.Invalid, words)
	}
	_, err := f.Size(t.Context(), raw(t, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4095/9999\r\nContent-Length: 4096\r\nConnection: close\r\n\r\nshort"))
	refused(t, "a short range", err, fault.Invalid, "less than it said")

	// A file that is another one when its end is read.
	var changed atomic.Int64
	gif := append([]byte("GIF89a\x00\x00\x00\x00\x00\x00\x00"), bytes.Repeat([]byte("!\xFE\x01x\x00"), 20000)...)
	moving, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(changed.Add(1))))
		content(gif)(w, r)
	})
	_, err = f.Size(t.Context(), moving)
	refused(t, "a file that changes", err, fault.Invalid, "changed while it was read")
}

// TestCompressed: what is compressed is not taken, so that no little file becomes a large one.
func TestCompressed(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, _ = w.Write(make([]byte, 32<<20))
	_ = w.Close()
	for _, encoding := range []string{"gzip", "br", "zstd", "gzip, gzip", "deflate"} {
		url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", "bytes 0-4095/9999")
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(bomb.Bytes()[:4096])
		})
		both(t, fetcher(t, nil), url, "compressed")
	}
	// As bytes of a file it is what it is: no picture, and no larger than it came.
	url, _ := serve(t, content(bomb.Bytes()))
	f := fetcher(t, nil)
	b, err := f.Get(t.Context(), url)
	if err != nil || len(b.Bytes) != bomb.Len() {
		t.Fatal(err)
	}
	b.Release()
	_, err = f.Size(t.Context(), url)
	refused(t, "a bomb", err, fault.Invalid, "no picture")
}

// forged is a PNG file whose header claims 65,535 by 65,535 pixels.
func forged(t testing.TB) []byte {
	b := picture(t, 4, 4)
	copy(b[16:], []byte{0, 0, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF})
	return b
}

// TestForged: pictures that are too large by their headers, and files that are cut.
func TestForged(t *testing.T) {
	url, _ := serve(t, content(forged(t)))
	both(t, fetcher(t, nil), url, "65535 by 65535 pixels are more than")
	small, _ := serve(t, content(picture(t, 100, 100)))
	both(t, fetcher(t, func(c *Config) { c.MaxPixels = 9999 }), small, "100 by 100 pixels are more than 9999")
	cut, _ := serve(t, content(picture(t, 4, 4)[:20]))
	_, err := fetcher(t, nil).Size(t.Context(), cut)
	refused(t, "a file of 20 bytes", err, fault.Invalid, "ends before")
	empty, _ := serve(t, content(nil))
	_, err = fetcher(t, nil).Size(t.Context(), empty)
	refused(t, "an empty file", err, fault.Invalid, "a part of a file")
}

// TestConfig: all that is wrong is said at once.
func TestConfig(t *testing.T) {
	_, err := New(Config{AllowHosts: []string{"http://a", "."}, AllowNets: make([]netip.Prefix, 1), MaxBytes: 1 << 30, Timeout: -1, MaxPixels: -1})
	for _, words := range []string{`"http://a"`, `"."`, "network", "cache bytes", "timeout", "max pixels"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v does not say %s", err, words)
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"http://example.com/a?b#c", "https://[::1]:80/", "http://0x7f.1/", "http://a@b/", "http://[fe80::1%25x]/"} {
		f.Add(s)
	}
	cfg := Config{}
	cfg.EnsureDefaults()
	f.Fuzz(func(t *testing.T, s string) {
		u, err := cfg.parseURL(s)
		if err != nil {
			return
		}
		again, err := url.Parse(u.String())
		if err != nil || cfg.checkURL(again) != nil || again.Host != u.Host {
			t.Fatalf("%q was let through, %q is not: %v", s, u, err)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && (a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) {
			t.Fatalf("%q was let through", s)
		}
	})
}

// TestQueries: whatever a query has, it stays in the address of the request.
func TestQueries(t *testing.T) {
	url, heard := serve(t, content(picture(t, 10, 10)))
	f := fetcher(t, nil)
	for query, want := range map[string]string{"a=b c": "a=b%20c", "a HTTP/1.0 ": "a%20HTTP/1.0%20", "é=\"1\"&%20+": "%c3%a9=\"1\"&%20+"} {
		if _, err := f.Size(t.Context(), url+"/?"+query); err != nil {
			t.Errorf("%q: %v", query, err)
			continue
		}
		if all := heard.all(); all[len(all)-1].URL.RawQuery != want || all[len(all)-1].Proto != "HTTP/1.1" {
			t.Errorf("%q was asked for as %q", query, all[len(all)-1].URL.RawQuery)
		}
	}
}
