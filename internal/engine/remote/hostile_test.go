package remote

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// flood sends the same bytes until the client stops reading, 64 MiB at most.
func flood(w http.ResponseWriter, b []byte) {
	b = bytes.Repeat(b, 1+(64<<10)/len(b))
	for sent := 0; sent < 64<<20; sent += len(b) {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// TestHostileAnswers checks that any response becomes at most the requested tokens or a short error:
// retryable at another worker or, for a violation of the API, Internal.
func TestHostileAnswers(t *testing.T) {
	var followed atomic.Bool
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { followed.Store(true) })
	stream := func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		tokens []kv.Token // before the error; all tokens if there is none
		whole  bool
	}{
		"a line without an end": {answer: func(w http.ResponseWriter) { stream(w); flood(w, []byte("x")) }},
		"an event without an end": {answer: func(w http.ResponseWriter) {
			stream(w)
			flood(w, []byte("data: 1\n"))
		}},
		"comments without an end": {answer: func(w http.ResponseWriter) { stream(w); flood(w, []byte(":\n")) }},
		"events without data":     {answer: func(w http.ResponseWriter) { stream(w); flood(w, []byte("id: 1\n\n")) }},
		"garbage":                 {answer: func(w http.ResponseWriter) { events(w, `{"t":[1]}`, "\x00\xff{") }, tokens: []kv.Token{1}},
		"nothing":                 {answer: func(http.ResponseWriter) {}},
		"a page":                  {answer: func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") }},
		"an end alone":            {answer: func(w http.ResponseWriter) { events(w, "[DONE]") }},
		"JSON without an end": {answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			flood(w, []byte(`{"t":[`))
		}},
		"nested without an end": {answer: func(w http.ResponseWriter) { events(w, `{"x":`+strings.Repeat("[", 1<<20)) }},
		"a redirect": {answer: func(w http.ResponseWriter) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}},
		"a large header": {answer: func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }},
		"what was compressed": {answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 32<<20))
			_ = z.Close()
		}},
		"a token of no vocabulary": {answer: func(w http.ResponseWriter) { events(w, `{"t":[1]}`, `{"t":[50]}`) }, tokens: []kv.Token{1}},
		"a token over all":         {answer: func(w http.ResponseWriter) { events(w, `{"t":[4294967296]}`) }},
		"a negative token":         {answer: func(w http.ResponseWriter) { events(w, `{"t":[-1]}`) }},
		"another choice":           {answer: func(w http.ResponseWriter) { events(w, `{"i":1,"t":[1],"f":"stop"}`) }},
		"a choice before the first": {
			answer: func(w http.ResponseWriter) { events(w, `{"i":-1,"t":[1],"f":"stop"}`) },
		},
		"tokens after the end": {
			answer: func(w http.ResponseWriter) {
				events(w, `{"t":[1],"f":"length"}`, `{"t":[2]}`, `{"t":[3],"f":"stop"}`, "[DONE]")
			},
			tokens: []kv.Token{1}, whole: true,
		},
		"too many tokens": {
			answer: func(w http.ResponseWriter) { events(w, `{"t":[1,2,3]}`, `{"t":[4,5,6,7,8]}`, `{"t":[9]}`, "[DONE]") },
			tokens: []kv.Token{1, 2, 3, 4, 5}, whole: true,
		},
		"more cached than there is": {
			answer: func(w http.ResponseWriter) { events(w, `{"t":[1],"f":"stop","c":9223372036854775807}`, "[DONE]") },
			tokens: []kv.Token{1}, whole: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := base(t, serve(t, func(w http.ResponseWriter, r *http.Request) { c.answer(w) }).URL, nil)
			var got []kv.Token
			whole := false
			err := b.Generate(t.Context(), testRequest(5), func(d *engine.Delta) error {
				got = append(got, d.Tokens...)
				whole = whole || d.Finish != engine.NotFinished
				if d.Cached > 9 {
					t.Errorf("%d tokens cached of 9", d.Cached)
				}
				return nil
			})
			if string(bytesOf(got)) != string(bytesOf(c.tokens)) || whole != c.whole || (err == nil) != c.whole {
				t.Errorf("tokens %v, whole %v, error %v", got, whole, err)
			}
			if code := fault.CodeOf(err); err != nil && (code != fault.Unavailable && code != fault.Internal || len(err.Error()) > 1000) {
				t.Errorf("%v: %.1000v", code, err)
			}
			if s := b.Stats(); s.Reported > 9 {
				t.Errorf("%d cached tokens reported", s.Reported)
			}
		})
	}
	if followed.Load() {
		t.Error("a redirect was followed")
	}
}

func bytesOf(tokens []kv.Token) (b []byte) {
	for _, t := range tokens {
		b = append(b, byte(t))
	}
	return b
}
