package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/replay"
	"penstock/internal/replay/report"
)

// benchServerLike is a server which answers completions of any length and, like Penstock, reports its
// workers. It counts the whole blocks of 16 tokens which a prompt shares with an earlier one as cached.
type benchServerLike struct {
	t      *testing.T
	router bool // it has the router API
	fails  bool // nothing is answered
	key    string
	seen   map[string]bool // beginnings of prompts, in whole blocks
}

func (s *benchServerLike) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.key != "" && r.Header.Get("Authorization") != "Bearer "+s.key {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":{"message":"no good key"}}`)
		return
	}
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	case "/v1/completions":
		s.complete(w, r)
	case "/v1/router/workers":
		if !s.router {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"rows":[{"worker_id":1,"model":"m","state":"ready","load":{"reported":{"total_blocks":4096}}},
			{"worker_id":2,"model":"m","state":"ready","load":{}},{"worker_id":3,"model":"other","state":"ready"}]}`)
	case "/v1/router/decisions":
		if !strings.HasSuffix(r.URL.Query().Get("request_id"), "-probe") {
			s.t.Errorf("asked for the decision about %q", r.URL.Query().Get("request_id"))
		}
		_, _ = io.WriteString(w, `{"attempts":[{"mode":"kv","block_size":16}]}`)
	default:
		http.NotFound(w, r)
	}
}

func (s *benchServerLike) complete(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt    []kv.Token `json:"prompt"`
		MaxTokens int        `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.t.Error(err)
	}
	if s.fails && !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-probe") {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	cached := 0
	for n := 16; n < len(body.Prompt); n += 16 {
		begin := fmt.Sprint(body.Prompt[:n])
		if s.seen[begin] && cached == n-16 {
			cached = n
		}
		s.seen[begin] = true
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Penstock-Worker", "1")
	for range body.MaxTokens {
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n",
		len(body.Prompt), body.MaxTokens, cached)
}

// runBench runs bench against the server with one request after another, so that their order is the
// workload's.
func runBench(t *testing.T, s *benchServerLike, args ...string) (out, errs string, code int) {
	t.Helper()
	s.t, s.seen = t, map[string]bool{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	var stdout, stderr bytes.Buffer
	code = runCommandLine(append([]string{"bench", "--url", srv.URL + "/v1/", "--concurrency", "1"}, args...), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

const smallWorkload = "shared:requests=40,groups=3,prefix=128,input=32,output=4"

func TestBench(t *testing.T) {
	for _, warmup := range []string{"0", "7"} {
		out, errs, code := runBench(t, &benchServerLike{router: true}, "--json", "--generate", smallWorkload, "--warmup", warmup, "--slo-ttft", "1h")
		result, err := report.Read(strings.NewReader(out))
		if err != nil || code != exitDone {
			t.Fatalf("%v, exit code %d: %s%s", err, code, out, errs)
		}
		row := result.Rows[0]
		want := 40
		if warmup == "7" {
			want = 33
		}
		if row.Policy != "kv" || row.Workers != 2 || row.BlockSize != 16 || row.Blocks != 4096 || row.Requests != want || row.Errors != 0 || row.TTFT.Count != int64(want) || row.ITL.Count != row.OutputTokens-int64(want) {
			t.Errorf("%+v", row)
		}
		// One server with one cache achieves exactly the ideal.
		if ideal := row.Ideal; ideal == nil || ideal.Workers != 2 || row.CachedTokens == 0 || fmt.Sprintf("%.9f", row.CachedShare) != fmt.Sprintf("%.9f", ideal.Infinite.CachedShare) {
			t.Errorf("warm-up %s: cached share %v, ideal %+v", warmup, row.CachedShare, ideal)
		}
		if row.Goodput == nil || row.Goodput.Share != 1 || row.Lateness == nil {
			t.Errorf("goodput %+v, lateness %+v", row.Goodput, row.Lateness)
		}
		if !strings.Contains(errs, "m at ") || !strings.Contains(errs, "2 workers, routed by kv), prompts as token ids, 40 requests") {
			t.Errorf("standard error: %s", errs)
		}
	}
}

// TestBenchOfStrangers: if the server reports nothing of itself, the row is called server and the ideal is in
// a note.
func TestBenchOfStrangers(t *testing.T) {
	dir := t.TempDir()
	page, table := filepath.Join(dir, "r.html"), filepath.Join(dir, "r.csv")
	out, errs, code := runBench(t, &benchServerLike{}, "--generate", smallWorkload, "--requests", "9", "--report", page, "--csv", table)
	if code != exitDone || !strings.Contains(out, "server") || !strings.Contains(out, "an unbounded one with blocks of 16 tokens would have had") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	for name, want := range map[string]string{page: "<html", table: "policy"} {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBenchPrompts: without --prompt-seed each run has different prompts, so that a full cache is of no use;
// the seed in the result repeats them.
func TestBenchPrompts(t *testing.T) {
	s := &benchServerLike{t: t, seen: map[string]bool{}}
	srv := httptest.NewServer(s)
	defer srv.Close()
	bench := func(args ...string) *replay.Result {
		var out, errs bytes.Buffer
		args = append([]string{"bench", "--url", srv.URL, "--concurrency", "1", "--json", "--generate", "random:requests=3,input=64,output=1"}, args...)
		if code := runCommandLine(args, &out, &errs); code != exitDone {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		r, err := report.Read(&out)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := bench()
	if bench().Rows[0].CachedTokens != 0 {
		t.Error("the second run found what the first one left")
	}
	var seed string
	for _, set := range first.Settings {
		if set.Name == "prompt-seed" {
			seed = set.Value
		}
	}
	if bench("--prompt-seed", seed).Rows[0].CachedTokens == 0 {
		t.Errorf("the prompts of seed %q are not those of the first run", seed)
	}
}

func TestBenchFails(t *testing.T) {
	out, errs, code := runBench(t, &benchServerLike{fails: true}, "--generate", smallWorkload)
	if code != exitFailed || !strings.Contains(errs, "of 40 requests none was answered") || !strings.Contains(out, "status_429 40") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	t.Setenv("PENSTOCK_API_KEY", "sk-wrong-0123456789")
	_, errs, code = runBench(t, &benchServerLike{key: "sk-right-0123456789"}, "--model", "m")
	if code != exitFailed || !strings.Contains(errs, "401: no good key") || strings.Contains(errs, "sk-") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	t.Setenv("PENSTOCK_API_KEY", "sk-right-0123456789")
	if _, errs, code = runBench(t, &benchServerLike{key: "sk-right-0123456789"}, "--requests", "3"); code != exitDone {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestBenchUsage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{\"timestamp\":0,\"input_length\":32,\"output_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":5,\"input_length\":-1,\"output_length\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &benchServerLike{}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--rate", "3"}, "--rate and --concurrency"},
		{[]string{"--speedup", "3"}, "--speedup is about"},
		{[]string{"--trace", "a", "--generate", "b"}, "give one of them"},
		{[]string{"--concurrency", "0", "--rate", "3", "--arrival", "never"}, "none of trace, uniform"},
		{[]string{"--concurrency", "0", "--rate", "3", "--arrival", "gamma:2"}, "key=value"},
		{[]string{"--concurrency", "0", "--arrival", "gamma:cv=3"}, "gamma needs a rate"},
		{[]string{"--arrival", "uniform"}, "--arrival and --concurrency"},
		{[]string{"--concurrency", "0", "--speedup", "2", "--arrival", "trace:speedup=2"}, "given twice"},
		{[]string{"--input", "voice"}, "--input"},
		{[]string{"--warmup", "soon"}, "--warmup"},
		{[]string{"--concurrency", "1000000000"}, "at most 65536"},
		{[]string{"--concurrency", "0", "--max-connections", "1000000000000"}, "at most 65536"},
		{[]string{"--extra-body", "[1]"}, "--extra-body"},
		{[]string{"--slo-itl", "-1s"}, "--slo"},
		{[]string{"--header", "secret-without-colon"}, "--header: want"},
		{[]string{"--generate", "nothing"}, "is none of"},
		{[]string{"--trace", bad}, "line 2"},
		{[]string{"--trace", "not-there"}, "not-there"},
		{[]string{"compare", "not-there", "a"}, "not-there"},
		{[]string{"--colour"}, "unknown flag"},
	} {
		_, errs, code := runBench(t, s, tt.args...)
		if tt.args[0] == "compare" {
			var out, stderr bytes.Buffer
			code = runCommandLine(append([]string{"bench"}, tt.args...), &out, &stderr)
			errs = stderr.String()
		}
		if code != exitUsage || !strings.Contains(errs, tt.want) || strings.Contains(errs, "secret") {
			t.Errorf("%q: exit code %d, %s; want %q", tt.args, code, errs, tt.want)
		}
	}
}

// TestBenchFolder: a missing directory is reported before the first request.
func TestBenchFolder(t *testing.T) {
	asked := false
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer srv.Close()
	var stdout, stderr bytes.Buffer
	code := runCommandLine([]string{"bench", "--url", srv.URL, "--report", filepath.Join(t.TempDir(), "no", "page.html")}, &stdout, &stderr)
	if code != exitUsage || asked || !strings.HasSuffix(stderr.String(), "no: no such file or directory\n") {
		t.Errorf("exit code %d, asked %t: %s", code, asked, stderr.String())
	}
}

func TestBenchProgress(t *testing.T) {
	p := &benchProgress{total: 100}
	if got, want := p.formatLine(time.Second), "0/100 requests  0.0/s  0 errors  late by 0s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for i := range 30 {
		s := &replay.Sample{Sent: ms(1000), Due: ms(999), First: ms(1000 + i)}
		if i%10 == 0 {
			s.Error = "reset"
		}
		p.recordSample(s)
	}
	p.showBar = true
	if got, want := p.formatLine(2*time.Second), "[#######.................] 30/100 requests  15.0/s  TTFT p50 15ms  3 errors  late by 1ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := p.formatLine(2 * time.Second); !strings.HasSuffix(got, "late by 0s") {
		t.Errorf("%q: lateness is that since the last look", got)
	}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// TestBenchInterrupted: the results up to the interrupt are printed and marked.
func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &benchServerLike{t: t, seen: map[string]bool{}}
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" {
			if n++; n == 5 {
				cancel()
			}
		}
		s.ServeHTTP(w, r)
	}))
	defer srv.Close()
	cmd := newRootCommand()
	var out bytes.Buffer
	cmd.SetArgs([]string{"bench", "--url", srv.URL, "--concurrency", "1", "--generate", smallWorkload, "--json"})
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(ctx)
	r, rerr := report.Read(&out)
	if err == nil || !strings.Contains(err.Error(), "interrupted") || rerr != nil || r.Rows[0].Requests == 0 || !strings.Contains(strings.Join(r.Notes, " "), "Interrupted") {
		t.Errorf("%v, %v, %+v", err, rerr, r)
	}
}

// TestBenchWarmup: the gaps of a warm-up request are not in the figures, even if it ends after others.
func TestBenchWarmup(t *testing.T) {
	m := replay.RecorderConfig{WarmupRequests: 1}
	b := &benchRecorder{Recorder: replay.NewRecorder(m), measure: m, progress: &benchProgress{}}
	for _, index := range []int{1, 0} {
		b.RecordSample(&replay.Sample{Index: index, Output: 2})
		b.RecordGap(ms(3), 1)
	}
	if n := b.Run().Row.ITL.Count; n != 1 {
		t.Errorf("%d pauses count, want 1", n)
	}
}

func TestOfRequests(t *testing.T) {
	for _, c := range []struct {
		spec string
		n    int
		want string
	}{
		{"chat", 0, "chat"},
		{"chat", 7, "chat:requests=7"},
		{"chat:turns=8", 7, "chat:turns=8,requests=7"},
		{"chat:requests=5", 7, "chat:requests=5"},
	} {
		if got := withRequestCount(c.spec, c.n); got != c.want {
			t.Errorf("%s of %d: %q, want %q", c.spec, c.n, got, c.want)
		}
	}
}

// TestBenchOddServer: impossible reports of a server count as not known, and escape sequences in its texts
// are escaped.
func TestBenchOddServer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/router/workers":
			_, _ = io.WriteString(w, `{"rows":[{"worker_id":1,"model":"\u001b[2Jm","state":"ready","load":{"reported":{"total_blocks":9223372036854775807}}},
				{"worker_id":2,"model":"\u001b[2Jm","state":"ready","load":{"reported":{"total_blocks":-1}}}]}`)
		case "/v1/router/decisions":
			_, _ = io.WriteString(w, `{"attempts":[{"mode":"kv\u001b[2J","block_size":1}]}`)
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"\u001b[2Jm"}]}`)
		case "/v1/completions":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	var stdout, stderr bytes.Buffer
	code := runCommandLine([]string{"bench", "--url", srv.URL, "--concurrency", "1", "--generate", smallWorkload}, &stdout, &stderr)
	if out := stdout.String() + stderr.String(); code != exitDone || strings.Contains(out, "\x1b") || !strings.Contains(out, "does not tell the size of its caches") {
		t.Errorf("exit code %d: %q", code, out)
	}
	stderr.Reset()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, `{"error":{"message":"no\u001b[2J"}}`)
	}))
	defer refusing.Close()
	if code := runCommandLine([]string{"bench", "--url", refusing.URL}, &stdout, &stderr); code != exitFailed || stderr.String() != "penstock: no\\x1b[2J\n" {
		t.Errorf("exit code %d: %q", code, stderr.String())
	}
}

// TestBenchInterruptedEarly: an interrupt before the first result is not a usage error, and leaves no files.
func TestBenchInterruptedEarly(t *testing.T) {
	for _, model := range []string{"", "m"} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		dir := t.TempDir()
		cmd := newRootCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"bench", "--url", "http://127.0.0.1:1", "--model", model, "--csv", filepath.Join(dir, "rows.csv")})
		err := cmd.ExecuteContext(ctx)
		if err == nil || err.Error() != "bench: interrupted before anything was measured" {
			t.Errorf("model %q: it ends with %v", model, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	}
}
