package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
	"penstock/internal/replay"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// script is a server that says fixed bytes to each request, whatever it is.
type script struct {
	net.Listener
	served sync.WaitGroup
}

// play answers each request with what say writes. Returning false from say closes
// the connection.
func play(t *testing.T, say func(conn *net.TCPConn, number int) bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{Listener: l}
	s.served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.served.Go(func() { serveScript(conn.(*net.TCPConn), say) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.served.Wait()
	})
	return "http://" + l.Addr().String()
}

func serveScript(conn *net.TCPConn, say func(*net.TCPConn, int) bool) {
	defer conn.Close()
	br := bufio.NewReader(conn)
	for number := 0; ; number++ {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil || !say(conn, number) {
			return
		}
	}
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	token      = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	finish     = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
	counts     = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

// inChunk is text as a chunk.
func inChunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

const lastChunk = "0\r\n\r\n"

func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		then       string // "reset", "wait"; otherwise the connection is closed
		want       string
	}{
		{"whole", streamHead + inChunk(token+token+finish+counts+doneEvent) + lastChunk, "", ""},
		{"without usage", streamHead + inChunk(token+token+finish+doneEvent) + lastChunk, "", ""},
		{"without [DONE]", streamHead + inChunk(token+finish) + lastChunk, "", ""},
		{"without an end, but whole", streamHead + inChunk(token+finish+doneEvent), "", ""},
		{"tokens without text", streamHead + inChunk(finish+counts+doneEvent) + lastChunk, "", ""},
		{"comments", streamHead + inChunk(": x\r\n\r\n"+token+finish+": y\n\n"+doneEvent) + lastChunk, "", ""},

		{"reset before an answer", "", "reset", "reset"},
		{"closed before an answer", "", "", "truncated"},
		{"reset in the stream", streamHead + inChunk(token), "reset", "reset"},
		{"closed in the stream", streamHead + inChunk(token), "", "truncated"},
		{"ended without a reason", streamHead + inChunk(token) + lastChunk, "", "truncated"},
		{"ended in an event", streamHead + inChunk(token+"data: {") + lastChunk, "", "truncated"},
		{"ended at once", streamHead + lastChunk, "", "truncated"},
		{"nothing but the end", streamHead + inChunk(doneEvent) + lastChunk, "", "empty"},
		{"silent", "", "wait", "timeout"},
		{"silent in the stream", streamHead + inChunk(token), "wait", "timeout"},
		{"an error in the stream", streamHead + inChunk(token+"data: {\"error\":{\"message\":\"x\",\"type\":\"internal_error\"}}\n\n"+doneEvent) + lastChunk, "", "error_event"},
		{"an error by its name", streamHead + inChunk("event: error\ndata: {}\n\n") + lastChunk, "", "error_event"},
		{"no room in the stream", streamHead + inChunk("data: {\"error\":{\"code\":503}}\n\n") + lastChunk, "", "overloaded"},
		{"no JSON", streamHead + inChunk("data: hello\n\n") + lastChunk, "", "malformed_stream"},
		{"an endless event", streamHead + inChunk("data: "+strings.Repeat("x", maxEvent)), "", "malformed_stream"},
		{"bad chunks", streamHead + "zz\r\n", "", "malformed_http"},
		{"no HTTP", "hello\r\n\r\n", "", "malformed_http"},
		{"an answer in one piece", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "", "not_a_stream"},
		{"compressed", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", "", "compressed"},
		{"too many", "HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", "", "status_429"},
		{"no room", "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}", "", "overloaded"},
		{"elsewhere", "HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "", "status_307"},
		{"a status without an end", "HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nx", "", "status_500"},
	} {
		url := play(t, func(conn *net.TCPConn, _ int) bool {
			_, _ = io.WriteString(conn, tt.says) // a client that had enough closes
			switch tt.then {
			case "reset":
				_ = conn.SetLinger(0)
				return false
			case "wait":
				return true
			}
			return false
		})
		timeout := time.Minute
		if tt.then == "wait" {
			timeout = 100 * time.Millisecond
		}
		for range 2 { // the way there is open after each
			rec := &record{}
			_, err := Run(t.Context(), Config{Endpoint: Endpoint{URL: url}, Model: "m", Timeout: timeout},
				&list{requests: []replay.Request{{Input: 3, Output: 2}}}, rec)
			if err != nil || len(rec.samples) != 1 || rec.samples[0].Error != tt.want {
				t.Fatalf("%s: %+v, %v; want %q", tt.name, rec.samples, err, tt.want)
			}
			if s := rec.samples[0]; tt.want == "" && (s.Output < 1 || s.First < s.Sent || s.Last < s.First || s.Done < s.Last) {
				t.Errorf("%s: %+v", tt.name, s)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	url := "http://" + fixturetest.ReserveAddr(t)
	rec := &record{}
	_, err := Run(t.Context(), Config{Endpoint: Endpoint{URL: url}, Model: "m", Concurrency: 2}, at(0, 0, 0), rec)
	if err != nil || len(rec.samples) != 3 || rec.samples[2].Error != "refused" {
		t.Errorf("%+v, %v", rec.samples, err)
	}
}

// TestResent: a request that meets a connection which the server closed while it
// waited is sent again, once. One whose answer had begun is not.
func TestResent(t *testing.T) {
	whole := streamHead + inChunk(token+finish+counts+doneEvent) + lastChunk
	url := play(t, func(conn *net.TCPConn, number int) bool {
		if number == 1 {
			return false
		}
		_, _ = io.WriteString(conn, whole)
		return true
	})
	rec := &record{}
	sum, err := Run(t.Context(), Config{Endpoint: Endpoint{URL: url}, Model: "m", Concurrency: 1}, at(0, 0, 0, 0), rec)
	if err != nil || sum.Answers != 4 || sum.Resent != 3 {
		t.Errorf("%+v, %+v, %v", sum, rec.samples, err)
	}
	for begun, want := range map[string]string{"HTTP/1.1 2": "truncated", streamHead + inChunk(token): "reset"} {
		url = play(t, func(conn *net.TCPConn, number int) bool {
			if number == 1 {
				_, _ = io.WriteString(conn, begun)
				if want == "reset" {
					_ = conn.SetLinger(0)
				}
				return false
			}
			_, _ = io.WriteString(conn, whole)
			return true
		})
		rec = &record{}
		sum, err = Run(t.Context(), Config{Endpoint: Endpoint{URL: url}, Model: "m", Concurrency: 1}, at(0, 0), rec)
		if err != nil || sum.Answers != 1 || sum.Resent != 0 || rec.samples[1].Error != want {
			t.Errorf("%+v, %+v, %v", sum, rec.samples, err)
		}
	}
}

// TestResentFirst: a connection that is opened ahead of its first request may be
// closed meanwhile too. A request that finds even a new one closed is not answered.
func TestResentFirst(t *testing.T) {
	for _, tt := range []struct {
		closed, answers int
		kinds           []string
	}{
		{1, 2, nil},
		{2, 1, []string{"truncated", "reset"}}, // by how far the closing is
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			for n := 0; ; n++ {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				if n < tt.closed {
					_ = conn.Close()
					continue
				}
				serving.Go(func() {
					serveScript(conn.(*net.TCPConn), func(conn *net.TCPConn, _ int) bool {
						_, _ = io.WriteString(conn, streamHead+inChunk(token+finish+counts+doneEvent)+lastChunk)
						return true
					})
				})
			}
		})
		rec := &record{}
		sum, err := Run(t.Context(), Config{Endpoint: Endpoint{URL: "http://" + l.Addr().String()}, Model: "m", Concurrency: 1}, at(0, 0), rec)
		if err != nil || sum.Answers != tt.answers || sum.Resent != 1 {
			t.Errorf("%d closed: %+v, %+v, %v", tt.closed, sum, rec.samples, err)
		}
		if first := rec.samples[0].Error; tt.kinds == nil && first != "" || tt.kinds != nil && !slices.Contains(tt.kinds, first) {
			t.Errorf("%d closed: the first request ended with %q", tt.closed, first)
		}
		_ = l.Close()
		serving.Wait()
	}
}

// TestKeptConnection: a connection serves one request after another, after errors too.
func TestKeptConnection(t *testing.T) {
	var mu sync.Mutex
	conns := map[*net.TCPConn]bool{}
	url := play(t, func(conn *net.TCPConn, number int) bool {
		mu.Lock()
		conns[conn] = true
		mu.Unlock()
		if number%2 == 0 {
			_, _ = io.WriteString(conn, "HTTP/1.1 429 No\r\nContent-Length: 5\r\n\r\nabcde")
			return true
		}
		_, _ = io.WriteString(conn, streamHead+inChunk(token+finish+doneEvent)+lastChunk)
		return true
	})
	rec := &record{}
	sum, err := Run(t.Context(), Config{Endpoint: Endpoint{URL: url}, Model: "m", Concurrency: 1}, at(0, 0, 0, 0), rec)
	if err != nil || sum.Answers != 2 || len(conns) != 1 {
		t.Errorf("%+v over %d connections, %v", sum, len(conns), err)
	}
}

// TestTokenPath: between one token and the next nothing is allocated.
func TestTokenPath(t *testing.T) {
	stream := []byte(strings.Repeat(inChunk(token), 1000))
	next := append([]byte(streamHead), stream...)
	p := newResponseReader(readerFunc(func(b []byte) (int, error) {
		if len(next) == 0 {
			next = stream
		}
		n := copy(b[:min(len(b), 100)], next) // pieces of tokens
		next = next[n:]
		return n, nil
	}), func() time.Duration { return 0 })
	if err := p.readHead(); err != nil {
		t.Fatal(err)
	}
	a := &outcome{tokenTimes: make([]time.Duration, 0, maxTokens)}
	visit := a.handleEvent
	var ev sseDecoder
	read := func() {
		piece, err := p.nextPiece()
		if err == nil {
			err = ev.decodePiece(piece, visit)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		read()
	}
	if n := testing.AllocsPerRun(5000, read); n != 0 || len(a.tokenTimes) < 1000 {
		t.Errorf("%v allocations a read, %d tokens", n, len(a.tokenTimes))
	}
}

func BenchmarkToken(b *testing.B) {
	event := []byte(`data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795255455,"model":"m","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	var ev sseDecoder
	a := &outcome{}
	visit := a.handleEvent
	b.ReportAllocs()
	for b.Loop() {
		a.tokenTimes = a.tokenTimes[:0]
		if err := ev.decodePiece(event, visit); err != nil {
			b.Fatal(err)
		}
	}
}

func TestProbe(t *testing.T) {
	has := func(text string, words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	refuse := func(w http.ResponseWriter, what string) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":"no %s here"}}`, what)
	}
	for _, tt := range []struct {
		name    string
		refuses []string // requests with these words in them
		counts  int
		want    RequestForm
		err     string
	}{
		{"everything", nil, 8, RequestForm{Prompt: TokenPrompt, Length: ExactLength}, ""},
		{"a token before each prompt", nil, 9, RequestForm{Prompt: TokenPrompt, Length: ExactLength}, ""},
		{"no min_tokens", []string{"min_tokens"}, 8, RequestForm{Prompt: TokenPrompt, Length: IgnoreEOS}, ""},
		{"no lengths", []string{"min_tokens", "ignore_eos"}, 8, RequestForm{Prompt: TokenPrompt, Length: MaxLength}, ""},
		{"no options", []string{"min_tokens", "ignore_eos", "stream_options"}, 8, RequestForm{Prompt: TokenPrompt, Length: MaxLength, NoUsage: true}, ""},
		{"chat only", []string{"prompt\""}, 8, RequestForm{Prompt: TextPrompt, Length: ExactLength}, ""},
		{"ids taken for text", nil, 30, RequestForm{Prompt: TextPrompt, Length: ExactLength}, ""},
		{"nothing", []string{"model"}, 8, RequestForm{}, "status 400: no such thing here"},
	} {
		mux := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			if has(string(text), tt.refuses...) {
				refuse(w, "such\\u0007thing")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "%sdata: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":1}}\n\n%s", token, tt.counts, doneEvent)
		})
		form, err := probeWith(t, mux)
		if form != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", tt.name, form, err, tt.want, tt.err)
		}
	}
}

func probeWith(t *testing.T, handler http.Handler) (RequestForm, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	served := make(chan error)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	return Probe(t.Context(), Config{Endpoint: Endpoint{URL: "http://" + l.Addr().String()}, Model: "m"}, TokenPrompt, TextPrompt)
}

// TestProbeEnds: a server that refuses every request is asked once.
func TestProbeEnds(t *testing.T) {
	asked := 0
	_, err := probeWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":{"message":"no good key"}}`)
	}))
	if asked != 1 || err == nil || !strings.Contains(err.Error(), "401: no good key") {
		t.Errorf("asked %d times: %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	url := play(t, func(*net.TCPConn, int) bool { cancel(); return true })
	if _, err := Probe(ctx, Config{Endpoint: Endpoint{URL: url}, Model: "m"}, TokenPrompt); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
