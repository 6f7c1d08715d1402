package frontend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"penstock/core/fault"
	"penstock/internal/obs"
)

func accessLog(out io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(&lockedWriter{w: out}, nil))
}

// lines returns the lines of an access log without their time.
func lines(t *testing.T, out *bytes.Buffer) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// TestAccessLog: one line for each finished request, with its outcome and nothing of its contents.
func TestAccessLog(t *testing.T) {
	var out bytes.Buffer
	inWorldWith(t, Config{}, func(d *Deps) { d.AccessLog = accessLog(&out) }, func(t *testing.T, w *world) {
		failing := constant("never")
		failing.refuse = fault.New(fault.Unavailable, "gone")
		w.worker(1, failing)
		s := constant("hello")
		s.interlude = func() { time.Sleep(20 * time.Millisecond) } // virtual
		w.worker(2, s)
		w.mounted = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

		w.post("/v1/completions?password=secret-query", `{"model":"b","prompt":"secret prompt","stream":true}`, "x-request-id", "one", "User-Agent", "secret-agent")
		synctest.Wait() // a line comes after the answer
		w.post("/v1/completions", `{"model":"none","prompt":"secret prompt"}`, "x-request-id", "two")
		synctest.Wait()
		w.get("/" + strings.Repeat("long", 100))
		synctest.Wait()
		w.get("/live") // a debug line
		synctest.Wait()
		w.post("/tokenize", `{"model":"bytes","prompt":"secret prompt"}`)
		synctest.Wait()
		if resp, err := w.client.Get("http://x/mounted"); err == nil {
			resp.Body.Close()
			t.Error("the connection was not cut")
		}
		synctest.Wait()

		if want := `msg="a worker failed under a request" component=frontend request=one worker=1 attempt=1 tokens=0`; !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say why the request moved:\n%s", w.log)
		}
		if strings.Contains(out.String(), "secret") || strings.Contains(out.String(), "hello") {
			t.Errorf("the log has what it must not have:\n%s", &out)
		}
		all := lines(t, &out)
		if len(all) != 5 {
			t.Fatalf("%d lines:\n%s", len(all), &out)
		}
		for i, want := range []string{
			`map[attempts:2 bytes:N cached_tokens:0 component:access duration_ms:N method:POST model:bytes msg:served outcome:ok output_tokens:6 path:/v1/completions prompt_tokens:13 proto:HTTP/1.1 remote:pipe request:one status:200 stream:true ttft_ms:20 workers:[1 2]]`,
			`map[bytes:N component:access duration_ms:N method:POST msg:served outcome:not_found path:/v1/completions proto:HTTP/1.1 remote:pipe request:two status:404]`,
			`map[bytes:N component:access duration_ms:N method:GET msg:served outcome:ok path:/` + strings.Repeat("long", 100)[:127] + `… proto:HTTP/1.1 remote:pipe request:ID status:404]`,
			`map[attempts:0 bytes:N cached_tokens:0 component:access duration_ms:N method:POST model:bytes msg:served outcome:ok output_tokens:0 path:/tokenize prompt_tokens:0 proto:HTTP/1.1 remote:pipe request:ID status:200 stream:false workers:[]]`,
			`map[bytes:N component:access duration_ms:N method:GET msg:served outcome:ok path:/mounted proto:HTTP/1.1 remote:pipe request:ID status:0]`,
		} {
			m := all[i]
			delete(m, "time")
			delete(m, "level")
			if m["duration_ms"].(float64) < 0 || i < 4 && m["bytes"].(float64) < 10 {
				t.Errorf("line %d: %v", i, m)
			}
			m["duration_ms"], m["bytes"] = "N", "N"
			if id := m["request"].(string); len(id) == 32 {
				m["request"] = "ID"
			}
			if got := fmt.Sprint(m); got != want {
				t.Errorf("line %d is\n%s, want\n%s", i, got, want)
			}
		}
	})
}

// TestAccessLogOfProbes: lines of probes and scrapers are at level debug if the answer is 200, and at
// info otherwise.
func TestAccessLogOfProbes(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&lockedWriter{w: &out}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	inWorldWith(t, Config{}, func(d *Deps) { d.AccessLog = log }, func(t *testing.T, w *world) {
		for _, path := range []string{"/health", "/live", "/metrics", "/v1/models"} {
			w.get(path)
			synctest.Wait()
		}
		var got []string
		for _, m := range lines(t, &out) {
			got = append(got, fmt.Sprint(m["level"], " ", m["path"], " ", m["status"]))
		}
		want := []string{"INFO /health 503", "DEBUG /live 200", "DEBUG /metrics 200", "INFO /v1/models 200"}
		if !slices.Equal(got, want) {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}

// TestAccessLogOfWhoWent: a stream whose client disconnects keeps its status, and the outcome says so.
func TestAccessLogOfWhoWent(t *testing.T) {
	var out bytes.Buffer
	inWorldWith(t, Config{WriteTimeout: time.Second}, func(d *Deps) { d.AccessLog = accessLog(&out) }, func(t *testing.T, w *world) {
		w.worker(1, constant(strings.Repeat("long ", 90)))
		conn := must(w.lis.dial(t.Context(), "", ""))
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello)
		time.Sleep(5 * time.Second) // virtual
		synctest.Wait()
		conn.Close()
		all := lines(t, &out)
		if len(all) != 1 || all[0]["outcome"] != "client_closed_request" || all[0]["status"] != 200.0 {
			t.Errorf("logged %s", &out)
		}
	})
}

// TestObservingNothing: without a log, keys and traces the handler is not even wrapped, and the stages
// of a request allocate nothing.
func TestObservingNothing(t *testing.T) {
	f := &Frontend{}
	inner := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	r := must(http.NewRequest(http.MethodGet, "/live", nil))
	handler := withTrace(f.withRecord(inner))
	w := &recorder{header: http.Header{}}
	if n := testing.AllocsPerRun(100, func() { handler.ServeHTTP(w, r) }); n != 0 {
		t.Errorf("%v allocations for each request", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		ctx, span := f.deps.Tracer.Start(r.Context(), "stage")
		span.SetInt("n", 1)
		span.SetText("s", "t")
		span.End(nil)
		if ctx != r.Context() {
			t.Error("another context")
		}
	}); n != 0 {
		t.Errorf("%v allocations for each stage", n)
	}
	_, span := obs.NewTracer(noop.NewTracerProvider()).Start(r.Context(), "stage")
	if span.IsRecording() {
		t.Error("a span that nobody sees is recording")
	}
	span.End(io.EOF)
}
