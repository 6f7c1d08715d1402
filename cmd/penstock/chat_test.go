package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// startTalker starts a server whose answer depends on the last message of a chat request: the case of talk
// with that name, or the number of messages and the last one.
func startTalker() (url string, stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[{"id":"talker"}]}`))
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Messages []chatMessage `json:"messages"`
			Model    string        `json:"model"`
			Options  map[string]any
		}
		var raw json.RawMessage
		if json.NewDecoder(r.Body).Decode(&raw) != nil || json.Unmarshal(raw, &q) != nil || json.Unmarshal(raw, &q.Options) != nil || len(q.Messages) == 0 {
			http.Error(w, "not a chat request", http.StatusBadRequest)
			return
		}
		delete(q.Options, "messages")
		options, _ := json.Marshal(q.Options)
		talk(w, r, q.Messages, string(options))
	})
	s := httptest.NewServer(mux)
	return s.URL, s.Close
}

// talk writes one answer.
func talk(w http.ResponseWriter, r *http.Request, messages []chatMessage, options string) {
	last := messages[len(messages)-1].Content
	if last == "refuse" {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":{"message":"'messages' has a word that is refused"}}`))
		return
	}
	w.Header().Set("x-penstock-worker", "7")
	say := func(field, text string) {
		value, _ := json.Marshal(text)
		fmt.Fprintf(w, ": a comment\n\ndata: {\"choices\":[{\"delta\":{%q:%s},\"finish_reason\":null}]}\n\n", field, value)
		_ = http.NewResponseController(w).Flush()
	}
	reason := "stop"
	switch last {
	case "think":
		say("reasoning_content", "Let me ")
		say("reasoning_content", "see.")
		say("content", "Done.")
	case "break":
		say("content", "Half of")
		return
	case "fail":
		say("content", "Half of")
		_, _ = w.Write([]byte("data: {\"error\":{\"message\":\"the worker is gone\"}}\n\n"))
		return
	case "escape":
		say("content", "\x1b[31mred\tand blue\n")
	case "object":
		_, _ = w.Write([]byte("data: {\"choices\":{}}\n\n"))
		return
	case "endless":
		for r.Context().Err() == nil {
			say("content", strings.Repeat("and on ", 64<<10))
		}
		return
	case "hang":
		say("content", "Once upon")
		<-r.Context().Done()
		return
	case "long":
		reason = "length"
		say("content", "and so ")
		say("content", "on")
	case "options":
		say("content", options)
	default:
		say("content", fmt.Sprintf("%d messages, ", len(messages)))
		say("content", "the last: "+last)
	}
	fmt.Fprintf(w, `data: {"choices":[{"delta":{},"finish_reason":%q}]}`+"\n\n", reason)
	usage := `"usage":{"prompt_tokens":20,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}},"nvext":{"workers":[{"worker_id":7},{"worker_id":9}]}`
	if last == "plain" { // as another server
		usage = `"usage":{"prompt_tokens":20,"completion_tokens":4}`
	}
	fmt.Fprintf(w, "data: {\"choices\":[],%s}\n\ndata: [DONE]\n\n", usage)
}

// TestChatOnce: a question on the command line is answered on standard output, as text or as one object,
// without unknown values.
func TestChatOnce(t *testing.T) {
	url, stop := startTalker()
	defer stop()
	for question, want := range map[string]struct {
		code      int
		out, errs string // exactly; what errs has
	}{
		"Hello":  {exitDone, "1 messages, the last: Hello\n", "[worker 9 · 2 attempts · 16 of 20 prompt tokens cached · 4 tokens in "},
		"plain":  {exitDone, "1 messages, the last: plain\n", "[worker 7 · unknown how many of 20 prompt tokens cached"},
		"think":  {exitDone, "Done.\n", "(reasoning) Let me see.\n[worker 9"},
		"long":   {exitDone, "and so on\n", "cut at the length limit]"},
		"escape": {exitDone, "\x1b[31mred\tand blue\n", "[worker 9"},
		"break":  {exitFailed, "Half of\n", "broke off"},
		"fail":   {exitFailed, "Half of\n", "penstock: the worker is gone\n"},
		"refuse": {exitFailed, "", "penstock: 'messages' has a word that is refused\n"},
	} {
		var out, errs strings.Builder
		code := runCommandLine([]string{"chat", "--server", url, question}, &out, &errs)
		if code != want.code || out.String() != want.out || !strings.Contains(errs.String(), want.errs) {
			t.Errorf("%s: exit code %d, %q and %q, want %d, %q and %q", question, code, out.String(), errs.String(), want.code, want.out, want.errs)
		}
	}
}

// TestWithoutControls: control characters in a model's output do not reach the terminal.
func TestWithoutControls(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc 👩‍🚀 é":  "a\tb\nc 👩‍🚀 é",
		"\x1b]0;x\x07\r": `\x1b]0;x\a\r`,
		"\u009b31m":      `\u009b31m`,
	} {
		if got := escapeControls(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

// TestChatHostile: the response is bounded, and errors in it are described in terms of the API.
func TestChatHostile(t *testing.T) {
	url, stop := startTalker()
	defer stop()
	for question, want := range map[string]string{
		"endless": "the answer has more than 33554432 bytes: limit it with --max-tokens",
		"object":  "the answer is not what this version expects: choices is a JSON object",
	} {
		var errs strings.Builder
		code := runCommandLine([]string{"chat", "--server", url, question}, io.Discard, &errs)
		if code != exitFailed || !strings.HasSuffix(errs.String(), want+"\n") {
			t.Errorf("%s: exit code %d, %q", question, code, errs.String())
		}
	}
}

// TestOnlyModel: an alias counts as its model; another server's root is a path.
func TestOnlyModel(t *testing.T) {
	for body, want := range map[string]string{
		`{"data":[{"id":"a","root":"a"},{"id":"b","root":"a"}]}`: "a",
		`{"data":[{"id":"a","root":"/models/a"}]}`:               "a",
		`{"data":[{"id":"a"}]}`:                                  "a",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				_, _ = w.Write([]byte(body))
				return
			}
			var asked struct{ Model string }
			if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Model != want {
				http.Error(w, "no such model", http.StatusNotFound)
				return
			}
			_, _ = w.Write([]byte("data: [DONE]\n\n"))
		}))
		var errs strings.Builder
		if code := runCommandLine([]string{"chat", "--server", s.URL, "Hello"}, io.Discard, &errs); code != exitDone {
			t.Errorf("%s: exit code %d, %q", body, code, errs.String())
		}
		s.Close()
	}
}
