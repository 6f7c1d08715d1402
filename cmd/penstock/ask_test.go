package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// routed starts a server which serves the given list of models, and keeps the body of the last question about
// a prompt.
func routed(t *testing.T, models string) (url string, asked *map[string]any) {
	t.Helper()
	asked = new(map[string]any)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(models)) })
	mux.HandleFunc("POST /v1/router/explain", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(asked); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte(`{"decision":{"worker_id":2,"block_size":16,"mode":"kv"},"prompt_tokens":5}`))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL, asked
}

// A router has no list of models, so the models of its workers count.
func TestRouteAsksARouter(t *testing.T) {
	for name, tc := range map[string]struct {
		status       int
		workers, err string
	}{
		"one model":   {http.StatusNotFound, `{"rows":[{"model":"m"},{"model":"m"}]}`, ""},
		"two models":  {http.StatusNotFound, `{"rows":[{"model":"m"},{"model":"o"}]}`, "choose one with --model: m, o\n"},
		"no workers":  {http.StatusNotFound, `{"rows":[]}`, "serves no model yet"},
		"not allowed": {http.StatusForbidden, `{"rows":[{"model":"m"}]}`, "answered 403"},
	} {
		t.Run(name, func(t *testing.T) {
			var model any
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(tc.status) })
			mux.HandleFunc("GET /v1/router/workers", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tc.workers)) })
			mux.HandleFunc("POST /v1/router/explain", func(w http.ResponseWriter, r *http.Request) {
				var q map[string]any
				if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
					t.Error(err)
				}
				model = q["model"]
				_, _ = w.Write([]byte(`{}`))
			})
			s := httptest.NewServer(mux)
			defer s.Close()
			var out, errs bytes.Buffer
			code := runCommandLine([]string{"route", "--server", s.URL, "text"}, &out, &errs)
			if tc.err == "" && (code != exitDone || model != "m") {
				t.Errorf("exit code %d, asked about %v: %s", code, model, errs.String())
			}
			if tc.err != "" && (code == exitDone || !strings.Contains(errs.String(), tc.err)) {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}

// A flag with an optional value does not take the next word as its value.
func TestValueWithoutEquals(t *testing.T) {
	var out, errs bytes.Buffer
	code := runCommandLine([]string{"frontend", "--router-reset-states", "force"}, &out, &errs)
	if code != exitUsage || !strings.Contains(errs.String(), "--router-reset-states=force") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

func TestRouteAsksAboutTheOnlyModel(t *testing.T) {
	for _, tc := range []struct {
		name, models, model, err string
	}{
		{"one", `{"data":[{"id":"m","root":"m"}]}`, "m", ""},
		{"one with an alias", `{"data":[{"id":"m","root":"m"},{"id":"latest","root":"m"}]}`, "m", ""},
		{"of another server", `{"data":[{"id":"m"}]}`, "m", ""},
		{"two", `{"data":[{"id":"m","root":"m"},{"id":"o","root":"o"},{"id":"latest","root":"m"}]}`, "", "choose one with --model: m, o\n"},
		{"none", `{"data":[]}`, "", "serves no model yet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			url, asked := routed(t, tc.models)
			var out, errs bytes.Buffer
			code := runCommandLine([]string{"route", "--server", url, "hello"}, &out, &errs)
			if tc.err != "" {
				if code == exitDone || !strings.Contains(errs.String(), tc.err) {
					t.Errorf("exit code %d, %q, want an error that has %q", code, errs.String(), tc.err)
				}
				return
			}
			if code != exitDone || (*asked)["model"] != tc.model {
				t.Errorf("exit code %d, asked about %v, want %s: %s", code, (*asked)["model"], tc.model, errs.String())
			}
		})
	}
}

func TestRouteRawIsAPlainPrompt(t *testing.T) {
	url, asked := routed(t, `{"data":[{"id":"m","root":"m"}]}`)
	var out, errs bytes.Buffer
	if code := runCommandLine([]string{"route", "--server", url, "--raw", "hello"}, &out, &errs); code != exitDone {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	if (*asked)["prompt"] != "hello" || (*asked)["messages"] != nil {
		t.Errorf("asked %v, want the prompt as it is", *asked)
	}
}

// TestRouteMessages: a file contains a whole chat request or its messages, and its contents are sent
// unchanged.
func TestRouteMessages(t *testing.T) {
	const messages = `[ {"role":"user","content":"a < b"} ]`
	for name, c := range map[string]struct {
		file  string
		flags []string
		want  string
	}{
		"array":    {" " + messages + "\n", nil, `{"messages":` + messages + `,"model":"m"}`},
		"request":  {`{"tools": [{"z":1.0, "a":"<"}], "messages": ` + messages + `, "model": "n"}`, nil, `{"messages":` + messages + `,"model":"n","tools":[{"z":1.0, "a":"<"}]}`},
		"no model": {`{"messages":` + messages + `}`, nil, `{"messages":` + messages + `,"model":"m"}`},
		"of another": {
			`{"messages":` + messages + `,"model":"n"}`,
			[]string{"--model", "o", "--router-temperature", "2"},
			`{"messages":` + messages + `,"model":"o","router_config_override":{"router_temperature":2}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []byte
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`)) })
			mux.HandleFunc("POST /v1/router/explain", func(w http.ResponseWriter, r *http.Request) {
				var err error
				if asked, err = io.ReadAll(r.Body); err != nil {
					t.Error(err)
				}
				_, _ = w.Write([]byte(`{}`))
			})
			s := httptest.NewServer(mux)
			defer s.Close()
			file := filepath.Join(t.TempDir(), "request.json")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			if code := runCommandLine(append([]string{"route", "--server", s.URL, "--messages", file}, c.flags...), &out, &errs); code != exitDone {
				t.Fatalf("exit code %d: %s", code, errs.String())
			}
			if string(asked) != c.want {
				t.Errorf("asked\n%s, want\n%s", asked, c.want)
			}
		})
	}
}

// TestBenchAwaitsAModel: a server which has just started has no model at first, and bench asks it again.
func TestBenchAwaitsAModel(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" && asked.Add(1) > 1 {
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
			return
		}
		_, _ = w.Write([]byte(`{"data":[]}`))
	}))
	defer s.Close()
	c := &apiClient{server: s.URL, http: s.Client()}
	var errs bytes.Buffer
	name, err := c.awaitOnlyModel(t.Context(), &errs)
	if name != "m" || err != nil || asked.Load() != 2 || !strings.Contains(errs.String(), "waiting up to 10s for a model") {
		t.Errorf("model %q, %v, after %d questions: %s", name, err, asked.Load(), errs.String())
	}
}
