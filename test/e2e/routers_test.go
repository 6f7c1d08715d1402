package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"penstock/internal/doctor"
	"penstock/internal/fixturetest"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"penstock/internal/config"
)

// routerFleet is a frontend in front of router processes, and their workers.
type routerFleet struct {
	frontend *process
	routers  []*process
	workers  []*process
}

func launchRouters(t *testing.T, routers, workers int, settings ...string) *routerFleet {
	t.Helper()
	f := &routerFleet{frontend: launch(t, config.Frontend, append(settings, "nats-listen=127.0.0.1:0", "component=router")...)}
	nats := "nats=" + f.frontend.started.NATS
	for i := range workers {
		f.workers = append(f.workers, launch(t, config.Worker, append(settings, nats, fmt.Sprint("worker-id=", i+1))...))
	}
	for range routers {
		f.routers = append(f.routers, launch(t, config.Router, append(settings, nats, "http-addr=127.0.0.1:0")...))
	}
	f.frontend.serves("penstock-tiny", routers)
	return f
}

// shownWorker is a row of /v1/router/workers.
type shownWorker struct {
	ID          uint64 `json:"worker_id"`
	Role        string
	Name        string
	Addr        string
	State       string
	Behind      []shownWorker
	BehindError string `json:"behind_error"`
}

// answers has what routers answer to a question to a frontend.
type answers[T any] []struct {
	Router uint64 `json:"router"`
	Answer T
	Error  string
}

// pickedWorker is a worker in an answer.
type pickedWorker struct {
	WorkerID uint64 `json:"worker_id"`
}

// explained is what is read of an answer of /v1/router/explain.
type explained struct {
	Decision   *pickedWorker
	Candidates []pickedWorker
	Behind     answers[explained]
}

func (e *explained) read(t *testing.T, data []byte) {
	t.Helper()
	*e = explained{}
	if err := json.Unmarshal(data, e); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

// goesTo reports whether one of three workers would be pickedWorker.
func (e *explained) goesTo(worker uint64) bool {
	return e.Decision != nil && e.Decision.WorkerID == worker && len(e.Candidates) == 3
}

// TestRoutersAreSeenThrough: a frontend in front of router processes shows what is behind them, says
// which worker a prompt would go to and why, and which one a request went to.
func TestRoutersAreSeenThrough(t *testing.T) {
	t.Parallel()
	fleet := launchRouters(t, 2, 3)
	f := fleet.frontend

	var table struct{ Rows []shownWorker }
	f.eventually("both routers with their workers", func() bool {
		f.get("/v1/router/workers", &table)
		return len(table.Rows) == 2 && !slices.ContainsFunc(table.Rows, func(r shownWorker) bool {
			return len(r.Behind) != 3 || slices.ContainsFunc(r.Behind, func(w shownWorker) bool { return w.State != "ready" })
		})
	})
	for _, r := range table.Rows {
		if r.Role != "router" || !strings.HasPrefix(r.Addr, "tcp://") || r.Name == "" || r.BehindError != "" {
			t.Errorf("a router is shown as %+v", r)
		}
		for i, w := range r.Behind {
			if w.ID != uint64(i+1) || w.Role != "aggregated" || w.State != "ready" || w.Addr != fleet.workers[i].started.Addr || w.Name == "" {
				t.Errorf("worker %d behind a router is shown as %+v", i+1, w)
			}
		}
	}

	// A prompt that one worker holds goes there, whichever router is asked.
	const id = "seen-through"
	resp, body := f.do(http.MethodPost, "/v1/chat/completions", chat(longPrompt(3), 4), "X-Request-Id", id)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Status, body)
	}
	var decided struct {
		Attempts []pickedWorker
		Behind   answers[struct{ Attempts []pickedWorker }]
	}
	f.get("/v1/router/decisions?request_id="+id, &decided)
	if len(decided.Attempts) != 1 || len(decided.Behind) != 1 || decided.Behind[0].Router != decided.Attempts[0].WorkerID || len(decided.Behind[0].Answer.Attempts) != 1 {
		t.Fatalf("the decision is %+v", decided)
	}
	holder := decided.Behind[0].Answer.Attempts[0].WorkerID
	question := map[string]any{"model": "penstock-tiny", "messages": chat(longPrompt(3), 1)["messages"]}
	var ex explained
	f.eventually("every router knows which worker holds the prompt", func() bool {
		_, data := f.do(http.MethodPost, "/v1/router/explain", question)
		ex.read(t, data)
		return len(ex.Behind) == 2 && ex.Behind[0].Answer.goesTo(holder) && ex.Behind[1].Answer.goesTo(holder)
	})

	// The router API of a router takes what that of a frontend takes, and says the same.
	for _, r := range fleet.routers {
		resp, data := r.do(http.MethodPost, "/v1/router/explain", question)
		var own explained
		own.read(t, data)
		if resp.StatusCode != http.StatusOK || !own.goesTo(holder) {
			t.Errorf("a router explains %s %s", resp.Status, data)
		}
	}
	resp, body = f.do(http.MethodPost, "/v1/router/best_worker", question)
	var best struct {
		pickedWorker
		Behind answers[pickedWorker]
	}
	if err := json.Unmarshal(body, &best); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || len(best.Behind) != 1 || best.Behind[0].Router != best.WorkerID || best.Behind[0].Answer.WorkerID != holder {
		t.Errorf("best_worker: %s %s", resp.Status, body)
	}
	for _, c := range doctor.Examine(t.Context(), doctor.Examination{Server: f.url, Timeout: fixturetest.TimeLeft(t) / 4}) {
		if c.Check == "workers" && c.Detail != "5 of 5 are ready" {
			t.Errorf("doctor: %+v", c)
		}
	}
	// Another frontend, which did not route the request, finds the decision too.
	other := launch(t, config.Frontend, "nats="+f.started.NATS, "component=router")
	other.serves("penstock-tiny", 2)
	decided.Attempts, decided.Behind = nil, nil
	other.get("/v1/router/decisions?request_id="+id, &decided)
	if len(decided.Behind) != 1 || decided.Behind[0].Answer.Attempts[0].WorkerID != holder {
		t.Errorf("another frontend: %+v", decided)
	}
	if resp, data := other.do(http.MethodGet, "/v1/router/decisions?request_id=unknown", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("no such request: %s %s", resp.Status, data)
	}
}

// TestTraceThroughRouter: the decision and the attempts of a router process are stages of the
// request's trace.
func TestTraceThroughRouter(t *testing.T) {
	got := &spans{t: t, of: map[*tracepb.Span]string{}}
	server := httptest.NewServer(got)
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	fleet := launchRouters(t, 1, 1, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL)
	const parent = "00f067aa0ba902b7"
	resp, body := fleet.frontend.do(http.MethodPost, "/v1/completions", map[string]any{"model": "penstock-tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": true},
		"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-"+parent+"-01")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Status, body)
	}
	for _, p := range slices.Concat([]*process{fleet.frontend}, fleet.routers, fleet.workers) {
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	want := `  attempt attempt=1 worker_id=ROUTER (client, penstock-frontend)
    router generate worker_id=ROUTER (server, penstock-router)
      queue and prefill (internal, penstock-router)
      route attempt=1 worker_id=1 excluded=0 (internal, penstock-router)
      attempt attempt=1 worker_id=1 (client, penstock-router)
        worker generate worker_id=1 (server, penstock-worker)
          queue and prefill (internal, penstock-worker)
`
	tree := got.tree(parent, 0)
	_, routed, _ := strings.Cut(tree, "  attempt attempt=1 worker_id=")
	router, _, _ := strings.Cut(routed, " ")
	if want = strings.ReplaceAll(want, "ROUTER", router); !strings.HasSuffix(tree, want) {
		t.Errorf("the trace is\n%swant at its end\n%s", tree, want)
	}
}
