package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestWorkersTellOfFeeds: the table describes problems of a feed and how its losses were repaired.
func TestWorkersTellOfFeeds(t *testing.T) {
	for feed, want := range map[string]string{
		`{"state":"none"}`:                              "none",
		`{"state":"live","last_seq":41}`:                "live, event 41",
		`{"state":"live","guessed":true,"last_seq":41}`: "live (guessed), event 41",
		`{"state":"live","last_seq":41,"gaps":3,"repaired":2,"described":1,"orphans":4}`: "live, event 41, 3 gaps (2 repaired, 1 described), 4 orphans",
		`{"state":"repairing","last_seq":41,"missing":7,"gaps":1}`:                       "repairing, event 41, 7 missing, 1 gaps (0 repaired, 0 described)",
		`{"state":"live","last_seq":41,"missing":2,"lagging":true,"lag_seconds":3.4}`:    "live, event 41, 2 missing, lagging for 3 s",
	} {
		var out bytes.Buffer
		if err := printWorkers(&out, []byte(`{"rows":[{"worker_id":7,"feed":`+feed+`}]}`), nil); err != nil {
			t.Fatal(err)
		}
		if line := strings.TrimSpace(strings.Split(out.String(), "\n")[1]); !strings.HasSuffix(line, "  "+want) {
			t.Errorf("%s: %q, want %q at the end", feed, line, want)
		}
	}
}

// TestWorkersTellStates: the table has the sequences by state, "-" of an engine which reports none, and "?" before the
// first report.
func TestWorkersTellStates(t *testing.T) {
	for load, want := range map[string]string{
		`"reported":{"running":3,"waiting":9,"encoding":4,"ready":6,"active":2}`: "3 9 4 6 2",
		`"reported":{"running":3,"waiting":9}`:                                   "3 9 - - -",
		`"reported":{"running":0,"waiting":0}`:                                   "0 0 0 0 0",
		`"reported":null`:                                                        "? ? ? ? ?",
	} {
		var out bytes.Buffer
		if err := printWorkers(&out, []byte(`{"rows":[{"worker_id":7,"host":"h","role":"r","model":"m","engine":"e","state":"s","load":{"active_requests":1,`+load+`},"feed":{"state":"none"}}]}`), nil); err != nil {
			t.Fatal(err)
		}
		names, values, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		fields := strings.Fields(names)
		at := slices.Index(fields, "RUNNING")
		if got := strings.Join(strings.Fields(values)[at:at+5], " "); got != want || strings.Join(fields[at:at+5], " ") != "RUNNING WAITING ENCODING READY ACTIVE" {
			t.Errorf("%s: %q, want %q\n%s", load, got, want, out.String())
		}
	}
}

// TestWorkersWarn: warnings about engines are below the table, with their remedies.
func TestWorkersWarn(t *testing.T) {
	var out bytes.Buffer
	if err := printWorkers(&out, []byte(`{"rows":[{"worker_id":7,"engine":"vllm","warnings":[{"code":"no_kv_events","detail":"none come","remedy":"give\u001b events="}]}]}`), nil); err != nil {
		t.Fatal(err)
	}
	if want := "\nworker 7 rank 0: no_kv_events: none come\n  -> give"; !strings.Contains(out.String(), want) || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q lacks %q, or has a control character", out.String(), want)
	}
}

// TestWorkersNameEngines: a worker's remote engine is named by its URL, even while it does not answer; a feed
// whose engine is silent is not simply live.
func TestWorkersNameEngines(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"engines":[{"kind":"vllm","url":"http://a:8000","workers":[3]},{"kind":"sglang","url":"http://b:30000","workers":[7,8]}]}`))
			return
		}
		_, _ = w.Write([]byte(`{"rows":[{"worker_id":3,"engine":"vllm","feed":{"state":"live","last_seq":4},"warnings":[{"code":"no_kv_events","detail":"none come"},{"code":"no_metrics","detail":"none"}]},` +
			`{"worker_id":8,"engine":"sglang","feed":{"state":"live"}},{"worker_id":9,"engine":"tiny"}]}`))
	}))
	defer server.Close()
	var b bytes.Buffer
	code := runCommandLine([]string{"workers", "--server", server.URL}, &b, io.Discard)
	out := b.String()
	for _, want := range []string{"  vllm=http://a:8000  ", "  live, event 4, no_kv_events\n", "  sglang=http://b:30000#1  ", "  tiny  "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d: %s\nlacks %q", code, out, want)
		}
	}
}

// TestWorkersBehindRouters: the workers behind a router process are shown below it, each with its name and
// address, and their problems name the router.
func TestWorkersBehindRouters(t *testing.T) {
	var b bytes.Buffer
	err := printWorkers(&b, []byte(`{"rows":[
		{"worker_id":71,"name":"edge","addr":"tcp://10.0.0.7:1","role":"router","model":"m","state":"ready","behind":[
			{"worker_id":3,"name":"node-3","addr":"tcp://10.0.0.3:1","role":"aggregated","model":"m","state":"quarantined","problem":"it has not answered"}]},
		{"worker_id":72,"host":"other","role":"router","model":"m","state":"ready","behind_error":"it does not answer"}]}`), nil)
	out := b.String()
	for _, want := range []string{
		"WORKER  NAME    ADDRESS", "\n71      edge    tcp://10.0.0.7:1  0    0     router ", "\n  3     node-3  tcp://10.0.0.3:1  0    0     aggregated  m              quarantined",
		"\n72      other   - ", "\nworker 3 rank 0 behind router 71: it has not answered\n", "\nworker 72 rank 0: what is behind it is not known: it does not answer\n",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %s\nlacks %q", err, out, want)
		}
	}
}

// TestServerWithV1: a server may be given with /v1, as clients of the OpenAI API write it.
func TestServerWithV1(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/router/workers" && r.URL.Path != "/health" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		_, _ = w.Write([]byte(`{"rows":[{"worker_id":3}]}`))
	}))
	defer server.Close()
	for _, end := range []string{"", "/", "/v1", "/v1/"} {
		var out, errs bytes.Buffer
		if code := runCommandLine([]string{"workers", "--server", server.URL + end}, &out, &errs); code != 0 {
			t.Errorf("%q: exit code %d, %s", end, code, &errs)
		}
	}
}
