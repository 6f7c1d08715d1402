package frontend

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/dispatch"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// Every time.Sleep here is in a bubble of inWorld: it passes virtual time and waits for nothing else.

const hello = `{"model":"bytes","prompt":"hi","stream":true}`

// TestNothingBeforeAcceptance: no byte is sent before a worker has accepted the request, and headers
// are sent when it has, before there is a token.
func TestNothingBeforeAcceptance(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		accept, speak := make(chan struct{}), make(chan struct{})
		s := constant("hi")
		s.beforehand = func() { <-accept }
		s.interlude = func() { <-speak }
		w.worker(7, s)
		came := make(chan *http.Response, 1)
		go func() { came <- w.send(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(hello)) }()
		synctest.Wait()
		if len(came) != 0 {
			t.Fatal("headers before acceptance")
		}
		close(accept)
		synctest.Wait()
		if len(came) != 1 {
			t.Fatal("no headers after acceptance")
		}
		resp := <-came
		if resp.StatusCode != 200 || resp.Header.Get("x-penstock-worker") != "7" || resp.Header.Get("x-request-id") == "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		close(speak)
		if a := read(resp); !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			t.Errorf("%q", a.body)
		}
	})
}

// TestLongRequestsKeepTheirReservation: the reservation of a request is renewed while it runs, even
// without a token.
func TestLongRequestsKeepTheirReservation(t *testing.T) {
	inWorld(t, Config{StallTimeout: time.Hour}, func(t *testing.T, w *world) {
		speak := make(chan struct{})
		s := constant("hi")
		s.interlude = func() { <-speak }
		w.worker(7, s)
		done := make(chan string, 1)
		go func() {
			done <- read(w.send(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(hello))).body
		}()
		time.Sleep(25 * time.Minute)
		if got, want := w.router.renewed(), int(25*time.Minute/dispatch.RenewInterval); got < want-1 || got > want {
			t.Errorf("the reservation was renewed %d times in 25 minutes, want %d", got, want)
		}
		close(speak)
		if body := <-done; !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%.200q", body)
		}
	})
}

// TestDisconnect: when the client disconnects, the worker's call ends at once and everything is
// released, whatever the request was waiting for.
func TestDisconnect(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		s    *script
		read bool // the client reads a first line

		prompt, output string // tokens counted; "" if it depends on timing
	}{
		"mid-stream":        {hello, &script{say: func(int) string { return "hello" }, frames: 2}, true, "2", "2"},
		"whole answer":      {`{"model":"bytes","prompt":"hi"}`, &script{say: func(int) string { return "hello" }, frames: 2}, false, "2", "2"},
		"before the answer": {hello, &script{mute: true}, false, "0", "0"},
		"several prompts":   {`{"model":"bytes","prompt":["hi","ho"],"stream":true}`, &script{say: func(int) string { return "hello" }, frames: 2}, true, "", ""},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.worker(7, tt.s)
			w.worker(8, constant("must not be asked"))
			ctx, cancel := context.WithCancel(t.Context())
			started := time.Now()
			done := make(chan error, 1)
			go func() {
				req := must(http.NewRequestWithContext(ctx, http.MethodPost, "http://x/v1/completions", strings.NewReader(tt.body)))
				resp, err := w.client.Do(req)
				if err == nil {
					if tt.read {
						_, err = bufio.NewReader(resp.Body).ReadString('\n')
					}
					if err == nil && !tt.read {
						_, err = io.ReadAll(resp.Body)
					}
					if tt.read {
						<-ctx.Done()
					}
					resp.Body.Close()
				}
				done <- err
			}()
			synctest.Wait()
			if running, _ := tt.s.state(); running == 0 {
				t.Fatalf("%s: the worker has nothing to do", name)
			}
			cancel()
			<-done
			synctest.Wait()
			running, cancelled := tt.s.state()
			if running != 0 || cancelled == 0 {
				t.Errorf("%s: %d calls run, %d were cancelled", name, running, cancelled)
			}
			if time.Since(started) != 0 {
				t.Errorf("%s: it took %v", name, time.Since(started))
			}
			if got := w.metric(`frontend_requests_total{endpoint="completions",model="bytes",status="499"}`); got != "1" {
				t.Errorf("%s: %q requests counted as 499", name, got)
			}
			for series, want := range map[string]string{"frontend_prompt_tokens_total": tt.prompt, "frontend_output_tokens_total": tt.output} {
				if got := w.metric(series + `{model="bytes"}`); want != "" && got != want {
					t.Errorf("%s: %s is %q, want %s: tokens count whether or not somebody waits for them", name, series, got, want)
				}
			}
			w.check()
		})
	}
}

// TestStall: a silent worker is replaced by another.
func TestStall(t *testing.T) {
	inWorld(t, Config{StallTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		silent := &script{say: func(int) string { return "hello" }, frames: 2}
		w.worker(1, silent)
		w.worker(2, constant("hello"))
		started := time.Now()
		a := w.post("/v1/completions", `{"model":"bytes","prompt":"hi"}`)
		if a.status != 200 || !strings.Contains(a.body, `"text":"hello"`) || time.Since(started) != 5*time.Second {
			t.Errorf("after %v: %d %s", time.Since(started), a.status, a.body)
		}
		synctest.Wait()
		if running, cancelled := silent.state(); running != 0 || cancelled != 1 {
			t.Errorf("%d calls run, %d were cancelled", running, cancelled)
		}
	})
}

// TestSlowClient: a client that reads nothing is cut off, and its worker does not count as silent.
func TestSlowClient(t *testing.T) {
	inWorld(t, Config{WriteTimeout: 20 * time.Second, StallTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		s := constant(strings.Repeat("long ", 90))
		w.worker(1, s)
		w.worker(2, constant("must not be asked"))
		started := time.Now()
		conn, err := w.lis.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello)
		time.Sleep(19 * time.Second) // virtual
		synctest.Wait()
		const cut = `frontend_requests_total{endpoint="completions",model="bytes",status="499"}`
		if got := w.metric(cut); got == "1" {
			t.Error("the client was given up before its time")
		}
		time.Sleep(2 * time.Second) // virtual
		synctest.Wait()
		if running, _ := s.state(); running != 0 || len(w.router.routed()) != 1 || w.metric(cut) != "1" {
			t.Errorf("after %v %d calls run, %d attempts, %q clients gone", time.Since(started), running, len(w.router.routed()), w.metric(cut))
		}
		conn.Close()
	})
}

// TestConnectionIsKept: the deadlines of one request do not affect the next one.
func TestConnectionIsKept(t *testing.T) {
	inWorld(t, Config{WriteTimeout: time.Second, BodyTimeout: time.Second, IdleTimeout: time.Hour}, func(t *testing.T, w *world) {
		s := constant("hi")
		w.worker(1, s)
		for range 2 {
			s.interlude = func() { time.Sleep(10 * time.Second) } // virtual: longer than BodyTimeout
			if a := w.post("/v1/completions", hello); a.err != nil || !strings.HasSuffix(a.body, "[DONE]\n\n") {
				t.Errorf("%d %q %v", a.status, a.body, a.err)
			}
			time.Sleep(10 * time.Second)                   // virtual
			if a := w.get("/v1/models"); a.status != 200 { // sets no deadline itself
				t.Errorf("%d %q %v", a.status, a.body, a.err)
			}
		}
		if n := w.lis.dials.Load(); n != 1 {
			t.Errorf("%d connections were made", n)
		}
	})
}

// TestSlowBody: a client that does not send its body gets an error which says so.
func TestSlowBody(t *testing.T) {
	inWorld(t, Config{BodyTimeout: 3 * time.Second}, func(t *testing.T, w *world) {
		body, feed := io.Pipe()
		defer feed.Close()
		go func() { _, _ = io.WriteString(feed, `{"model":`) }()
		started := time.Now()
		a := read(w.send(t.Context(), http.MethodPost, "/v1/completions", body))
		if a.status != 504 || !strings.Contains(a.body, "did not arrive within 3s") || time.Since(started) != 3*time.Second {
			t.Errorf("after %v: %d %s", time.Since(started), a.status, a.body)
		}
	})
}

// crashing is a tokenizer with a defect in one of its parts.
type crashing struct {
	byteTokenizer
	encode, decode bool
}

func (c crashing) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if c.encode {
		panic("encode: a prompt of secrets")
	}
	return c.byteTokenizer.Encode(dst, text, opts)
}

func (c crashing) NewDecoder(opts prep.DecodeOptions) prep.Decoder {
	if c.decode {
		return crashingDecoder{}
	}
	return c.byteTokenizer.NewDecoder(opts)
}

type crashingDecoder struct{}

func (crashingDecoder) Push([]byte, kv.Token) []byte { panic("push") }
func (crashingDecoder) Flush([]byte) []byte          { panic("flush") }

// TestDefects: a panic fails only the request in which it happens, and that is counted like any other.
func TestDefects(t *testing.T) {
	for _, tok := range []crashing{{encode: true}, {decode: true}} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) {
				p := bytePipeline()
				p.Tokenizer = tok
				return p, nil
			}
			w.worker(1, constant("hi"))
			for _, prompt := range []string{`"hi"`, `["hi","ho"]`} {
				a := w.post("/v1/completions", `{"model":"bytes","prompt":`+prompt+`}`)
				if a.status != 500 || !strings.Contains(a.body, `"code":"internal_error"`) || strings.Contains(a.body, "panic") {
					t.Errorf("%+v %s: %d %s %v", tok, prompt, a.status, a.body, a.err)
				}
			}
			if got := w.metric(`frontend_requests_total{endpoint="completions",model="bytes",status="500"}`); got != "2" {
				t.Errorf("%q requests failed", got)
			}
		})
	}
}

// TestSlowClientsOfOthers: a client that does not send its body or does not read its answer blocks no
// handler, including mounted ones.
func TestSlowClientsOfOthers(t *testing.T) {
	inWorld(t, Config{BodyTimeout: 3 * time.Second, WriteTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		for _, tt := range []struct {
			head    string
			handler http.HandlerFunc
			after   time.Duration
		}{
			{"POST /mounted HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345", func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.ReadAll(r.Body); err == nil {
					t.Error("the body is complete")
				}
			}, 3 * time.Second},
			{"GET /mounted HTTP/1.1\r\nHost: x\r\n\r\n", func(rw http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := rw.Write(make([]byte, 4096)); err != nil {
						return
					}
				}
			}, 5 * time.Second},
		} {
			started, done := time.Now(), make(chan time.Duration, 1)
			w.mounted = func(rw http.ResponseWriter, r *http.Request) {
				defer func() { done <- time.Since(started) }()
				tt.handler(rw, r)
			}
			conn := must(w.lis.dial(t.Context(), "", ""))
			_, _ = io.WriteString(conn, tt.head)
			select {
			case took := <-done:
				if took != tt.after {
					t.Errorf("%.4s: ended after %v, want %v", tt.head, took, tt.after)
				}
			case <-time.After(time.Hour):
				t.Errorf("%.4s: the handler still runs", tt.head)
			}
			conn.Close()
		}
	})
}

// TestQuietHandlersLive: a handler that waits longer than clients may take, and then sets its own write
// deadline, is not cut off.
func TestQuietHandlersLive(t *testing.T) {
	inWorld(t, Config{BodyTimeout: time.Second, WriteTimeout: time.Second}, func(t *testing.T, w *world) {
		w.mounted = func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			select {
			case <-time.After(time.Minute):
			case <-r.Context().Done():
				t.Error("the context of the request ended")
			}
			_ = http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(rw, "late")
		}
		for _, body := range []io.Reader{nil, strings.NewReader("body")} {
			if a := read(w.send(t.Context(), http.MethodPost, "/mounted", body)); a.body != "late" || a.err != nil {
				t.Errorf("%q %v", a.body, a.err)
			}
		}
	})
}

func TestRequestTimeout(t *testing.T) {
	inWorld(t, Config{RequestTimeout: 3 * time.Second}, func(t *testing.T, w *world) {
		w.worker(1, &script{say: func(int) string { return "hello" }, frames: 1})
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"hi"}`); a.status != 504 || !strings.Contains(a.body, "longer than 3s") {
			t.Errorf("%d %s", a.status, a.body)
		}
		a := w.post("/v1/completions", hello)
		if a.status != 200 || !strings.Contains(a.body, `"text":"h"`) || !strings.HasSuffix(a.body, `"code":"deadline_exceeded"}}`+"\n\n") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// begin starts a stream and waits until it blocks.
func (w *world) begin() <-chan answerOf {
	came := make(chan answerOf, 1)
	go func() { came <- w.post("/v1/completions", hello) }()
	synctest.Wait()
	return came
}

func (w *world) direct(method, path, body string) *recorder {
	rec := &recorder{header: http.Header{}}
	w.f.Handler().ServeHTTP(rec, must(http.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(body))))
	return rec
}

// TestDrain: running requests finish, new ones are refused.
func TestDrain(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		finish := make(chan struct{})
		s := constant("hello")
		s.interlude = func() { <-finish }
		w.worker(1, s)
		stream := w.begin()
		w.stop()
		synctest.Wait()
		if rec := w.direct(http.MethodPost, "/v1/completions", hello); rec.status != 503 || rec.header.Get("Retry-After") != "1" || !strings.Contains(rec.body.String(), "shutting down") {
			t.Errorf("a new request: %d %v %s", rec.status, rec.header, rec.body.String())
		}
		if rec := w.direct(http.MethodGet, "/health", ""); rec.status != 503 || !strings.Contains(rec.body.String(), "draining") {
			t.Errorf("health: %d %s", rec.status, rec.body.String())
		}
		if rec := w.direct(http.MethodGet, "/live", ""); rec.status != 200 {
			t.Errorf("live: %d", rec.status)
		}
		// The stream still needs the catalog: a worker added now is seen.
		w.worker(2, constant("hello"))
		if n := len(w.f.catalog.current.Load().Workers); n != 2 {
			t.Errorf("%d instances are known", n)
		}
		time.Sleep(pause) // virtual
		close(finish)
		if a := <-stream; a.status != 200 || !strings.HasSuffix(a.body, "[DONE]\n\n") {
			t.Errorf("%d %q", a.status, a.body)
		}
		if got := w.metric(`frontend_rejections_total{reason="draining"}`); got != "1" {
			t.Errorf("%q rejections", got)
		}
	})
}

// TestDrainGrace: a frontend that was told to stop continues for a while; balancers learn it from its
// health, clients from the end of their connections.
func TestDrainGrace(t *testing.T) {
	inWorld(t, Config{DrainGrace: 5 * time.Second}, func(t *testing.T, w *world) {
		w.worker(1, constant("hello"))
		started := time.Now()
		kept := w.post("/v1/completions", moving)
		if kept.status != 200 || kept.header.Get("Connection") != "" || w.lis.dials.Load() != 1 {
			t.Fatalf("before: %d %v", kept.status, kept.header)
		}
		w.stop()
		synctest.Wait()
		for dials := int32(1); dials <= 3; dials++ { // the first on the open connection
			resp := w.send(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(moving))
			a := read(resp)
			if !complete(a) || !resp.Close || w.lis.dials.Load() != dials {
				t.Errorf("in the grace: %d %s, closes its connection: %v, connection %d", a.status, a.body, resp.Close, w.lis.dials.Load())
			}
		}
		if a := w.get("/health"); a.status != 503 || !strings.Contains(a.body, `"status":"draining"`) {
			t.Errorf("health: %d %s", a.status, a.body)
		}
		if a := w.get("/live"); a.status != 200 {
			t.Errorf("live: %d", a.status)
		}
		if n := w.metric(`frontend_rejections_total{reason="draining"}`); n != "" {
			t.Errorf("%q rejections", n)
		}
		// A request at the last moment is served to its end.
		finish := make(chan struct{})
		s := constant("hello")
		s.interlude = func() { <-finish }
		w.worker(2, s)
		w.router.pinned(2)
		time.Sleep(5*time.Second - time.Nanosecond)
		last := make(chan answerOf, 1)
		go func() { last <- w.post("/v1/completions", moving) }()
		synctest.Wait()
		time.Sleep(pause) // virtual
		if rec := w.direct(http.MethodPost, "/v1/completions", hello); rec.status != 503 || !strings.Contains(rec.body.String(), "shutting down") {
			t.Errorf("after the grace: %d %s", rec.status, rec.body.String())
		}
		close(finish)
		if a := <-last; !complete(a) {
			t.Errorf("the last one: %d %s", a.status, a.body)
		}
		if err := <-w.ran; err != nil || time.Since(started) < 5*time.Second {
			t.Errorf("Run returned %v after %v", err, time.Since(started))
		}
		w.ran <- nil
	})
}

// TestFailsInGrace: a listener that fails during the grace is still an error.
func TestFailsInGrace(t *testing.T) {
	inWorld(t, Config{DrainGrace: time.Hour}, func(t *testing.T, w *world) {
		w.stop()
		synctest.Wait()
		started := time.Now()
		w.lis.Close()
		if err := <-w.ran; err == nil || !strings.Contains(err.Error(), "frontend: serve pipe") || time.Since(started) != 0 {
			t.Errorf("Run returned %v", err)
		}
		w.ran <- nil
	})
}

// TestCutOff: a request that does not finish in time is cut off with an error.
func TestCutOff(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{say: func(int) string { return "hello" }, frames: 2}
		w.worker(1, s)
		stream := w.begin()
		started := time.Now()
		w.stop()
		a := <-stream
		if a.status != 200 || !strings.Contains(a.body, "shutting down") || !strings.Contains(a.body, `"code":"unavailable"`) {
			t.Errorf("%d %q", a.status, a.body)
		}
		if time.Since(started) != 30*time.Second {
			t.Errorf("it took %v", time.Since(started))
		}
	})
}

// TestCutOffHangingClient: even a client that reads nothing does not delay the end.
func TestCutOffHangingClient(t *testing.T) {
	inWorld(t, Config{WriteTimeout: time.Hour}, func(t *testing.T, w *world) {
		w.worker(1, constant(strings.Repeat("long ", 90)))
		conn, err := w.lis.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello)
		synctest.Wait()
		started := time.Now()
		w.stop()
		err = <-w.ran
		if d := time.Since(started); err != nil || d != 30*time.Second+cutOff {
			t.Errorf("after %v: %v", d, err)
		}
		w.ran <- nil
		conn.Close()
	})
}

// TestRunFails: when the listener fails, Run returns an error.
func TestRunFails(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.lis.Close()
		if err := <-w.ran; err == nil || !strings.Contains(err.Error(), "frontend: serve pipe") {
			t.Errorf("Run returned %v", err)
		}
		w.ran <- nil
	})
}

// TestRegistryFails: the known workers stay in force until the registry is back.
func TestRegistryFails(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("one"))
		w.registry.fail(fault.New(fault.Internal, "the store is broken"))
		time.Sleep(time.Minute)
		if a := w.post("/v1/completions", hello); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		w.registry.fail(nil)
		w.worker(2, constant("two"))
		time.Sleep(8 * pause)
		if n := len(w.f.catalog.current.Load().Workers); n != 2 {
			t.Errorf("%d instances are known", n)
		}
	})
}

// TestOverload: requests beyond the bound are refused at once.
func TestOverload(t *testing.T) {
	inWorld(t, Config{MaxInflight: 2}, func(t *testing.T, w *world) {
		finish := make(chan struct{})
		s := constant("hello")
		s.interlude = func() { <-finish }
		w.worker(1, s)
		first, second := w.begin(), w.begin()
		a := w.post("/v1/completions", hello)
		if a.status != 503 || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, `"code":"overloaded"`) {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
		if got := w.metric("frontend_inflight"); got != "2" {
			t.Errorf("%q in flight", got)
		}
		close(finish)
		for _, c := range []<-chan answerOf{first, second} {
			if a := <-c; !strings.HasSuffix(a.body, "[DONE]\n\n") {
				t.Errorf("%d %q", a.status, a.body)
			}
		}
		if a := w.post("/v1/completions", hello); a.status != 200 {
			t.Errorf("afterwards: %d %s", a.status, a.body)
		}
	})
}

// TestStopStringEndsTheCall: the engine does not know stop strings, so the call is canceled at once; a
// call that ends without that is not canceled.
func TestStopStringEndsTheCall(t *testing.T) {
	for _, tt := range []struct {
		fields    string
		cancelled int
	}{
		{`"stop":"ll","n":1`, 1},
		{`"stop":"ll","n":3`, 1},
		{`"max_tokens":3`, 0},
		{`"n":1`, 0},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			s := constant("hell" + strings.Repeat("o", 200)) // beyond the plane's credit
			w.worker(1, s)
			started := time.Now()
			a := w.post("/v1/completions", `{"model":"bytes","prompt":"hi",`+tt.fields+`}`)
			synctest.Wait()
			running, cancelled := s.state()
			if a.status != 200 || running != 0 || cancelled != tt.cancelled || time.Since(started) != 0 {
				t.Errorf("%s: %d, %d calls run, %d cancelled, want %d", tt.fields, a.status, running, cancelled, tt.cancelled)
			}
		})
	}
}

// TestTimes: the histograms see tokens when they arrive.
func TestTimes(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("abc")
		s.interlude = func() { time.Sleep(3 * time.Second) }
		w.worker(1, s)
		w.post("/v1/completions", hello)
		for series, want := range map[string]string{
			`frontend_time_to_first_token_seconds_sum{model="bytes"}`:                         "3",
			`frontend_time_to_first_token_seconds_count{model="bytes"}`:                       "1",
			`frontend_inter_token_latency_seconds_count{model="bytes"}`:                       "3",
			`frontend_inter_token_latency_seconds_sum{model="bytes"}`:                         "0",
			`frontend_request_duration_seconds_sum{endpoint="completions",model="bytes"}`:     "3",
			`frontend_requests_total{endpoint="completions",model="bytes",status="200"}`:      "1",
			`frontend_requests_total{endpoint="chat_completions",model="bytes",status="200"}`: "",
			`frontend_cached_tokens_total{model="bytes"}`:                                     "0",
			`frontend_time_to_first_token_seconds_bucket{model="bytes",le="2.5"}`:             "0",
			`frontend_time_to_first_token_seconds_bucket{model="bytes",le="5"}`:               "1",
		} {
			if got := w.metric(series); got != want {
				t.Errorf("%s is %q, want %q", series, got, want)
			}
		}
	})
}

// TestBodyThatNobodyReads: a handler that does not read a body does not wait for an endless one, and
// neither does the server after it.
func TestBodyThatNobodyReads(t *testing.T) {
	inWorld(t, Config{HeaderTimeout: time.Second, BodyTimeout: 3 * time.Second}, func(t *testing.T, w *world) {
		for _, line := range []string{"GET /health", "POST /health", "POST /v1/nothing", "GET /metrics"} {
			conn, err := w.lis.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			_ = conn.SetReadDeadline(started.Add(time.Minute))
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", line)
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			if d := time.Since(started); d < 3*time.Second || d > 4*time.Second {
				t.Errorf("%s: the connection was held for %v", line, d)
			}
			conn.Close()
		}
	})
}

// TestAnswerThatNobodyTakes: a client that does not read its answer is cut off on every path.
func TestAnswerThatNobodyTakes(t *testing.T) {
	inWorld(t, Config{WriteTimeout: 20 * time.Second}, func(t *testing.T, w *world) {
		for _, path := range []string{"/health", "/live", "/metrics", "/v1/models", "/v1/models/bytes", "/mounted"} {
			conn, err := w.lis.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
			time.Sleep(21 * time.Second)
			synctest.Wait()
			// The server has closed its end: writes fail.
			if _, err := conn.Write([]byte("G")); err == nil {
				t.Errorf("%s: the connection is open still", path)
			}
			conn.Close()
		}
	})
}
