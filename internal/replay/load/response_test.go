package load

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// reads gives one text a read, and moves the clock on at each.
type reads struct {
	texts []string
	clock time.Duration
}

func (r *reads) Read(p []byte) (int, error) {
	if len(r.texts) == 0 {
		return 0, io.EOF
	}
	r.clock++
	n := copy(p, r.texts[0])
	if r.texts[0] = r.texts[0][n:]; r.texts[0] == "" {
		r.texts = r.texts[1:]
	}
	return n, nil
}

func (r *reads) now() time.Duration { return r.clock }

// whole reads one answer.
func whole(p *responseReader) (string, error) {
	if err := p.readHead(); err != nil {
		return "", err
	}
	var body []byte
	for {
		piece, err := p.nextPiece()
		body = append(body, piece...)
		if err == io.EOF {
			return string(body), nil
		}
		if err != nil {
			return string(body), err
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		body       string
		err        error
		keep       bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", nil, true},
		{"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", nil, true},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", "abc0123456789", nil, true},
		{"until the end", "HTTP/1.1 200 OK\r\n\r\nabc", "abc", nil, false},
		{"old", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", "a", nil, false},
		{"close", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\na", "a", nil, false},
		{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", nil, true},
		{"no content", "HTTP/1.1 204 No\r\n\r\n", "", nil, true},
		{"bare line ends", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", "a", nil, true},
		{"the same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\na", "a", nil, true},

		{"nothing", "", "", io.EOF, false},
		{"half a head", "HTTP/1.1 200 OK\r\nConte", "", io.ErrUnexpectedEOF, false},
		{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "ab", io.ErrUnexpectedEOF, true},
		{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", "ab", io.ErrUnexpectedEOF, true},
		{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "a", io.ErrUnexpectedEOF, true},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "", errMalformed, true},
		{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", errMalformed, true},
		{"strange coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "", errMalformed, true},
		{"negative", "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "", errMalformed, true},
		{"chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n", "", errMalformed, true},
		{"huge chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n", "", errMalformed, true},
		{"chunk without end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "a", errMalformed, true},
		{"bare line ends of chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\na\n0\n\n", "", errMalformed, true},
		{"chunks of an old server", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", errMalformed, false},
		{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", "", errMalformed, false},
		{"not HTTP", "SSH-2.0-x\r\n\r\n", "", errMalformed, false},
		{"folded", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "", errMalformed, true},
		{"upgrade", "HTTP/1.1 200 OK\r\nConnection: upgrade\r\n\r\n", "", errMalformed, true},
		{"endless line", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxHead) + "\r\n\r\n", "", errMalformed, true},
		{"endless headers", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxHeaders+1) + "\r\n", "", errMalformed, true},
		{"endless interim", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInterim+1), "", errMalformed, false},
	} {
		src := &reads{}
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(tt.text), "bytes": iotest.OneByteReader(strings.NewReader(tt.text))} {
			p := newResponseReader(r, src.now)
			body, err := whole(p)
			if body != tt.body || !errors.Is(err, tt.err) || err != nil && tt.err == nil || err == nil && p.keepAlive != tt.keep {
				t.Errorf("%s, %s: %q, %v, keep %v; want %q, %v, %v", tt.name, name, body, err, p.keepAlive, tt.body, tt.err, tt.keep)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	p := newResponseReader(strings.NewReader("HTTP/1.1 200 OK\r\ncontent-TYPE: text/Event-Stream; charset=utf-8\r\nX-Penstock-Worker: 72\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"), (&reads{}).now)
	if err := p.readHead(); err != nil || !p.eventStream || !p.compressed || p.worker != 72 {
		t.Errorf("%+v, %v", p.responseHead, err)
	}
}

// TestMoments: a piece of a body has the moment of the read that brought it, not that
// of the read which ended its chunk.
func TestMoments(t *testing.T) {
	src := &reads{texts: []string{
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", // 1
		"5\r\nab",                    // 2
		"c",                          // 3
		"de\r\n2\r\nfg\r\n1",         // 4: the rest of the chunk, and another
		"\r\nh\r\n0\r\n\r\nHTTP/1.1", // 5
	}}
	p := newResponseReader(src, src.now)
	if err := p.readHead(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		text string
		at   time.Duration
	}{{"ab", 2}, {"c", 3}, {"de", 4}, {"fg", 4}, {"h", 5}} {
		piece, err := p.nextPiece()
		if string(piece) != want.text || p.readAt != want.at || err != nil {
			t.Errorf("%q at %d, %v; want %q at %d", piece, p.readAt, err, want.text, want.at)
		}
	}
	if _, err := p.nextPiece(); err != io.EOF || !p.done || string(p.buf[p.r:p.w]) != "HTTP/1.1" {
		t.Errorf("at the end: %v, %v, %q", err, p.done, p.buf[p.r:p.w])
	}
}

// FuzzResponse: what this reader takes, net/http takes too, and reads the same.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
		"HTTP/1.0 503 No\nConnection: keep-alive\n\nabc",
		"HTTP/1.1 103 X\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 7\r\n\r\n",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		p := newResponseReader(pieces(data, int(size)+1), (&reads{}).now)
		body, err := whole(p)
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(data))
		for {
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatalf("net/http refuses %q: %v", data, err)
			}
			theirs, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatalf("net/http refuses the body of %q: %v", data, err)
			}
			if resp.StatusCode >= 100 && resp.StatusCode < 200 {
				continue
			}
			if resp.StatusCode != p.status || string(theirs) != body || p.keepAlive && resp.Close {
				t.Fatalf("%q: %d %q keep %v, net/http has %d %q close %v", data, p.status, body, p.keepAlive, resp.StatusCode, theirs, resp.Close)
			}
			return
		}
	})
}

// pieces is a reader that gives at most so many bytes a read.
func pieces(data []byte, size int) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if len(data) == 0 {
			return 0, io.EOF
		}
		n := copy(p[:min(len(p), size)], data)
		data = data[n:]
		return n, nil
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
