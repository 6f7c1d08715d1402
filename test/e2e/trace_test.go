package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/edge/prep"
	pipeline "penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/obs/otlp"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// spans is a collector of OTLP over HTTP.
type spans struct {
	t  *testing.T
	mu sync.Mutex
	// all are what came, and of are the services that they came from.
	all []*tracepb.Span
	of  map[*tracepb.Span]string
	raw []byte
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw = append(s.raw, body...)
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.all = append(s.all, span)
				s.of[span] = text(rs.Resource.Attributes, "service.name")
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// text is the value of an attribute; "" if there is none.
func text(attrs []*common.KeyValue, key string) string {
	for _, a := range attrs {
		if a.Key != key {
			continue
		}
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			return v.StringValue
		case *common.AnyValue_IntValue:
			return fmt.Sprint(v.IntValue)
		}
	}
	return ""
}

// tree prints the spans as they hang on each other, siblings in the order in which
// they began.
func (s *spans) tree(parent string, depth int) string {
	var out strings.Builder
	slices.SortStableFunc(s.all, func(a, b *tracepb.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	for _, span := range s.all {
		if hex.EncodeToString(span.ParentSpanId) != parent {
			continue
		}
		fmt.Fprintf(&out, "%s%s", strings.Repeat("  ", depth), span.Name)
		for _, key := range []string{"penstock.attempt", "penstock.worker_id", "penstock.excluded", "http.response.status_code", "penstock.output_tokens", "error.type"} {
			if v := text(span.Attributes, key); v != "" {
				fmt.Fprintf(&out, " %s=%s", strings.TrimPrefix(key, "penstock."), v)
			}
		}
		if span.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
			fmt.Fprintf(&out, " failed: %s", span.Status.Message)
		}
		fmt.Fprintf(&out, " (%s, %s)\n", strings.ToLower(strings.TrimPrefix(span.Kind.String(), "SPAN_KIND_")), s.of[span])
		out.WriteString(s.tree(hex.EncodeToString(span.SpanId), depth+1))
	}
	return out.String()
}

// dying is an engine that fails once, when an answer has begun.
type dying struct {
	*servetest.Engine
	died *atomic.Bool
}

func (d dying) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	tokens := 0
	return d.Engine.Generate(ctx, req, func(delta *engine.Delta) error {
		if tokens += len(delta.Tokens); tokens > 2 && d.died.CompareAndSwap(false, true) {
			return fault.New(fault.Unavailable, "the engine died")
		}
		return sink(delta)
	})
}

// traced opens the way to the collector that the environment names.
func traced(t *testing.T, service string) *otlp.TraceExporter {
	t.Helper()
	traces, err := otlp.Open(t.Context(), service, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

// TestTrace: a request that moves from one worker to another is one trace, from the
// client's own span through the frontend and the request plane into both workers.
func TestTrace(t *testing.T) {
	got := &spans{t: t, of: map[*tracepb.Span]string{}}
	server := httptest.NewServer(got)
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")

	pipe, err := pipeline.Open(pipeline.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	front, back := traced(t, "penstock-frontend"), traced(t, "penstock-worker")
	calls, err := rpc.NewTCPPlane(rpc.TCPConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	events, registry, metrics := bus.NewMemBus(), disco.NewMemRegistry(), obs.NewMetrics()
	log := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	var services sync.WaitGroup
	run := func(f func(context.Context) error) {
		services.Go(func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	card := servetest.ModelCard("m")
	card.VocabSize, card.Tokenizer = pipe.Tokenizer.VocabSize(), engine.TokenizerRef{Kind: "builtin"}
	workers, died := worker.NewMetrics(metrics), new(atomic.Bool)
	for id := kv.WorkerID(1); id <= 2; id++ {
		w, err := worker.New(worker.Config{ID: id, Epoch: 1}, dying{servetest.New(servetest.Config{Card: card}), died},
			worker.Planes{RPC: calls, Bus: events, Registry: registry, Tracer: back.Tracer()}, workers, log)
		if err != nil {
			t.Fatal(err)
		}
		run(w.Run)
	}
	r, err := router.New(router.Config{}, router.Planes{Bus: events, Registry: registry, RPC: calls}, nil, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	run(r.Run)
	f, err := frontend.New(frontend.Config{}, frontend.Deps{
		Router: r, Plane: calls, Catalog: r.Catalog(), OpenTokenizer: func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil },
		Metrics: metrics, Log: log, Tracer: front.Tracer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	run(func(ctx context.Context) error { return f.Run(ctx, ln) })
	until(t, func() bool { return f.WorkerCount("m") == 2 })

	const parent = "00f067aa0ba902b7"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String()+"/v1/completions",
		strings.NewReader(`{"model":"m","prompt":"a secret","max_tokens":6,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-"+parent+"-01")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || resp.StatusCode != 200 || !died.Load() {
		t.Fatalf("%s %s %v", resp.Status, body, err)
	}
	first := resp.Header.Get("x-penstock-worker")
	second := map[string]string{"1": "2", "2": "1"}[first]
	stop()
	services.Wait()
	front.Close()
	back.Close()

	got.mu.Lock()
	defer got.mu.Unlock()
	want := strings.NewReplacer("FIRST", first, "SECOND", second).Replace(`POST /v1/completions http.response.status_code=200 output_tokens=6 (server, penstock-frontend)
  decode (internal, penstock-frontend)
  preprocess (internal, penstock-frontend)
    tokenize (internal, penstock-frontend)
  route attempt=1 worker_id=FIRST excluded=0 (internal, penstock-frontend)
  attempt attempt=1 worker_id=FIRST error.type=unavailable failed: unavailable (client, penstock-frontend)
    worker generate worker_id=FIRST error.type=unavailable failed: unavailable (server, penstock-worker)
      queue and prefill (internal, penstock-worker)
  route attempt=2 worker_id=SECOND excluded=1 (internal, penstock-frontend)
  attempt attempt=2 worker_id=SECOND (client, penstock-frontend)
    worker generate worker_id=SECOND (server, penstock-worker)
      queue and prefill (internal, penstock-worker)
`)
	if tree := got.tree(parent, 0); tree != want {
		t.Errorf("the trace is\n%swant\n%s", tree, want)
	}
	for _, span := range got.all {
		if id := hex.EncodeToString(span.TraceId); id != "4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("%s is of trace %s", span.Name, id)
		}
		if span.EndTimeUnixNano < span.StartTimeUnixNano {
			t.Errorf("%s ends before it begins", span.Name)
		}
	}
	if raw := string(got.raw); strings.Contains(raw, "secret") || !strings.Contains(raw, "deployment.environment") {
		t.Error("the spans have the prompt, or lack the resource of the environment")
	}
}

// until waits for what other goroutines do.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer cancel()
	if err := backoff.Poll(ctx, 5*time.Millisecond, ok); err != nil {
		t.Fatal("it did not happen")
	}
}

// TestCollectorAway: a collector that cannot be reached costs the spans, and neither
// a request nor the end of the process.
func TestCollectorAway(t *testing.T) {
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(stuck) })
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)
	// What reaches the SDK's own handler goes to standard error, without end.
	before := otel.GetErrorHandler()
	defer otel.SetErrorHandler(before)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Errorf("the SDK says by itself: %v", err) }))
	for _, endpoint := range []string{server.URL, "http://127.0.0.1:1"} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
		t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
		out := &logBuffer{}
		traces, err := otlp.Open(t.Context(), "x", slog.New(slog.NewTextHandler(out, nil)))
		if err != nil {
			t.Fatal(err)
		}
		tracer := traces.Tracer()
		for range 10_000 { // far more than the queue holds
			_, span := tracer.Start(t.Context(), "stage")
			span.End(nil)
		}
		if endpoint == server.URL {
			<-stuck
		}
		traces.Close()
		if text := out.String(); !strings.Contains(text, "traces are lost") || strings.Count(text, "\n") > 2 {
			t.Errorf("logged %q", text)
		}
	}
}
