package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// forgedPNG is the beginning of a PNG file that claims a size, with a checksum that is right.
func forgedPNG(width, height uint32) []byte {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR")
	b = binary.BigEndian.AppendUint32(b, width)
	b = binary.BigEndian.AppendUint32(b, height)
	b = append(b, 8, 2, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[12:]))
	return append(b, "\x00\x00\x00\x02IDAT\x78\x9c\x00\x00\x00\x00"...)
}

// forgedJPEG is the beginning of a JPEG file that claims a size.
func forgedJPEG(width, height uint16) []byte {
	b := []byte("\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xc0\x00\x11\x08")
	b = binary.BigEndian.AppendUint16(b, height)
	b = binary.BigEndian.AppendUint16(b, width)
	return append(b, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1, 0xff, 0xda)
}

// metadata is where clouds tell machines their secrets.
const metadata = "http://169.254.169.254/latest/meta-data/"

// den serves what no client should have others fetch.
func den(t *testing.T) *httptest.Server {
	t.Helper()
	good := pngOf(t, picture(1, 56, 56))
	forever := func(w http.ResponseWriter, r *http.Request, first, piece []byte, pause time.Duration) {
		if _, err := w.Write(first); err != nil {
			return
		}
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			if _, err := w.Write(piece); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/redirects/{n}", func(w http.ResponseWriter, r *http.Request) {
		var n int
		if _, err := fmt.Sscan(r.PathValue("n"), &n); err != nil || n > 3 {
			t.Errorf("redirect %s was followed: %v", r.PathValue("n"), err)
		}
		if n < 1000 {
			http.Redirect(w, r, fmt.Sprintf("/redirects/%d", n+1), http.StatusFound)
			return
		}
		_, _ = w.Write(good)
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		if asked, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
			w.Header().Set("Content-Range", "bytes "+asked+"/1000000")
			w.WriteHeader(http.StatusPartialContent)
		}
		forever(w, r, []byte("\xff\xd8\xff\xe0\xff\xf0"), []byte{0}, 20*time.Millisecond)
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		forever(w, r, nil, make([]byte, 64<<10), time.Microsecond)
	})
	mux.HandleFunc("/silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/squeezed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.CopyN(z, zeros{}, 64<<20)
		_ = z.Close()
	})
	for path, file := range map[string][]byte{
		"/forged.png": forgedPNG(65535, 65535), "/forged.jpg": forgedJPEG(65535, 65535), "/cut.png": good[:20], "/half.png": good[:len(good)/2],
		"/page": []byte("<html><body>Sign in first</body></html>"), "/empty": nil,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file))
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// misname has every name that is not in this machine's own table lead to an address, for this
// process, until the test ends.
func misname(t *testing.T, ip [4]byte) {
	t.Helper()
	conn := must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	var server sync.WaitGroup
	server.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12 // where the name that is asked for ends
			for end < n && b[end] != 0 {
				end += int(b[end]) + 1
			}
			if end+5 > n {
				continue
			}
			answer := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end+5]...)
			if b[end+2] == 1 { // its IPv4 address
				answer[7] = 1
				answer = append(answer, 0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ip[0], ip[1], ip[2], ip[3])
			}
			_, _ = conn.WriteTo(answer, from) // the resolver asks again
		}
	})
	system := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = system
		_ = conn.Close()
		server.Wait()
	})
}

// allocated is how many bytes this process has ever allocated: its growth is at least what was in use at
// any moment since.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestHostileMedia: whatever a request shows, its client is told which part of it is wrong and why, within the
// time that there is, and nothing of what a server inside said; the memory that it takes does not
// depend on what was claimed, and afterwards all is as before.
func TestHostileMedia(t *testing.T) {
	misname(t, [4]byte{169, 254, 169, 254})
	house := den(t)
	evil := house.URL
	good := pngOf(t, picture(1, 56, 56))
	const part, url, text = "messages[0].content[1]", "messages[0].content[1].image_url.url", "messages[0]"
	inline := func(file []byte) string { return dataURI("image/png", file) }
	type attack struct {
		name, url   string
		part, words string // what the error is about, or begins with, and says
	}
	attacks := []attack{
		{"forged PNG", inline(forgedPNG(65535, 65535)), url, "65535"},
		{"forged JPEG", dataURI("image/jpeg", forgedJPEG(65535, 65535)), url, "65535"},
		{"forged PNG by URL", evil + "/forged.png", url, "65535"},
		{"forged JPEG by URL", evil + "/forged.jpg", url, "65535"},
		{"larger than there is", inline(forgedPNG(1<<31-1, 1<<31-1)), url, ""},
		{"header cut off", inline(good[:20]), url, ""},
		{"half a file", inline(good[:len(good)/2]), part, ""},
		{"header cut off, by URL", evil + "/cut.png", url, ""},
		{"half a file, by URL", evil + "/half.png", part, ""},
		{"nothing", evil + "/empty", url, ""},
		{"a page", evil + "/page", url, ""},
		{"no base64", "data:image/png;base64,@@@@", url, "base64"},
		{"data: of nothing", "data:,", url, ""},
		{"1,000 redirects", evil + "/redirects/0", url, "redirects more than 3 times"},
		{"metadata, literal", metadata, url, "may be fetched from"},
		{"metadata, mapped", "http://[::ffff:169.254.169.254]/latest/meta-data/", url, "may be fetched from"},
		{"metadata, mapped in hex", "http://[::ffff:a9fe:a9fe]/", url, "may be fetched from"},
		{"metadata, in one number", "http://2852039166/", url, "unusual form"},
		{"metadata, octal", "http://0251.0376.0251.0376/", url, "unusual form"},
		{"metadata, by name", "http://metadata.example/latest/meta-data/", url, "may be fetched from"},
		{"metadata, by redirect", evil + "/to?url=" + metadata, url, "redirects to where"},
		{"metadata, mapped, by redirect", evil + "/to?url=http://[::ffff:a9fe:a9fe]/", url, "redirects to where"},
		{"metadata, by redirect to a name", evil + "/to?url=http://metadata.example/", url, "may be fetched from"},
		{"a file of this machine", "file:///etc/passwd", url, "http or https"},
		{"a file, by redirect", evil + "/to?url=file:///etc/passwd", url, "redirects to where"},
		{"with a password", "http://user:secret@metadata.example/", url, "user name or password"},
		{"slow drip", evil + "/drip", url, "within"},
		{"silence", evil + "/silent", url, "time"},
		{"without end", evil + "/endless", url, ""},
		{"compressed", evil + "/squeezed", url, ""},
		{"text that stands for a picture", inline(good), text, "stands for media"},
	}
	slow := map[string]bool{"slow drip": true, "silence": true}
	ask := func(s *server, a attack) (string, *http.Response, []byte) {
		after := "What is it?"
		if a.part == text {
			after = "What is <|image|> it?"
		}
		resp, data := s.do(http.MethodPost, "/v1/chat/completions", showing(4, said("Look:"), shown("image", a.url), said(after)))
		var e struct {
			Error struct{ Message, Type, Param string }
		}
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatalf("%s: %s, no JSON: %.300s", a.name, resp.Status, data)
		}
		return e.Error.Param, resp, data
	}
	for _, way := range [][]string{nil, {"media-identity=bytes"}, {"frontend-decoding=true"}} {
		t.Run(fmt.Sprint(way), func(t *testing.T) {
			within := func(timeout string) *server {
				return start(t, append(way, "media-timeout="+timeout, "media-allow-private=true", "media-max-bytes=1048576", "media-cache-bytes=8388608", "kv-cache-blocks=128")...)
			}
			s, hasty := within("10m"), within("2s") // which a slow machine may need for more than what is slow itself
			var want answer
			for _, s := range []*server{hasty, s} { // each has all of its own goroutines then
				if want = s.complete("/v1/chat/completions", showing(4, said("Look:"), shown("image", inline(good)))); want.status != http.StatusOK {
					t.Fatalf("%+v", want)
				}
				s.idle()
				s.client.CloseIdleConnections()
			}
			runtime.GC()
			goroutines, before := countGoroutines(), allocated()
			var clients sync.WaitGroup
			for _, a := range attacks {
				for range 3 {
					clients.Go(func() {
						of := s
						if slow[a.name] {
							of = hasty
						}
						param, resp, data := ask(of, a)
						if resp.StatusCode != http.StatusBadRequest || !strings.HasPrefix(param, a.part) || a.part == text && param != text || !strings.Contains(string(data), "'"+param+"'") || !strings.Contains(string(data), a.words) {
							t.Errorf("%s: %s %.400s", a.name, resp.Status, data)
						}
						if strings.Contains(string(data), "127.0.0.1") || strings.Contains(string(data), "Sign in") || strings.Contains(string(data), "metadata.example") || strings.Contains(string(data), "secret") {
							t.Errorf("%s: the answer says too much: %.400s", a.name, data)
						}
						if resp.Header.Get("x-penstock-worker") != "" && a.part == url {
							t.Errorf("%s: it went to a worker", a.name)
						}
					})
				}
			}
			clients.Wait()
			t.Logf("%d requests at a time allocated %d KiB", 3*len(attacks), (allocated()-before)>>10)
			if grown := allocated() - before; grown > 32<<20 {
				t.Errorf("%d KiB are too much", grown>>10)
			}
			if again := s.complete("/v1/chat/completions", showing(4, said("Look:"), shown("image", inline(good)))); again.text != want.text {
				t.Errorf("afterwards %+v, before %+v", again, want)
			}
			for _, s := range []*server{s, hasty} {
				s.idle()
				s.returned()
				s.client.CloseIdleConnections()
			}
			house.CloseClientConnections()
			s.goroutinesGone(goroutines)
			for _, private := range []string{"Sign in", "metadata.example", "iVBORw0KGgo", "secret"} {
				if strings.Contains(s.log.String()+hasty.log.String(), private) {
					t.Errorf("%q is in the log", private)
				}
			}
		})
	}

	// This machine and private networks are as closed, unless a setting opens them.
	s := start(t)
	for _, at := range []string{evil + "/half.png", "http://localhost/", "http://10.0.0.1/", "http://[::1]/", "http://[fd00::1]/"} {
		param, resp, data := ask(s, attack{url: at})
		if resp.StatusCode != http.StatusBadRequest || param != url || !strings.Contains(string(data), "may be fetched from") {
			t.Errorf("%s: %s %s", at, resp.Status, data)
		}
	}
}

// TestStalledPictures: pictures of which a few bytes come now and then, and whose length their host does not
// say, keep no other picture waiting.
func TestStalledPictures(t *testing.T) {
	good := pngOf(t, picture(1, 56, 56))
	begun := make(chan struct{}, 100)
	mux := http.NewServeMux()
	mux.HandleFunc("/stalled/", func(w http.ResponseWriter, r *http.Request) {
		begin := sync.OnceFunc(func() { begun <- struct{}{} })
		for r.Context().Err() == nil {
			_, _ = w.Write(good[:1])
			_ = http.NewResponseController(w).Flush()
			begin()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	})
	mux.HandleFunc("/good.png", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(good))
	})
	host := httptest.NewServer(mux)
	t.Cleanup(host.Close)
	s := start(t, "media-identity=bytes", "media-allow-private=true", "media-min-rate=0", "media-timeout=10m", "kv-cache-blocks=128")
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range 8 {
		body := must(json.Marshal(showing(4, said("Look:"), shown("image", fmt.Sprintf("%s/stalled/%d", host.URL, i)))))(t)
		clients.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := s.client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	for range 8 {
		<-begun
	}
	if a := s.complete("/v1/chat/completions", showing(4, said("Look:"), shown("image", host.URL+"/good.png"))); a.status != http.StatusOK {
		t.Errorf("beside stalled pictures: %+v", a)
	}
	if n := s.metric("penstock_frontend_inflight"); n != "8" {
		t.Errorf("%s requests are left, want those of the stalled pictures", n)
	}
}

// TestHugeDataURI: a data: URI of 100 MB is refused before it is decoded, for what a body may have or,
// where bodies may be larger, for what a file may have.
func TestHugeDataURI(t *testing.T) {
	const size = 100 << 20
	body := func() io.Reader {
		head, tail, _ := strings.Cut(string(must(json.Marshal(showing(4, said("Look:"), shown("image", dataURI("image/png", forgedPNG(64, 64))+"HERE"))))(t)), "HERE")
		return io.MultiReader(strings.NewReader(head), io.LimitReader(letters{}, size), strings.NewReader(tail))
	}
	for _, tc := range []struct {
		settings []string
		status   int
		param    string
		words    string
		times    uint64 // of the size that may be allocated
	}{
		{nil, http.StatusRequestEntityTooLarge, "", "33554432", 2},
		{[]string{"max-body-bytes=209715200"}, http.StatusBadRequest, "messages[0].content[1].image_url.url", "67108864", 4},
		{[]string{"max-body-bytes=209715200", "frontend-decoding=true"}, http.StatusBadRequest, "messages[0].content[1].image_url.url", "67108864", 4},
	} {
		t.Run(fmt.Sprint(tc.settings), func(t *testing.T) {
			s := start(t, append(tc.settings, "kv-cache-blocks=128")...)
			s.idle()
			before := allocated()
			resp, data := s.do(http.MethodPost, "/v1/chat/completions", body())
			var e struct {
				Error struct{ Message, Param string }
			}
			if err := json.Unmarshal(data, &e); err != nil || resp.StatusCode != tc.status || e.Error.Param != tc.param || !strings.Contains(e.Error.Message, tc.words) || len(data) > 1000 {
				t.Errorf("%s %v %.400s", resp.Status, err, data)
			}
			t.Logf("%d MiB were allocated: %s", (allocated()-before)>>20, data)
			if grown := allocated() - before; grown > tc.times*size {
				t.Errorf("%d MiB are too much", grown>>20)
			}
			s.idle()
		})
	}
}

// letters reads as base64 without end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'A'
	}
	return len(p), nil
}
