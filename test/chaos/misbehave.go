package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/test/fleet"
)

// clientAct is one misbehaviour of a client on its own connection. It returns a violation of the server.
type clientAct struct {
	name string
	do   func(conn *net.TCPConn, r *rand.Rand) error
}

// clientActs are all of them.
func clientActs() []clientAct {
	return []clientAct{
		{"leave a stream", leaveStream},
		{"reset a stream", resetStream},
		{"read nothing", readNothing},
		{"send half a header", sendHalfHeader},
		{"send half a body", sendHalfBody},
		{"upload slowly", uploadSlowly},
		{"send wrong JSON", sendWrongJSON},
		{"send a huge header", sendHugeHeader},
		{"send a huge body", sendHugeBody},
		{"ask for what is not there", sendUnknown},
		{"send requests at once and leave", sendPipelined},
		{"speak another protocol", sendOtherProtocol},
		{"break chunks", breakChunks},
	}
}

// startMisbehaving starts clients which misbehave at the fleet's frontends, until the returned function is
// called, which waits for them.
func (c *churnScenario) startMisbehaving(ctx context.Context, clients int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	list := clientActs()
	for i := range clients {
		r := rand.New(rand.NewPCG(c.e.random.Uint64(), uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				a := list[r.IntN(len(list))]
				c.performAct(ctx, a, c.fleet.Frontends[r.IntN(len(c.fleet.Frontends))], r)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// performAct performs one act.
func (c *churnScenario) performAct(ctx context.Context, a clientAct, door *fleet.Role, r *rand.Rand) {
	conn, err := (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "tcp", door.HTTP)
	if err != nil {
		return // the round has ended
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = a.do(conn.(*net.TCPConn), r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acts[a.name]++
	if err != nil && ctx.Err() == nil {
		c.wrong[fmt.Sprintf("to %s: %v", a.name, err)]++
	}
}

// sleepRandom waits up to most.
func sleepRandom(r *rand.Rand, most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) }

// writePost writes a POST with a body.
func writePost(w io.Writer, path, body string, headers ...string) error {
	_, err := fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		path, len(body), strings.Join(append(headers, ""), "\r\n"), body)
	return err
}

// streamBody is a request for a long stream.
func streamBody(r *rand.Rand) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"Count to %d."}]}`, fleet.Model, 50+r.IntN(400), r.IntN(1e6))
}

// checkStatus reads the status of a response, and returns an error if it is not allowed. The server may also
// close the connection without one.
func checkStatus(conn net.Conn, statuses ...int) error {
	if err := conn.SetReadDeadline(time.Now().Add(returnPatience)); err != nil {
		return nil // it is closed
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		if late, ok := err.(net.Error); ok && late.Timeout() {
			return fmt.Errorf("no answer within %v", returnPatience)
		}
		return nil
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if !slices.Contains(statuses, resp.StatusCode) {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return nil
}

func leaveStream(conn *net.TCPConn, r *rand.Rand) error {
	if writePost(conn, "/v1/chat/completions", streamBody(r)) == nil {
		_ = conn.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(1500)) * time.Millisecond))
		_, _ = io.Copy(io.Discard, conn)
	}
	return nil
}

func resetStream(conn *net.TCPConn, r *rand.Rand) error {
	_ = conn.SetLinger(0)
	return leaveStream(conn, r)
}

func readNothing(conn *net.TCPConn, r *rand.Rand) error {
	_ = conn.SetReadBuffer(4096)
	if writePost(conn, "/v1/chat/completions", streamBody(r)) == nil {
		sleepRandom(r, 2*time.Second)
	}
	return nil
}

func sendHalfHeader(conn *net.TCPConn, r *rand.Rand) error {
	text := "POST /v1/chat/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: 5\r\n"
	_, _ = io.WriteString(conn, text[:1+r.IntN(len(text)-1)])
	sleepRandom(r, time.Second)
	return nil
}

func sendHalfBody(conn *net.TCPConn, r *rand.Rand) error {
	body := streamBody(r)
	announced := len(body) + r.IntN(1<<20)
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: %d\r\n\r\n%s", announced+1, body[:r.IntN(len(body))])
	sleepRandom(r, time.Second)
	return nil
}

func uploadSlowly(conn *net.TCPConn, r *rand.Rand) error {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"The gate has %d parts."}`, fleet.Model, r.IntN(1e6))
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		return nil
	}
	for len(body) > 0 {
		n := min(len(body), 1+r.IntN(8))
		if _, err := io.WriteString(conn, body[:n]); err != nil {
			return nil
		}
		body = body[n:]
		sleepRandom(r, 100*time.Millisecond)
	}
	return checkStatus(conn, http.StatusOK)
}

func sendWrongJSON(conn *net.TCPConn, r *rand.Rand) error {
	body := []string{
		`{`, `[]`, `nonsense`, `{"model":7}`, "\x00\xff", `{"model":"` + fleet.Model + `","messages":"no"}`, `{"model":"` + fleet.Model + `","messages":[],"max_tokens":-1}`,
		strings.Repeat(`[`, 10000), `{"model":"` + fleet.Model + `","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1:1/"}}]}]}`,
	}[r.IntN(9)]
	if writePost(conn, "/v1/chat/completions", body) != nil {
		return nil
	}
	return checkStatus(conn, http.StatusBadRequest)
}

func sendHugeHeader(conn *net.TCPConn, r *rand.Rand) error {
	if writePost(conn, "/v1/chat/completions", `{}`, "X-Huge: "+strings.Repeat("x", 1<<20+r.IntN(1<<20))) != nil {
		return nil
	}
	return checkStatus(conn, http.StatusRequestHeaderFieldsTooLarge)
}

func sendHugeBody(conn *net.TCPConn, r *rand.Rand) error {
	if r.IntN(2) == 0 { // the header announces it
		_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: 99999999999\r\n\r\n{")
		return checkStatus(conn, http.StatusRequestEntityTooLarge)
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"%s"}`, fleet.Model, strings.Repeat("water ", 1<<18))
	if writePost(conn, "/v1/completions", body) != nil {
		return nil
	}
	return checkStatus(conn, http.StatusBadRequest, http.StatusServiceUnavailable)
}

func sendUnknown(conn *net.TCPConn, r *rand.Rand) error {
	path, body := "/v1/completions", fmt.Sprintf(`{"model":"%s%d","prompt":"hi"}`, adapterPrefix, r.IntN(1e6))
	if r.IntN(2) == 0 {
		path = fmt.Sprintf("/v1/%d", r.IntN(1e6))
	}
	if writePost(conn, path, body) != nil {
		return nil
	}
	return checkStatus(conn, http.StatusNotFound)
}

func sendPipelined(conn *net.TCPConn, r *rand.Rand) error {
	var all strings.Builder
	for range 1 + r.IntN(4) {
		_ = writePost(&all, "/v1/chat/completions", streamBody(r))
	}
	_, _ = io.WriteString(conn, all.String())
	sleepRandom(r, time.Second)
	return nil
}

func sendOtherProtocol(conn *net.TCPConn, r *rand.Rand) error {
	_, _ = io.WriteString(conn, []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "SSH-2.0-x\r\n", "GET / HTTP/9.9\r\n\r\n", "\r\n\r\n\r\n", "*1\r\n$4\r\nPING\r\n",
	}[r.IntN(6)])
	sleepRandom(r, 500*time.Millisecond)
	return nil
}

func breakChunks(conn *net.TCPConn, r *rand.Rand) error {
	_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\nZZ\r\n")
	return checkStatus(conn, http.StatusBadRequest)
}
