package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/core/kv"
)

const weatherTools = `[ {"type":"function","function":{"name":"weather","description":"Rain & wind < 3 h","parameters":{"type":"object","properties":{"z":{"type":"number","default":1.0},"a":{"type":"string"}}}}} ]`

// conversations are bodies of chat requests without the model.
func conversations() map[string]string {
	called := `{"role":"user","content":"Will it rain?"},
		{"role":"assistant","content":null,"reasoning_content":"I should look.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"a\": \"Oslo\"}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"{\"rain\": true}"}`
	return map[string]string{
		"plain":     `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Where does the water go?"}]`,
		"parts":     `"messages":[{"role":"user","content":[{"type":"text","text":"Where does the water of the river go"},{"type":"text","text":"when it rains for a week?"}]}]`,
		"special":   `"messages":[{"role":"user","content":"<|end|><|system|>水 😀 \u2028 <|begin|>"}]`,
		"tools":     `"messages":[{"role":"user","content":"Will it rain?"}],"tools":` + weatherTools,
		"calls":     `"messages":[` + called + `],"tools":` + weatherTools,
		"no choice": `"messages":[` + called + `],"tools":` + weatherTools + `,"tool_choice":"none"`,
		"continued": `"messages":[{"role":"user","content":"Where does the water go?"},{"role":"assistant","content":"It goes to"}],"continue_final_message":true,"add_generation_prompt":false`,
		"variables": `"messages":[{"role":"user","content":"Hi. Where does the water of the river go when it rains?"}],"chat_template_kwargs":{"greeting":"Hello <there>"}`,
	}
}

// asked returns the tokens that a chat request would be sent as, without sending
// it.
func (s *server) asked(body string) (tokens []kv.Token) {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, "/v1/chat/completions", `{`+body+`,"nvext":{"annotations":["query_instance_id"]}}`)
	var a struct {
		Ext struct {
			Tokens []kv.Token `json:"token_ids"`
		} `json:"nvext"`
	}
	if err := json.Unmarshal(data, &a); err != nil || resp.StatusCode != http.StatusOK || len(a.Ext.Tokens) == 0 {
		s.t.Fatalf("%s: %s, %v: %s", body, resp.Status, err, data)
	}
	return a.Ext.Tokens
}

// calls returns how many calls the workers have served.
func (s *server) calls() (n int) {
	s.t.Helper()
	_, page := s.do(http.MethodGet, "/metrics", nil)
	for _, m := range regexp.MustCompile(`(?m)^penstock_worker_requests_total\{.*\} (\d+)$`).FindAllStringSubmatch(string(page), -1) {
		v, err := strconv.Atoi(m[1])
		if err != nil {
			s.t.Fatal(err)
		}
		n += v
	}
	return n
}

// templated is a checkpoint with a chat template of its own.
func templated(t *testing.T) string {
	t.Helper()
	dir := ownCheckpoint(t)
	write(t, filepath.Join(dir, "chat_template.jinja"), []byte(`<|begin|>{{ greeting or '' }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ 'system' if m.role == 'developer' else m.role }}|>
{%- if m.reasoning_content %}{{ m.reasoning_content }}{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{%- if m.tool_call_id %}{{ m.tool_call_id }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`))
	return dir
}

// TestPreprocessMakesNoDifference: with the built-in template and with a
// checkpoint's own, prompts of an engine are the frontend's prompts,
// token for token, and so are the answers.
func TestPreprocessMakesNoDifference(t *testing.T) {
	for name, settings := range map[string][]string{
		"built in": {"served-model-name=m"},
		"jinja":    {"served-model-name=m", "model-path=" + templated(t), "tool-call-parser=hermes"},
	} {
		t.Run(name, func(t *testing.T) {
			here := start(t, settings...)
			there := start(t, append(settings, "preprocess=engine")...)
			for what, body := range conversations() {
				body := `"model":"m",` + body
				want, got := here.asked(body), there.asked(body)
				if !slices.Equal(got, want) {
					t.Errorf("%s: the engine makes %v, the frontend %v", what, got, want)
				}
				sampled := `{` + body + `,"max_tokens":12,"temperature":0.8,"seed":7}`
				if a, b := here.answer("/v1/chat/completions", sampled), there.answer("/v1/chat/completions", sampled); a != b {
					t.Errorf("%s: answers\n%s\n%s", what, a, b)
				}
				if strings.Contains(body, "tool_choice") {
					continue // not a field of /tokenize
				}
				if a, b := here.answer("/tokenize", `{`+body+`,"return_token_strs":true}`), there.answer("/tokenize", `{`+body+`,"return_token_strs":true}`); a != b || !strings.Contains(a, fmt.Sprintf(`"count":%d,`, len(want))) {
					t.Errorf("%s: /tokenize\n%s\n%s", what, a, b)
				}
			}
			for path, bodies := range map[string][]string{
				"/tokenize":      {`"prompt":"The <|end|> of 水"`, `"prompt":"The <|end|> of 水","add_special_tokens":false`, `"prompt":""`},
				"/v1/embeddings": {`"input":["The <|end|> of 水","another"]`},
				"/v1/completions": {
					`"prompt":"The <|end|> of 水","max_tokens":9,"temperature":0,"ignore_eos":true`,
					`"prompt":["one","two","three"],"max_tokens":5,"temperature":1,"seed":3,"echo":true`,
				},
				"/v1/messages/count_tokens": {`"messages":[{"role":"user","content":"Where does the water go?"}]`},
				"/v1/messages":              {`"messages":[{"role":"user","content":"Where does the water go?"}],"max_tokens":7,"temperature":0`},
				"/v1/responses":             {`"input":"Where does the water go?","max_output_tokens":7,"temperature":0`},
			} {
				for _, body := range bodies {
					body = `{"model":"m",` + body + `}`
					if a, b := here.answer(path, body), there.answer(path, body); a != b {
						t.Errorf("%s %s:\n%s\n%s", path, body, a, b)
					}
				}
			}
			if name == "jinja" { // the built-in template takes no variables
				refused := `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":[]}}`
				if a, b := here.answer("/v1/chat/completions", refused), there.answer("/v1/chat/completions", refused); a != b || !strings.Contains(a, "chat_template_kwargs.messages") {
					t.Errorf("refused:\n%s\n%s", a, b)
				}
			}
			for s, want := range map[*server]int{here: 0, there: 1} {
				before := s.calls()
				s.answer("/tokenize", `{"model":"m","prompt":"x"}`)
				if n := s.calls() - before; n != want {
					t.Errorf("/tokenize made %d calls of workers, want %d", n, want)
				}
				s.idle()
			}
		})
	}
}

// answer returns the body of an answer without what differs between two like
// requests: ids, times and the worker.
func (s *server) answer(path, body string) string {
	s.t.Helper()
	_, data := s.do(http.MethodPost, path, body)
	return regexp.MustCompile(`"(id|created|created_at|completed_at|worker_id)":("[^"]*"|\d+)`).ReplaceAllString(string(data), `"$1":_`)
}

// TestRouteIsAboutTheRequest: a question about a chat request is answered about the
// very prompt that the request has, whichever process makes it.
func TestRouteIsAboutTheRequest(t *testing.T) {
	for _, mode := range []string{"local", "engine"} {
		t.Run(mode, func(t *testing.T) {
			s := start(t, "served-model-name=m", "preprocess="+mode)
			for what, body := range conversations() {
				body := `"model":"m",` + body
				tokens := len(s.asked(body))
				var chat struct {
					Usage struct {
						Prompt int `json:"prompt_tokens"`
					} `json:"usage"`
				}
				resp, data := s.do(http.MethodPost, "/v1/chat/completions", `{`+body+`,"max_tokens":2}`)
				if err := json.Unmarshal(data, &chat); err != nil || chat.Usage.Prompt != tokens {
					t.Fatalf("%s: %v %s", what, err, data)
				}
				worker := resp.Header.Get("x-penstock-worker")
				s.eventually(what+": the router knows of the cache", func() bool {
					var e struct {
						Decision struct {
							Worker  uint64 `json:"worker_id"`
							Overlap int    `json:"overlap_blocks"`
						} `json:"decision"`
						Tokens int `json:"prompt_tokens"`
						Blocks int `json:"prompt_blocks"`
					}
					_, data := s.do(http.MethodPost, "/v1/router/explain", `{`+body+`,"stream":true}`)
					if err := json.Unmarshal(data, &e); err != nil || e.Tokens != tokens || e.Blocks == 0 {
						t.Fatalf("%s: %v: asked about %d tokens in %d blocks, want %d: %s", what, err, e.Tokens, e.Blocks, tokens, data)
					}
					return e.Decision.Overlap == e.Blocks && fmt.Sprint(e.Decision.Worker) == worker
				})
			}
			_, data := s.do(http.MethodPost, "/v1/router/best_worker", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"oven"}]}`)
			if !strings.Contains(string(data), `"param":"tools[0]`) {
				t.Errorf("a tool that is none: %s", data)
			}
		})
	}
}
