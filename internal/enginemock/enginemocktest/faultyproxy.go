package enginemocktest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"penstock/internal/enginemock"
)

// FaultyProxy is a proxy in front of a server which spoils its answers byte by byte. It asks the server once
// for the answer of the spoiled path, and repeats it while the path stays spoiled.
type FaultyProxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup
	mu       sync.Mutex
	path     string // whose answers are spoiled
	cut      int    // bytes of them to send; -1 is all, one at a time
	answer   []byte // such an answer, complete
	conns    map[net.Conn]struct{}
}

// StartFaultyProxy starts a proxy in front of a server; it closes at the end of the test.
func StartFaultyProxy(t testing.TB, s *enginemock.Server) *FaultyProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &FaultyProxy{listener: ln, target: ServerURL(t, s).Host, conns: map[net.Conn]struct{}{}}
	f.wg.Go(f.acceptConns)
	t.Cleanup(func() {
		_ = ln.Close()
		f.mu.Lock()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

// URL is the proxy's address.
func (f *FaultyProxy) URL() *url.URL {
	return &url.URL{Scheme: "http", Host: f.listener.Addr().String()}
}

// SpoilAnswers resets the connection after the given number of bytes of each answer of a path; -1 sends all
// of it, one byte at a time. An empty path spoils nothing.
func (f *FaultyProxy) SpoilAnswers(path string, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if path != f.path {
		f.answer = nil
	}
	f.path, f.cut = path, bytes
}

// AnswerSize is the length of the spoiled path's answer.
func (f *FaultyProxy) AnswerSize() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.answer)
}

// HeaderSize is the length of its header.
func (f *FaultyProxy) HeaderSize() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Index(f.answer, []byte("\r\n\r\n")) + 4
}

func (f *FaultyProxy) acceptConns() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[c] = struct{}{}
		f.mu.Unlock()
		f.wg.Go(func() {
			f.serveConn(c)
			_ = c.Close()
			f.mu.Lock()
			delete(f.conns, c)
			f.mu.Unlock()
		})
	}
}

// serveConn answers one request of a connection.
func (f *FaultyProxy) serveConn(c net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	spoil, cut, said := req.URL.Path == f.path, f.cut, f.answer
	f.mu.Unlock()
	if !spoil || said == nil {
		said = f.forwardRequest(req, body)
	}
	if !spoil {
		_, _ = c.Write(said)
		return
	}
	f.mu.Lock()
	f.answer = said
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
func (f *FaultyProxy) forwardRequest(req *http.Request, body []byte) []byte {
	up, err := net.Dial("tcp", f.target)
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
