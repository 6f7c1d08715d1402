package load

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/replay"
)

func TestBodies(t *testing.T) {
	tokens := replay.Request{Tokens: []kv.Token{5, 6}, Output: 3}
	for _, tt := range []struct {
		name  string
		form  RequestForm
		limit int
		r     replay.Request
		path  string
		want  string
	}{
		{
			"tokens",
			RequestForm{},
			0, tokens, completionsPath,
			`{"model":"m","prompt":[5,6],"max_tokens":3,"min_tokens":3,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"plain",
			RequestForm{Length: MaxLength, NoUsage: true},
			0, tokens, completionsPath,
			`{"model":"m","prompt":[5,6],"max_tokens":3,"stream":true}`,
		},
		{
			"limit and the request's own",
			RequestForm{Length: IgnoreEOS},
			7,
			replay.Request{Tokens: []kv.Token{5}, Output: 3, Model: "o\"", Salt: "s", Priority: -1},
			completionsPath,
			`{"model":"o\"","prompt":[5],"max_tokens":7,"ignore_eos":true,"cache_salt":"s","priority":-1,"stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"a text is a text",
			RequestForm{},
			0,
			replay.Request{Text: "a \"b\"\n"},
			chatPath,
			`{"model":"m","messages":[{"role":"user","content":"a \"b\"\n"}],"max_tokens":1,"min_tokens":1,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"conversation",
			RequestForm{Length: MaxLength},
			0,
			replay.Request{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), Tools: json.RawMessage(`[{}]`), Output: 2},
			chatPath,
			`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"extra takes the place",
			RequestForm{},
			0,
			replay.Request{Tokens: []kv.Token{5}, Output: 3, Extra: json.RawMessage(`{"temperature":0,"max_tokens":9,"ignore_eos":false}`)},
			completionsPath,
			`{"model":"m","prompt":[5],"min_tokens":3,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":false,"max_tokens":9,"temperature":0}`,
		},
		{
			"payload",
			RequestForm{},
			0,
			replay.Request{Payload: json.RawMessage(`{"messages":[],"stream":false,"n":1}`), Extra: json.RawMessage(`{"n":2}`)},
			chatPath,
			`{"stream":true,"stream_options":{"include_usage":true},"messages":[],"model":"m","n":2}`,
		},
	} {
		b := &bodyBuilder{form: tt.form, model: "m", maxTokens: tt.limit}
		got, path, err := b.appendBody([]byte("x"), &tt.r)
		if string(got) != "x"+tt.want || path != tt.path || err != nil {
			t.Errorf("%s: %s %s, %v\nwant %s %s", tt.name, path, got, err, tt.path, tt.want)
		}
		if !json.Valid(got[1:]) {
			t.Errorf("%s is no JSON", tt.name)
		}
	}
	b := &bodyBuilder{form: RequestForm{Length: MaxLength, NoUsage: true}, extra: map[string]json.RawMessage{"a": json.RawMessage("1"), "b": json.RawMessage("2")}}
	for range 2 { // what one request has does not stay
		got, _, err := b.appendBody(nil, &replay.Request{Tokens: []kv.Token{5}, Extra: json.RawMessage(`{"b":3}`)})
		if want := `{"model":"","prompt":[5],"max_tokens":1,"stream":true,"a":1,"b":3}`; string(got) != want || err != nil {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
		got, _, err = b.appendBody(nil, &replay.Request{Tokens: []kv.Token{5}})
		if want := `{"model":"","prompt":[5],"max_tokens":1,"stream":true,"a":1,"b":2}`; string(got) != want || err != nil {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	for _, r := range []replay.Request{{Payload: json.RawMessage("[]")}, {Extra: json.RawMessage("7")}} {
		if _, _, err := b.appendBody(nil, &r); err == nil {
			t.Errorf("%+v is no fault", r)
		}
	}
}

// TestPromptsRepeat: what blocks have in common is the beginning of both prompts, as
// ids and as text.
func TestPromptsRepeat(t *testing.T) {
	for _, form := range []RequestForm{{Prompt: TokenPrompt}, {Prompt: TextPrompt}} {
		b := &bodyBuilder{form: form, model: "m"}
		prompt := func(index int, blocks ...int64) string {
			body, _, err := b.appendBody(nil, &replay.Request{Index: index, Input: 64 * len(blocks), Blocks: blocks, BlockTokens: 64})
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		one, two, other := prompt(0, 1, 2), prompt(1, 1, 3), prompt(2, 4, 2)
		common := func(a, b string) (n int) {
			for n < min(len(a), len(b)) && a[n] == b[n] {
				n++
			}
			return n
		}
		start := strings.IndexByte(one, '[')
		if c := common(one, two); c < start+100 || c > start+len(one)*3/4 {
			t.Errorf("form %+v: %d of %d bytes in common", form, c, len(one))
		}
		if c := common(one, other); c > start+80 {
			t.Errorf("form %+v: %d bytes in common with another block", form, c)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for _, tt := range []struct{ url, addr, path, host string }{
		{"http://127.0.0.1:8000", "127.0.0.1:8000", "", "127.0.0.1:8000"},
		{"127.0.0.1:8000/", "127.0.0.1:8000", "", "127.0.0.1:8000"},
		{"http://h/v1/", "h:80", "", "h"},
		{"https://h/a/b/v1", "h:443", "/a/b", "h"},
		{"http://[::1]:9", "[::1]:9", "", "[::1]:9"},
	} {
		e := Endpoint{URL: tt.url}
		p, err := e.resolveTarget()
		if err != nil || p.addr != tt.addr || p.path != tt.path || p.host != tt.host {
			t.Errorf("%s: %+v, %v", tt.url, p, err)
		}
	}
	for _, e := range []Endpoint{
		{URL: ""},
		{URL: "ftp://h"},
		{URL: "http://u:p@h"},
		{URL: "http://h?x"},
		{URL: "http://h", Header: http.Header{"Host": {"x"}}},
		{URL: "http://h", Header: http.Header{"A b": {"x"}}},
		{URL: "http://h", Header: http.Header{"A": {"x\r\nB: y"}}},
		{URL: "http://h", Key: "a\nb"},
	} {
		if _, err := e.resolveTarget(); err == nil {
			t.Errorf("%+v is no fault", e)
		} else if e.Key != "" && strings.Contains(err.Error(), "a\nb") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	e := Endpoint{URL: "http://h/p", Key: "k", Header: http.Header{"x-a": {"1", "2"}}}
	p, err := e.resolveTarget()
	if err != nil {
		t.Fatal(err)
	}
	want := "POST /p/v1/completions HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n" +
		"User-Agent: penstock-bench\r\nX-A: 1\r\nX-A: 2\r\nAccept-Encoding: identity\r\nX-Request-Id: i\r\nContent-Length: 2\r\n\r\n{}"
	if got := string(p.appendRequest(nil, completionsPath, []byte("i"), []byte("{}"))); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}
