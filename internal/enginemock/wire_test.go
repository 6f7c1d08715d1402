package enginemock_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/core/paged"
	"penstock/internal/enginemock"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// paths collects the types of values at each path of a JSON document.
type paths map[string]map[string]bool

func (p paths) add(path string, v any) {
	kind := "null"
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if _, isToken := v["token"]; strings.HasSuffix(path, "top_logprobs[]") && !isToken {
				k = "*" // the keys are tokens
			}
			p.add(path+"."+k, e)
		}
		kind = "object"
	case []any:
		for _, e := range v {
			p.add(path+"[]", e)
		}
		kind = "array"
	case string:
		kind = "string"
	case float64:
		kind = "number"
	case bool:
		kind = "boolean"
	}
	if p[path] == nil {
		p[path] = map[string]bool{}
	}
	p[path][kind] = true
}

func (p paths) String() string {
	var lines []string
	for path, kinds := range p {
		var all []string
		for k := range kinds {
			all = append(all, k)
		}
		slices.Sort(all)
		lines = append(lines, "  "+path+": "+strings.Join(all, "|"))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// shapeOf is the structure of an answer. The number of parts of a stream varies: all parts together have one
// shape.
func shapeOf(t *testing.T, status int, kind, body string) string {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "%d %s\n", status, kind)
	all := paths{}
	switch {
	case strings.HasPrefix(kind, "text/event-stream"):
		list := events(t, body)
		if n := len(list); list[n-1] == "[DONE]" {
			list = list[:n-1]
		}
		for _, e := range list {
			all.add("", decoded(t, e))
		}
	case strings.HasPrefix(kind, "application/json"):
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		all.add("", v)
	case strings.HasPrefix(kind, "text/plain; version"):
		for _, line := range strings.Split(body, "\n") {
			if name, _, _ := strings.Cut(line, " "); name != "" && name != "#" && !strings.Contains(name, "le=\"") {
				out.WriteString("  " + name + "\n")
			}
		}
		return out.String()
	default:
		out.WriteString("  " + strings.TrimSpace(body) + "\n")
		return out.String()
	}
	out.WriteString(all.String())
	if strings.Contains(body, "[DONE]") {
		return out.String() + "  [DONE]\n"
	}
	return out.String()
}

// common are requests that every server with OpenAI's routes accepts.
func common() [][3]string {
	return [][3]string{
		{"GET", "/health", ""},
		{"GET", "/v1/models", ""},
		{"GET", "/nowhere", ""},
		{"POST", "/v1/completions", `{"prompt":[300,301,302,303,304,305],"max_tokens":24,"temperature":0,"ignore_eos":true,"n":2,"logprobs":1}`},
		{"POST", "/v1/completions", `{"prompt":[300,301,302,303,304,305],"max_tokens":24,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"detokenize":false}`},
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"system","content":"short"},{"role":"user","content":[{"type":"text","text":"Where does the water go?"}]}],"max_tokens":24,"ignore_eos":true,"logprobs":true,"top_logprobs":2}`},
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Where does the water go?"}],"max_tokens":24,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`},
		{"POST", "/v1/completions", `{"prompt":`},
		{"POST", "/v1/completions", `{"prompt":"x","n":0}`},
		{"POST", "/v1/chat/completions", `{"messages":[]}`},
	}
}

func requestsOf(d enginemock.Dialect) [][3]string {
	vllm := [][3]string{
		{"GET", "/version", ""},
		{"GET", "/ping", ""},
		{"GET", "/v1/completions", ""},
		{"POST", "/v1/completions", `{"model":"nobody","prompt":"x"}`},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":999999}`},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},"ec_transfer_params":{"a":{"size_bytes":1}}}`},
		{"POST", "/tokenize", `{"prompt":"Where does the water go?","return_token_strs":true}`},
		{"POST", "/tokenize", `{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true}`},
		{"POST", "/detokenize", `{"tokens":[300,301]}`},
		{"POST", "/v1/load_lora_adapter", `{"lora_name":"poet","lora_path":"/adapters/poet"}`},
		{"POST", "/v1/load_lora_adapter", `{"lora_name":"poet","lora_path":"/adapters/poet"}`},
		{"GET", "/v1/models", ""},
		{"POST", "/v1/unload_lora_adapter", `{"lora_name":"poet"}`},
		{"POST", "/v1/unload_lora_adapter", `{"lora_name":"poet"}`},
		{"POST", "/v1/completions/render", `{"prompt":["a b","c"],"max_tokens":3}`},
		{"POST", "/v1/chat/completions/render", `{"messages":[{"role":"user","content":"hi"}]}`},
		{"POST", "/inference/v1/generate", `{"token_ids":[300,301,302,303,304,305],"sampling_params":{"max_tokens":24,"temperature":0,"ignore_eos":true,"logprobs":1},"request_id":"r"}`},
		{"POST", "/inference/v1/generate", `{"token_ids":[300,301,302,303,304,305],"sampling_params":{"max_tokens":24,"temperature":0,"ignore_eos":true},"stream":true,"stream_options":{"include_usage":true}}`},
		{"POST", "/inference/v1/abort_requests", `{"request_ids":["nobody"]}`},
		{"GET", "/is_sleeping", ""},
		{"POST", "/sleep?level=1", ""},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1}`},
		{"POST", "/wake_up", ""},
		{"POST", "/reset_prefix_cache", ""},
		{"GET", "/metrics", ""},
	}
	switch d {
	case enginemock.VLLM, enginemock.VLLMLegacy:
		return vllm
	case enginemock.SGLang:
		return [][3]string{
			{"GET", "/model_info", ""},
			{"GET", "/get_model_info", ""},
			{"GET", "/server_info", ""},
			{"GET", "/v1/loads?include=core", ""},
			{"GET", "/health_generate", ""},
			{"POST", "/generate", `{"input_ids":[300,301,302,303,304,305],"sampling_params":{"max_new_tokens":24,"temperature":0,"ignore_eos":true},"return_logprob":true}`},
			{"POST", "/generate", `{"text":["a b c","d e f"],"sampling_params":{"max_new_tokens":8,"temperature":0,"ignore_eos":true}}`},
			{"POST", "/generate", `{"input_ids":[300,301,302,303,304,305],"sampling_params":{"max_new_tokens":24,"temperature":0,"ignore_eos":true},"stream":true}`},
			{"POST", "/generate", `{"sampling_params":{}}`},
			{"POST", "/tokenize", `{"prompt":"Where does the water go?"}`},
			{"POST", "/detokenize", `{"tokens":[300,301]}`},
			{"POST", "/abort_request", `{"rid":"nobody"}`},
			{"POST", "/flush_cache", ""},
			{"POST", "/load_lora_adapter", `{"lora_name":"poet","lora_path":"/adapters/poet"}`},
			{"GET", "/metrics", ""},
		}
	case enginemock.TRTLLM:
		return [][3]string{
			{"GET", "/version", ""},
			{"GET", "/server_info", ""},
			{"GET", "/metrics", ""},
			{"GET", "/prometheus/metrics", ""},
			{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1,"detokenize":false,"disaggregated_params":{"request_type":"context_only"}}`},
		}
	}
	return [][3]string{
		{"GET", "/props", ""},
		{"GET", "/slots", ""},
		{"POST", "/completion", `{"prompt":["a b",300,301],"n_predict":24,"temperature":0,"ignore_eos":true,"return_tokens":true,"n_probs":1}`},
		{"POST", "/completion", `{"prompt":[300,301,302,303,304,305],"n_predict":24,"temperature":0,"ignore_eos":true,"stream":true,"return_tokens":true,"return_progress":true,"timings_per_token":true}`},
		{"POST", "/completion", `{}`},
		{"POST", "/tokenize", `{"content":"Where does the water go?","with_pieces":true}`},
		{"POST", "/detokenize", `{"tokens":[300,301]}`},
		{"POST", "/apply-template", `{"messages":[{"role":"user","content":"hi"}]}`},
		{"POST", "/slots/0?action=erase", ""},
		{"GET", "/metrics", ""},
	}
}

// TestWire compares the paths, fields, value types, statuses and metrics of every dialect with files, which
// people compare with the engines.
func TestWire(t *testing.T) {
	type server struct {
		dialect enginemock.Dialect
		version string
	}
	var all []server
	for _, d := range enginemock.Dialects() {
		all = append(all, server{d, ""})
		for _, v := range enginemock.EngineVersions(d) {
			all = append(all, server{d, v})
		}
	}
	for _, of := range all {
		d, name := of.dialect, strings.TrimSuffix(string(of.dialect)+"-"+of.version, "-")
		if of.version != "" && of.version == enginemock.EngineVersions(d)[len(enginemock.EngineVersions(d))-1] {
			continue // the dialect's own
		}
		t.Run(name, func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: d, EngineVersion: of.version, Open: opener(t, shape{speedup: 2, context: 4096}), Seed: 7})
			var got strings.Builder
			for _, r := range append(common(), requestsOf(d)...) {
				status, h, body := ask(t, s, r[0], r[1], r[2])
				fmt.Fprintf(&got, "%s %s %s\n%s\n", r[0], r[1], r[2], shapeOf(t, status, h.Get("Content-Type"), body))
			}
			file := filepath.Join("testdata", "wire", name+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("the answers are not those of %s; with -rewrite it is written anew\n%s", file, difference(string(want), got.String()))
			}
		})
	}
}

// difference is the first line that differs, with its context.
func difference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: want %q, got %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("want %d lines, got %d", len(a), len(b))
}

// TestPrefixCacheOff: a server says whether its prefix cache is on.
func TestPrefixCacheOff(t *testing.T) {
	for _, c := range []struct {
		dialect       enginemock.Dialect
		path, on, off string
	}{
		{enginemock.VLLM, "/metrics", `enable_prefix_caching="True"`, `enable_prefix_caching="False"`},
		{enginemock.SGLang, "/server_info", `"disable_radix_cache":false`, `"disable_radix_cache":true`},
	} {
		for reuse, want := range map[paged.Switch]string{paged.On: c.on, paged.Off: c.off} {
			s := start(t, enginemock.Config{Dialect: c.dialect, Open: opener(t, shape{reuse: reuse})})
			if _, _, body := ask(t, s, "GET", c.path, ""); !strings.Contains(body, want) {
				t.Errorf("%s, reuse %v: no %s in %s", c.dialect, reuse, want, body)
			}
		}
	}
}
