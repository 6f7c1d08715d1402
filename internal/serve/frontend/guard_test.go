package frontend

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/edge/keys"
	"penstock/internal/engine"
)

const (
	adminKey = "sk-admin-0123456789"
	userKey  = "sk-user-0123456789a"
	tinyKey  = "sk-tiny-0123456789a"
	slowKey  = "sk-slow-0123456789a"
)

// keyFile has an administrator, a user without limits, one for the model tiny only, and one with low
// limits.
const keyFile = `keys:
  - {name: admin, key: ` + adminKey + `, admin: true}
  - {name: user, key: ` + userKey + `}
  - {name: tiny, key: ` + tinyKey + `, models: [tiny]}
  - {name: slow, key: ` + slowKey + `, requests_per_minute: 3, tokens_per_minute: 20, max_inflight: 1}
`

// inGuardedWorld is a world with the keys of keyFile in force and an access log.
func inGuardedWorld(t *testing.T, cfg Config, test func(t *testing.T, w *world, access *bytes.Buffer)) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(keyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	access := &bytes.Buffer{}
	inWorldWith(t, cfg, func(d *Deps) {
		d.Keys = must(keys.Open(path)) // it uses the bubble's clock
		d.AccessLog = accessLog(access)
	}, func(t *testing.T, w *world) {
		w.mounted = func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("mounted")) }
		test(t, w, access)
	})
}

// ask sends a request with headers and returns its status and body.
func (w *world) ask(method, path, body string, headers ...string) answerOf {
	w.t.Helper()
	return read(w.send(w.t.Context(), method, path, strings.NewReader(body), headers...))
}

// TestWhoMay: each path admits its audience; other clients get the error of its API.
func TestWhoMay(t *testing.T) {
	const hi = `{"model":"bytes","prompt":"hi"}`
	const message = `{"model":"bytes","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, access *bytes.Buffer) {
		w.worker(1, constant("hi"))
		bearer := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
		for _, tt := range []struct {
			method, path, body string
			headers            []string
			status             int
			has                string
		}{
			{"GET", "/health", "", nil, 200, "healthy"},
			{"GET", "/ready", "", nil, 200, "healthy"},
			{"GET", "/live", "", nil, 200, "live"},
			{"GET", "/metrics", "", nil, 401, `"code":"unauthorized"`},
			{"GET", "/metrics", "", bearer(userKey), 403, `"code":"forbidden"`},
			{"GET", "/metrics", "", bearer(adminKey), 200, "penstock_frontend_inflight"},
			{"GET", "/mounted", "", nil, 401, "Authorization: Bearer KEY"},
			{"GET", "/mounted", "", bearer(userKey), 403, "admin: true"},
			{"GET", "/mounted", "", bearer(adminKey), 200, "mounted"},
			{"GET", "/nothing", "", nil, 401, "unauthorized"},
			{"GET", "/nothing", "", bearer(userKey), 404, "there is nothing at"},
			{"GET", "/openapi.json", "", nil, 401, "unauthorized"},
			{"POST", "/v1/completions", hi, nil, 401, `"type":"authentication_error"`},
			{"POST", "/v1/completions", hi, bearer("sk-wrong-0123456789"), 401, "is not one of this server's"},
			{"POST", "/v1/completions", hi, []string{"Authorization", "Basic " + userKey}, 401, "asks for an API key"},
			{"POST", "/v1/completions", hi, []string{"Authorization", userKey}, 401, "asks for an API key"},
			{"POST", "/v1/completions", hi, bearer(userKey), 200, `"text":"hi"`},
			{"POST", "/v1/completions", hi, []string{"authorization", "bearer  " + userKey}, 200, `"text":"hi"`},
			{"POST", "/v1/completions", hi, []string{"x-api-key", userKey}, 200, `"text":"hi"`},
			{"POST", "/v1/completions", hi, []string{"Authorization", "Bearer of-another-server", "x-api-key", userKey}, 200, `"text":"hi"`},
			{"GET", "/v1/completions", "", bearer(userKey), 405, "use POST"},
			{"POST", "/v1/messages", message, nil, 401, `{"type":"error","error":{"type":"authentication_error"`},
			{"POST", "/v1/messages/count_tokens", message, nil, 401, `{"type":"error","error":{"type":"authentication_error"`},
			{"POST", "/v1/messages/count_tokens", strings.Replace(message, `"max_tokens":3,`, "", 1), []string{"x-api-key", tinyKey}, 404, `{"type":"error","error":{"type":"not_found_error"`},
			{"POST", "/v1/completions", hi, bearer(tinyKey), 404, "no model 'bytes' for the key tiny"},
			{"POST", "/v1/completions", `{"model":"none","prompt":"hi"}`, bearer(tinyKey), 404, "no model 'none' for the key tiny"},
			{"POST", "/v1/embeddings", `{"model":"bytes","input":"hi"}`, bearer(tinyKey), 404, "no model 'bytes' for the key tiny"},
			{"POST", "/tokenize", hi, bearer(tinyKey), 404, "no model 'bytes' for the key tiny"},
			{"POST", "/tokenize", hi, bearer(userKey), 200, `"count":2`},
			{"GET", "/v1/models", "", bearer(tinyKey), 200, `"data":[]`},
			{"GET", "/v1/models/bytes", "", bearer(tinyKey), 404, "for the key tiny"},
			{"GET", "/v1/models/bytes", "", bearer(userKey), 200, `"id":"bytes"`},
		} {
			a := w.ask(tt.method, tt.path, tt.body, tt.headers...)
			if a.status != tt.status || !strings.Contains(a.body, tt.has) {
				t.Errorf("%s %s %v: %d %s\n\twant %d %s", tt.method, tt.path, tt.headers, a.status, a.body, tt.status, tt.has)
			}
			if challenged := a.header.Get("WWW-Authenticate") != ""; challenged != (tt.status == 401) {
				t.Errorf("%s %s: the header WWW-Authenticate is there: %v", tt.method, tt.path, challenged)
			}
		}
		for _, secret := range []string{adminKey, userKey, tinyKey, "sk-wrong", "of-another-server"} {
			if strings.Contains(access.String()+w.log.String(), secret) {
				t.Errorf("a log has the key %s", secret)
			}
		}
	})
}

// TestAllowedModels: a key for some models sees only those, by any name.
func TestAllowedModels(t *testing.T) {
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, _ *bytes.Buffer) {
		w.worker(1, constant("hi"))
		w.worker(2, constant("ho"), func(c *engine.Card) { c.Name, c.Aliases = "tiny", []string{"small"} })
		for model, status := range map[string]int{"tiny": 200, "small": 200, "bytes": 404, "b": 404, "none": 404} {
			if a := w.ask("POST", "/v1/completions", `{"model":"`+model+`","prompt":"hi"}`, "x-api-key", tinyKey); a.status != status || strings.Contains(a.body, "'bytes'") && model != "bytes" {
				t.Errorf("%s: %d %s", model, a.status, a.body)
			}
		}
		if a := w.ask("GET", "/v1/models", "", "x-api-key", tinyKey); strings.Contains(a.body, "bytes") || strings.Count(a.body, `"id":`) != 2 {
			t.Errorf("the list is %s", a.body)
		}
	})
}

// TestOverLimits: a key over a limit is told which limit and for how long, for any request, and other
// keys are not affected. Time is virtual.
func TestOverLimits(t *testing.T) {
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, _ *bytes.Buffer) {
		w.worker(1, constant("hello"))
		ask := func(key string) answerOf {
			return w.ask("POST", "/v1/completions", `{"model":"bytes","prompt":"hi there"}`, "Authorization", "Bearer "+key)
		}
		expect := func(a answerOf, status int, has, retry string) {
			t.Helper()
			synctest.Wait()
			if a.status != status || !strings.Contains(a.body, has) || a.header.Get("Retry-After") != retry {
				t.Errorf("%d %s, retry after %q, want %d %s after %q", a.status, a.body, a.header.Get("Retry-After"), status, has, retry)
			}
		}
		expect(ask(slowKey), 200, "hello", "") // 8 tokens of the prompt and 6 of the answer, including the end token
		expect(ask(slowKey), 200, "hello", "")
		expect(ask(slowKey), 429, "tokens of a minute (tokens_per_minute)", "27") // 28 of 20, and one must be available
		expect(ask(userKey), 200, "hello", "")
		time.Sleep(27 * time.Second) // virtual
		expect(ask(slowKey), 200, "hello", "")
		time.Sleep(time.Minute) // virtual
		for range 3 {           // counting tokens costs no tokens
			expect(w.ask("POST", "/tokenize", `{"model":"bytes","prompt":"hi"}`, "x-api-key", slowKey), 200, "count", "")
		}
		expect(w.ask("POST", "/v1/messages", `{}`, "x-api-key", slowKey), 429, `"type":"rate_limit_error","message":"the key slow has used up its requests of a minute`, "20")
		time.Sleep(20 * time.Second)                                                         // virtual
		expect(w.ask("POST", "/v1/completions", `{`, "x-api-key", slowKey), 400, "JSON", "") // it counts as a request

		for series, want := range map[string]string{
			`frontend_key_requests_total{key="slow"}`:                               "7",
			`frontend_key_refused_total{key="slow",limit="tokens_per_minute"}`:      "1",
			`frontend_key_refused_total{key="slow",limit="requests_per_minute"}`:    "1",
			`frontend_key_refused_total{key="slow",limit="max_inflight"}`:           "0",
			`frontend_key_tokens_total{key="slow",kind="prompt"}`:                   "24",
			`frontend_key_tokens_total{key="slow",kind="output"}`:                   "18",
			`frontend_key_requests_total{key="user"}`:                               "1",
			`frontend_key_inflight{key="slow"}`:                                     "0",
			`frontend_rejections_total{reason="limit"}`:                             "2",
			`frontend_requests_total{endpoint="messages",model="",status="429"}`:    "1",
			`frontend_requests_total{endpoint="completions",model="",status="429"}`: "1",
		} {
			if got := w.metric(series); got != want {
				t.Errorf("%s is %q, want %s", series, got, want)
			}
		}
	})
}

// TestInflightOfAKey: concurrent requests are bounded, and every way a request ends frees its place.
func TestInflightOfAKey(t *testing.T) {
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, _ *bytes.Buffer) {
		hold := make(chan struct{})
		s := constant("hi")
		s.beforehand = func() { <-hold }
		w.worker(1, s)
		first := make(chan answerOf, 1)
		go func() { first <- w.ask("POST", "/v1/completions", hello, "x-api-key", slowKey) }()
		synctest.Wait()
		if got := w.metric(`frontend_key_inflight{key="slow"}`); got != "1" {
			t.Errorf("%q are in flight", got)
		}
		if a := w.ask("POST", "/v1/completions", hello, "x-api-key", slowKey); a.status != 429 || !strings.Contains(a.body, "requests at once (max_inflight)") || a.header.Get("Retry-After") != "1" {
			t.Errorf("%d %s", a.status, a.body)
		}
		close(hold)
		if a := <-first; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		synctest.Wait()
		if a := w.ask("POST", "/v1/completions", hello, "x-api-key", slowKey); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestOpenMetrics: metrics may be public while keys are in force.
func TestOpenMetrics(t *testing.T) {
	inGuardedWorld(t, Config{OpenMetrics: true}, func(t *testing.T, w *world, _ *bytes.Buffer) {
		if a := w.get("/metrics"); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}
