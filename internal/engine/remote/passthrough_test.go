package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"

	"github.com/google/go-cmp/cmp"
)

func TestEdit(t *testing.T) {
	const wish = `{"include_usage":true}`
	for _, c := range []struct {
		body, ask, want string
		hide            bool
	}{
		{`{"model":"x","a":1}`, "", `{"model":"tiny","a":1}`, false},
		{` { "a" : 1 , "model" : "x" } `, "", ` { "a" : 1 , "model" : "tiny" } `, false},
		{`{}`, "", `{"model":"tiny"}`, false},
		{`{}`, wish, `{"model":"tiny","stream_options":{"include_usage":true}}`, true},
		{`{"a":{"model":"x"}}`, "", `{"model":"tiny","a":{"model":"x"}}`, false},
		{`{"model":"x","stream":true}`, wish, `{"stream_options":{"include_usage":true},"model":"tiny","stream":true}`, true},
		{`{"stream_options":{"include_usage":false},"model":"x"}`, wish, `{"stream_options":{"include_usage":true},"model":"tiny"}`, true},
		{`{"model":"x","stream_options":null}`, wish, `{"model":"tiny","stream_options":{"include_usage":true}}`, true},
		{`{"model":"x","stream_options":{"include_usage":true,"k":1}}`, wish, `{"model":"tiny","stream_options":{"include_usage":true,"k":1}}`, false},
		{`{"model":"x","cache_salt":"s\u0061"}`, "", `{"model":"tiny","cache_salt":"s\u0061"}`, false},
	} {
		got, err := editRequestBody(nil, []byte(c.body), &editOptions{model: "tiny", usage: c.ask})
		if err != nil || string(got.body) != c.want || got.usage != c.hide {
			t.Errorf("%s: %s, usage hidden %v, %v; want %s", c.body, got.body, got.usage, err, c.want)
		}
	}
	if got, _ := editRequestBody(nil, []byte(`{"cache_salt":"s\u0061"}`), &editOptions{model: "m"}); got.salt != "sa" {
		t.Errorf("the salt is %q", got.salt)
	}
	for _, body := range []string{``, `[]`, `{`, `{"a":1}x`, `{"a" 1}`, `{"mod\u0065l":"other"}`} {
		if got, err := editRequestBody(nil, []byte(body), &editOptions{model: "m", usage: wish}); err == nil {
			t.Errorf("%q became %s", body, got.body)
		}
	}
}

// FuzzEdit checks that only the intended members of an object change.
func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"model":"x","messages":[{"role":"user","content":"}\""}],"stream_options":{}}`), true)
	f.Add([]byte(`{"stream_options":{"include_usage":true},"a":[]}`), true)
	f.Add([]byte(` {"n":1e5} `), false)
	f.Fuzz(func(t *testing.T, body []byte, stream bool) {
		ask := ""
		if stream {
			ask = `{"include_usage":true}`
		}
		got, err := editRequestBody(nil, body, &editOptions{model: "tiny", usage: ask})
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil || before == nil || err != nil {
			return
		}
		if json.Unmarshal(got.body, &after) != nil || after["model"] != "tiny" {
			t.Fatalf("%s became %s", body, got.body)
		}
		if options, _ := after["stream_options"].(map[string]any); stream && options["include_usage"] != true {
			t.Fatalf("%s became %s", body, got.body)
		}
		for _, m := range []map[string]any{before, after} {
			delete(m, "model")
			delete(m, "stream_options")
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%s became %s", body, got.body)
		}
	})
}

// passed serves a passthrough request and returns its chunks, one text each.
func passed(b *Base, req *engine.PassthroughRequest) (got []string, last engine.PassthroughChunk, err error) {
	err = b.PassThrough(context.Background(), req, func(p *engine.PassthroughChunk) error {
		switch {
		case p.Accepted:
			got = append(got, fmt.Sprintf("%d %s", p.Status, p.Type))
		case p.Last:
			last = *p
			last.Data = nil
		default:
			got = append(got, fmt.Sprintf("%d:%s", p.Tokens, p.Data))
		}
		return nil
	})
	return got, last, err
}

func passer(t *testing.T, h http.HandlerFunc) *Base {
	return base(t, serve(t, h).URL, func(c *Config) {
		c.Card.Adapters = []string{"ad"}
		c.PassthroughPaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
		c.UpstreamModel = func(lora string) string {
			if lora != "" {
				return lora
			}
			return "upstream"
		}
	})
}

func TestPassStream(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`
	var body string
	b := passer(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body = string(raw)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, ": ping\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: "+usage+"\n\ndata: [DONE]\n\n")
	})
	req := &engine.PassthroughRequest{
		ID: "p", Attempt: 3, Model: "m", Path: "/v1/chat/completions", Stream: true, Body: []byte(`{"model":"m","stream":true}`),
		Prompt: []kv.Token{1, 2, 3, 4, 5, 6, 7, 8, 9},
	}
	got, last, err := passed(b, req)
	want := []string{"200 text/event-stream; charset=utf-8", "1:data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "0:data: [DONE]\n\n"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if diff := cmp.Diff(engine.PassthroughChunk{Attempt: 3, Last: true, PromptTokens: 9, OutputTokens: 2, Cached: 8}, last); diff != "" {
		t.Error(diff)
	}
	if body != `{"stream_options":{"include_usage":true},"model":"upstream","stream":true}` {
		t.Errorf("the engine got %s", body)
	}
	if s := b.Stats(); s.Reported != 8 || s.Compared != 1 {
		t.Errorf("%+v", s)
	}

	// A client that asked for its usage gets it; an adapter is asked for by its name.
	req.Body, req.Model = []byte(`{"stream_options":{"include_usage":true}}`), "ad"
	got, _, err = passed(b, req)
	if err != nil || len(got) != 4 || !strings.Contains(got[2], "cached_tokens") || !strings.Contains(body, `"model":"ad"`) {
		t.Errorf("%v %q %s", err, got, body)
	}
	if l := b.Load(); l.Running+l.Waiting+l.PrefillTokens+l.UsedBlocks != 0 {
		t.Errorf("left in the account: %+v", l)
	}
}

// TestPassEnds checks that the stream's last event ends the response, with or without further bytes.
func TestPassEnds(t *testing.T) {
	for what, after := range map[string]string{"silence": "", "more": "data: {\"choices\":[{\"delta\":{\"content\":\"more\"}}]}\n\n"} {
		t.Run(what, func(t *testing.T) {
			b := passer(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"+after)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			b.cfg.Client.drainTimeout = time.Millisecond // the engine does not end the stream
			req := &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: "m", Path: "/v1/chat/completions", Stream: true, Body: []byte(`{"model":"m"}`)}
			got, last, err := passed(b, req)
			if err != nil || !last.Last || len(got) != 3 || got[2] != "0:data: [DONE]\n\n" {
				t.Errorf("%v %q %+v", err, got, last)
			}
		})
	}
}

func TestPassOtherAPIs(t *testing.T) {
	for path, c := range map[string]struct {
		events string
		last   engine.PassthroughChunk
	}{
		"/v1/messages": {
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n" +
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"}}\n\n" +
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
			engine.PassthroughChunk{Attempt: 1, Last: true, PromptTokens: 9, OutputTokens: 5, Cached: 4},
		},
		"/v1/responses": {
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"error\":null,\"usage\":{\"input_tokens\":9,\"output_tokens\":7,\"input_tokens_details\":{\"cached_tokens\":0}}}}\n\n",
			engine.PassthroughChunk{Attempt: 1, Last: true, PromptTokens: 9, OutputTokens: 7, Cached: 0},
		},
	} {
		b := passer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, c.events)
		})
		got, last, err := passed(b, &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: "m", Path: path, Stream: true, Body: []byte(`{}`)})
		var all string
		for _, piece := range got[1:] {
			_, data, _ := strings.Cut(piece, ":")
			all += data
		}
		if diff := cmp.Diff(c.last, last); diff != "" || err != nil || all != c.events {
			t.Errorf("%s: %v %s\n%s", path, err, diff, all)
		}
	}
}

func TestPassAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   []string
		code   fault.Code
	}{
		{200, `{"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, []string{"200 application/json", `2:{"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`}, 255},
		{400, `{"error":{"message":"bad"}}`, []string{"400 application/json", `0:{"error":{"message":"bad"}}`}, 255},
		{404, `{}`, []string{"404 application/json", `0:{}`}, 255},
		{401, `{}`, nil, fault.Unavailable},
		{429, `{}`, nil, fault.Overloaded},
		{500, `{}`, nil, fault.Unavailable},
		{503, `{}`, nil, fault.Unavailable},
	} {
		b := passer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		got, _, err := passed(b, &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: "m", Path: "/v1/completions", Body: []byte(`{}`)})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%d: %s", c.status, diff)
		}
		if c.code == 255 && err != nil || c.code != 255 && fault.CodeOf(err) != c.code {
			t.Errorf("%d: %v", c.status, err)
		}
	}
	b := passer(t, func(w http.ResponseWriter, _ *http.Request) {
		events(w, `{"choices":[{}]}`, `{"error":{"message":"EngineCore died"}}`)
	})
	req := &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: "m", Path: "/v1/completions", Stream: true, Body: []byte(`{}`)}
	got, _, err := passed(b, req)
	wantFault(t, "an error inside", err, fault.EngineError, "EngineCore died")
	if len(got) != 2 {
		t.Errorf("%q", got)
	}
	b = passer(t, func(w http.ResponseWriter, _ *http.Request) { events(w, `{"choices":[{}]}`) })
	_, _, err = passed(b, req)
	wantFault(t, "a stream without its end", err, fault.Unavailable, "broke off")
	req.Path = "/v1/audio"
	_, _, err = passed(b, req)
	wantFault(t, "a path that is not taken", err, fault.Unimplemented, "does not take")
}

func FuzzLook(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{}}],"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}`))
	f.Add([]byte(`{"type":"message_start","message":{"usage":{"input_tokens":1}}}`))
	f.Add([]byte(`{"error":{"code":500}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseUsage(data)
		if s.prompt < -1 || s.output < -1 || s.cached < -1 || s.tokens < 0 || err != nil && fault.CodeOf(err) == fault.Internal {
			t.Fatalf("%q: %+v %v", data, s, err)
		}
	})
}
