package enginetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Recording is one request to a real engine and its response: a file with a line "STATUS METHOD PATH", a line
// with the body, an empty line, and the response.
type Recording struct {
	Name         string
	Status       int
	Method, Path string
	Body, Answer []byte
}

// ReadRecordings reads all recordings of a directory.
func ReadRecordings(t testing.TB, dir string) []Recording {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in %s: %v", dir, err)
	}
	var all []Recording
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := bytes.Cut(data, []byte("\n"))
		body, answer, found := bytes.Cut(rest, []byte("\n\n"))
		words := strings.Fields(string(head))
		if !found || len(words) != 3 {
			t.Fatalf("%s is no recording", file)
		}
		r := Recording{Name: strings.TrimSuffix(filepath.Base(file), ".txt"), Method: words[1], Path: words[2], Body: body, Answer: answer}
		if r.Status, err = strconv.Atoi(words[0]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, r)
	}
	return all
}

// promptFields distinguishes recordings of one path: each has another prompt.
type promptFields struct {
	Prompt json.RawMessage `json:"prompt"`
	Tokens json.RawMessage `json:"token_ids"`
}

func (a promptFields) lookupKey() string { return string(a.Prompt) + "|" + string(a.Tokens) }

func lookupKeyOf(body []byte) string {
	var a promptFields
	var whole bytes.Buffer
	if json.Compact(&whole, body) != nil || json.Unmarshal(whole.Bytes(), &a) != nil {
		return ""
	}
	return a.lookupKey()
}

// ServeRecorded serves the recordings of a directory: a recording named ask-… for the same path with the same
// prompt, a GET recording for its path, and 404 for everything else and for the paths in without.
func ServeRecorded(t testing.TB, dir string, without ...string) *httptest.Server {
	t.Helper()
	answers := make(map[string]Recording)
	for _, r := range ReadRecordings(t, dir) {
		if r.Method == http.MethodGet {
			answers[r.Path] = r
		} else if strings.HasPrefix(r.Name, "ask-") {
			answers[r.Path+" "+lookupKeyOf(r.Body)] = r
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		key := q.URL.Path
		if q.Method == http.MethodPost {
			body, err := io.ReadAll(q.Body)
			if err != nil {
				return
			}
			key += " " + lookupKeyOf(body)
		}
		r, found := answers[key]
		if !found || slices.Contains(without, q.URL.Path) {
			http.NotFound(w, q)
			return
		}
		kind := "application/json"
		if bytes.HasPrefix(r.Answer, []byte("data: ")) {
			kind = "text/event-stream; charset=utf-8"
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(r.Status)
		_, _ = w.Write(r.Answer)
	}))
	t.Cleanup(s.Close)
	return s
}

// Chunks returns the objects of a recorded stream; a response that is no stream is one object.
func (r Recording) Chunks(t testing.TB) []map[string]any {
	t.Helper()
	var all []map[string]any
	text := string(r.Answer)
	if strings.HasPrefix(text, "{") {
		text = "data: " + text
	}
	for line := range strings.Lines(text) {
		data, found := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !found || data == "[DONE]" {
			continue
		}
		var chunk map[string]any
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", r.Name, err))
		}
		all = append(all, chunk)
	}
	return all
}
