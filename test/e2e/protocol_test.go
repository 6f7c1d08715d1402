package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"penstock/internal/fixturetest"
)

// TestOneIDManyRequests: clients that all send the same x-request-id at once are
// told apart, and none of them gets another's answer.
func TestOneIDManyRequests(t *testing.T) {
	s := start(t)
	const n = 24
	alone := make([]answer, n)
	for i := range alone {
		alone[i] = s.complete("/v1/completions", sampled(i, 20))
	}
	var all sync.WaitGroup
	for i := range alone {
		all.Go(func() {
			got := s.complete("/v1/completions", sampled(i, 20), "x-request-id", "the-same")
			if got.status != 200 || got.text != alone[i].text || got.finish != alone[i].finish || got.output != alone[i].output {
				t.Errorf("request %d\nalone    %+v\ntogether %+v", i, alone[i], got)
			}
		})
	}
	all.Wait()
	s.idle()
}

// TestStopStrings: wherever a stop string lies, across the pieces of tokens and
// of characters, the answer ends right before its first occurrence, streamed and
// whole.
func TestStopStrings(t *testing.T) {
	s := start(t, "model-path="+ownCheckpoint(t), "served-model-name=penstock-tiny")
	// Tokens below 256 are single bytes, and a checkpoint may draw them. The first half of a character and the
	// second are made likely, so that many characters take two tokens.
	bias := map[string]float64{"195": 8}
	for b := 0x80; b < 0xc0; b++ {
		bias[fmt.Sprint(b)] = 4
	}
	body := func(stop ...string) map[string]any {
		b := map[string]any{"model": "penstock-tiny", "prompt": "The mill", "max_tokens": 60, "temperature": 1.0, "seed": 5, "logit_bias": bias}
		if len(stop) > 0 {
			b["stop"] = stop
		}
		return b
	}
	text := s.complete("/v1/completions", body()).text
	wide := 0
	var stops [][]string
	for at, r := range text {
		if r == utf8.RuneError {
			continue
		}
		if utf8.RuneLen(r) > 1 {
			wide++
			stops = append(stops, []string{string(r)})
		}
		if at%3 == 0 {
			for _, runes := range []int{2, 5} {
				piece := []rune(text[at:])
				piece = piece[:min(runes, len(piece))]
				if !slices.Contains(piece, utf8.RuneError) {
					stops = append(stops, []string{string(piece)})
				}
			}
		}
	}
	stops = append(stops, []string{"never said", stops[0][0], stops[len(stops)/2][0]})
	t.Logf("%d stops in %q, %d characters of several bytes", len(stops), text, wide)
	if wide < 8 || len(stops) < 20 {
		t.Fatalf("the answer %q has too little to stop at", text)
	}
	for _, stop := range stops {
		end := len(text)
		for _, one := range stop {
			if at := strings.Index(text, one); at >= 0 {
				end = min(end, at)
			}
		}
		whole := s.complete("/v1/completions", body(stop...))
		streamed, err := s.stream(t.Context(), "/v1/completions", body(stop...))
		if err != nil {
			t.Fatal(err)
		}
		for kind, got := range map[string]answer{"whole": whole, "streamed": streamed} {
			if got.text != text[:end] || got.finish != "stop" {
				t.Errorf("%s with stop %q: %q (%s), want %q", kind, stop, got.text, got.finish, text[:end])
			}
		}
		if whole.output != streamed.output {
			t.Errorf("stop %q: %d tokens whole, %d streamed", stop, whole.output, streamed.output)
		}
	}
	s.idle()
}

// dial opens a connection that ends with the test.
func (s *server) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(fixturetest.TimeLeft(s.t))); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// post is a request as it goes over the wire.
func post(t *testing.T, version string, body map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Appendf(nil, "POST /v1/completions HTTP/%s\r\nHost: penstock\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(data), data)
}

// TestHTTP10: a client of the old protocol gets its answer, streamed too, without
// chunks, and the end of the connection as the end.
func TestHTTP10(t *testing.T) {
	s := start(t)
	want := s.complete("/v1/completions", sampled(1, 12))
	for _, stream := range []bool{false, true} {
		body := sampled(1, 12)
		body["stream"] = stream
		conn := s.dial()
		if _, err := conn.Write(post(t, "1.0", body)); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn) // until the server closes it
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(string(all), "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.0 200 ") || strings.Contains(strings.ToLower(head), "chunked") {
			t.Errorf("stream %t: head\n%s", stream, head)
		}
		var got answer
		for line := range strings.Lines(rest) {
			data := strings.TrimSpace(strings.TrimPrefix(line, "data: "))
			var c completion
			if data != "" && data != "[DONE]" && json.Unmarshal([]byte(data), &c) != nil {
				t.Fatalf("stream %t: line %q", stream, line)
			}
			got.fold(&c)
		}
		if got.text != want.text || got.finish != want.finish || stream != strings.HasSuffix(rest, "data: [DONE]\n\n") {
			t.Errorf("stream %t: %+v, want %+v; body\n%s", stream, got, want, rest)
		}
	}
	s.idle()
}

// TestPipelining: requests that a client sends without waiting are answered one
// after another, in their order.
func TestPipelining(t *testing.T) {
	s := start(t)
	const n = 8
	conn := s.dial()
	var wire []byte
	for i := range n {
		wire = append(wire, post(t, "1.1", sampled(i, 6))...)
	}
	if _, err := conn.Write(wire); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for i := range n {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		var c completion
		err = json.NewDecoder(resp.Body).Decode(&c)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("answer %d: %s, %v", i, resp.Status, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		var got answer
		got.fold(&c)
		if want := s.complete("/v1/completions", sampled(i, 6)); got.text != want.text {
			t.Errorf("answer %d is %q, want %q", i, got.text, want.text)
		}
	}
	s.idle()
}

// TestIdleConnections: connections that say nothing, or half a request, do not
// keep others from being served.
func TestIdleConnections(t *testing.T) {
	s := start(t)
	for i := range 2000 {
		conn := s.dial()
		if i%2 == 0 {
			if _, err := conn.Write([]byte("POST /v1/completions HTTP/1.1\r\nHost: pen")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 4 {
		if got := s.complete("/v1/completions", sampled(i, 8)); got.status != 200 || got.output == 0 {
			t.Errorf("request %d: %+v", i, got)
		}
	}
	s.idle()
}
