package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"penstock/internal/config"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

// TestPlan: plan waits for the first plan, prints it with its reasons, and its JSON as it came.
func TestPlan(t *testing.T) {
	const report = `{"time":"2026-11-30T21:00:29Z","namespace":"f","connector":"process","decision_id":7,"interval_s":30,
 "traffic":{"arrivals_per_s":2.5,"input_tokens":1000,"output_tokens":100,"cached_share":0.25,"ttft_ms":80,"itl_ms":12.5},
 "forecast":{"method":"mean","observed":2,"expected":3,"raised":4},"hold":"there are no metrics","accelerators":3,
 "roles":[{"role":"decode","desired":4,"feasible":3,"actual":2,"order":3,"change":1,"attainment":0.991,"attainable":1,"reason":"start 1: by ITL"}],
 "leave":{"decode":[12,11]},"problems":["the metrics of http://h: no answer"]}`
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"message":"there is no plan yet"}}`))
			return
		}
		_, _ = w.Write([]byte(report))
	}))
	defer server.Close()
	var out, text bytes.Buffer
	if code := runCommandLine([]string{"plan", "--server", server.URL}, &out, &text); code != exitDone {
		t.Fatalf("exit code %d: %s", code, text.String())
	}
	for _, want := range []string{
		"plan of 2026-11-30T21:00:29Z for namespace f, every 30 s; connector process carries it out (decision 7)",
		"traffic: 2.50 requests/s, 1000 prompt tokens (25 % cached), 100 output tokens, TTFT 80 ms, ITL 12.5 ms",
		"forecast by mean: 3.00 requests/s, sized for 4.00", "hold: there are no metrics",
		"decode  4        3         2       3      99.1 %      start 1: by ITL", "leaving first of role decode: 12 11", "problem: the metrics of http://h: no answer",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(text.String(), "waiting up to 1m0s: there is no plan yet") {
		t.Errorf("it says %q", text.String())
	}
	out.Reset()
	if code := runCommandLine([]string{"plan", "--server", server.URL, "--json"}, &out, &text); code != exitDone || strings.TrimSpace(out.String()) != report {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	asked = 0
	if code := runCommandLine([]string{"plan", "--server", server.URL, "--wait", "0s"}, &out, &text); code != exitNotReady {
		t.Errorf("exit code %d without a plan", code)
	}
}

// TestNoPlanner: without a planner, and at a server which has none, plan says which command starts one.
func TestNoPlanner(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	var out, text bytes.Buffer
	server.Close()
	if code := runCommandLine([]string{"plan", "--server", server.URL, "--wait", "0s"}, &out, &text); code == exitDone || !strings.Contains(text.String(), `is "penstock planner" running?`) {
		t.Errorf("exit code %d: %s", code, text.String())
	}
}

// writerFunc is a writer which calls a function.
type writerFunc func(p []byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// TestPlannerStarts: plan waits for a planner which was started just before and does not listen yet.
func TestPlannerStarts(t *testing.T) {
	server := &httptest.Server{Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })}}
	addr := fixturetest.ReserveAddr(t)
	said := ""
	listen := func(p []byte) (int, error) {
		said += string(p)
		var err error
		if server.Listener, err = net.Listen("tcp", addr); err != nil {
			return 0, err
		}
		server.Start()
		return len(p), nil
	}
	var out bytes.Buffer
	code := runCommandLine([]string{"plan", "--server", "http://" + addr, "--json"}, &out, writerFunc(listen))
	server.Close()
	if code != exitDone || out.String() != "{}\n" || !strings.Contains(said, "nothing listens there yet") {
		t.Errorf("exit code %d, %q: %s", code, out.String(), said)
	}
}

// TestPlannerGreeting: the greeting names what the planner reads, without what may be a secret, and how to see the plan.
func TestPlannerGreeting(t *testing.T) {
	l := &config.Loaded{Command: config.PlannerCommand}
	l.Planner.Server, l.Planner.Metrics = "http://a:8000", []string{"http://b:8000/metrics?token=hidden"}
	var b strings.Builder
	printRoleGreeting(&b, l, node.Started{URL: "https://127.0.0.1:8090", Access: node.Access{CertFile: "host.pem", KeyFile: "keys.yaml"}})
	for _, want := range []string{"Plans for: http://a:8000, http://b:8000/metrics\n", "Dry run:", "--ca host.pem\n", "Keys:"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "hidden") {
		t.Error(b.String())
	}
}

// TestPlanInterrupted: Ctrl-C ends the wait for the first plan, with an error which says so.
func TestPlanInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":{"message":"there is no plan yet"}}`))
		interrupt()
	}))
	defer server.Close()
	c := &apiClient{server: server.URL, http: server.Client()}
	if _, err := awaitPlan(ctx, c, time.Minute, io.Discard); err == nil || !strings.Contains(err.Error(), "interrupted before the planner had its first plan") {
		t.Errorf("error %v", err)
	}
}
