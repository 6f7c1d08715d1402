package mimictest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"penstock/internal/mimic"
)

// FaultyProxy is a proxy in front of a server which spoils its answers byte by byte. It asks the server once
// for the answer of the spoiled path, and repeats it while the path stays spoiled.
type Flawed struct {
	ln   net.Listener
	to   string
	wg   sync.WaitGroup
	mu   sync.Mutex
	path string // whose answers are spoiled
	cut  int    // bytes of them to send; -1 is all, one at a time
	said []byte // such an answer, complete
	all  map[net.Conn]struct{}
}

// StartFaultyProxy starts a proxy in front of a server; it closes at the end of the test.
func Flaw(t testing.TB, s *mimic.Server) *Flawed {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Flawed{ln: ln, to: URL(t, s).Host, all: map[net.Conn]struct{}{}}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		f.mu.Lock()
		for c := range f.all {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

// URL is the proxy's address.
func (f *Flawed) URL() *url.URL { return &url.URL{Scheme: "http", Host: f.ln.Addr().String()} }

// SpoilAnswers resets the connection after the given number of bytes of each answer of a path; -1 sends all
// of it, one byte at a time. An empty path spoils nothing.
func (f *Flawed) Spoil(path string, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if path != f.path {
		f.said = nil
	}
	f.path, f.cut = path, bytes
}

// AnswerSize is the length of the spoiled path's answer.
func (f *Flawed) Size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.said)
}

// HeaderSize is the length of its header.
func (f *Flawed) Header() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Index(f.said, []byte("\r\n\r\n")) + 4
}

func (f *Flawed) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.all[c] = struct{}{}
		f.mu.Unlock()
		f.wg.Go(func() {
			f.serve(c)
			_ = c.Close()
			f.mu.Lock()
			delete(f.all, c)
			f.mu.Unlock()
		})
	}
}

// serveConn answers one request of a connection.
func (f *Flawed) serve(c net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	spoil, cut, said := req.URL.Path == f.path, f.cut, f.said
	f.mu.Unlock()
	if !spoil || said == nil {
		said = f.ask(req, body)
	}
	if !spoil {
		_, _ = c.Write(said)
		return
	}
	f.mu.Lock()
	f.said = said
	f.mu.Unlock()
	if cut < 0 {
		for i := range said {
			if _, err := c.Write(said[i : i+1]); err != nil {
				return
			}
		}
		return
	}
	_, _ = c.Write(said[:min(cut, len(said))])
	// What was sent must arrive before the reset: the client has it when it closes, or waits for more.
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// forwardRequest sends the request to the server, and returns the complete response.
func (f *Flawed) ask(req *http.Request, body []byte) []byte {
	up, err := net.Dial("tcp", f.to)
	if err != nil {
		return nil
	}
	defer func() { _ = up.Close() }()
	req.Header.Set("Connection", "close")
	req.Body, req.ContentLength, req.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	if req.Write(up) != nil {
		return nil
	}
	said, _ := io.ReadAll(up)
	return said
}
