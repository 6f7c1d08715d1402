package enginemock_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/enginemock"
)

// capture is what a real SGLang answered and published (test/interop/engines/capture_sglang.py).
type capture struct {
	Version      string
	BlockSize    int               `json:"block_size"`
	Announces    bool              // kv_events is in /server_info
	KVEvents     map[string]string `json:"kv_events"`     // its fields, and the types of their values
	ReplayFrames []int             `json:"replay_frames"` // of the first answer and of the last
	FirstEvent   string            `json:"first_event"`
	Requests     []captured
}

// captured is one request.
type captured struct {
	Method, Path string
	Body         json.RawMessage
	Status       int
	Fields       map[string]string
	CachedTokens *int       `json:"cached_tokens"`
	Tokens       []kv.Token // of /tokenize
	Events       []capturedEvent
}

// capturedEvent is an event whose blocks have numbers in the order in which they first appeared.
type capturedEvent struct {
	Type      string
	Hashes    []int      `json:"block_hashes"`
	Parent    int        `json:"parent_block_hash"`
	Tokens    []kv.Token `json:"token_ids"`
	BlockSize int        `json:"block_size"`
	LoRA      string     `json:"lora_name"`
	Salt      string     `json:"cache_salt"`
	Medium    string
	Form      json.RawMessage // of a map the order of its fields, of an array their number
}

func loadCapture(t *testing.T, version string) (c capture) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "captured", "sglang-"+version+".json"))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil || c.Version != version || len(c.Requests) == 0 {
		t.Fatalf("no capture of %s: %v", version, err)
	}
	return c
}

// template is the chat template of the real servers' model (test/interop/engines/make_model.py).
const template = "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"

// withTemplate opens the built-in vocabulary with that template.
func withTemplate(t *testing.T) *prep.Pipeline {
	t.Helper()
	tokenizer, _ := token.BuiltinFiles()
	config, err := json.Marshal(map[string]string{"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": template})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": config, "config.json": []byte("{}")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return pipe
}

// TestCapturedSGLang sends the mock the requests which a real server received. Statuses, cached tokens,
// events and the tokens of /tokenize must be the same, and an answer must have no field which the real answer
// lacks.
func TestCapturedSGLang(t *testing.T) {
	for _, version := range []string{"0.5.17", "0.5.23"} {
		t.Run(version, func(t *testing.T) {
			c := loadCapture(t, version)
			s := start(t, enginemock.Config{
				Dialect: enginemock.SGLang, EngineVersion: version, Pipe: withTemplate(t), Open: opener(t, shape{size: c.BlockSize, context: 4096}), Models: []string{"tiny"},
				KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Adapters: []enginemock.Adapter{{Name: "ad", Path: "/ad"}}, Seed: 3,
			})
			in := subscribe(t, s, 0)
			names := map[kv.EngineHash]int{}
			for i := range c.Requests {
				want := &c.Requests[i]
				body := string(want.Body)
				if body == "null" {
					body = ""
				}
				status, _, answer := ask(t, s, want.Method, want.Path, body)
				what := want.Method + " " + want.Path + " " + strings.Map(func(r rune) rune {
					if r == '\n' || r == ' ' {
						return -1
					}
					return r
				}, body)
				what = what[max(0, len(what)-160):]
				if status != want.Status {
					t.Errorf("request %d, …%s: status %d, want %d: %.200s", i, what, status, want.Status, answer)
					continue
				}
				want.compare(t, i, what, answer)
				want.follow(t, i, what, in, names)
			}
			again := replay(t, s.ReplayAddr(), 0)
			if got := []int{len(again[0]), len(again[len(again)-1])}; !slices.Equal(got, c.ReplayFrames) {
				t.Errorf("answers to a request for replay have %v frames, want %v", got, c.ReplayFrames)
			}
		})
	}
}

// compare compares an answer with the captured one.
func (want *captured) compare(t *testing.T, i int, what, answer string) {
	t.Helper()
	var v any
	if json.Unmarshal([]byte(answer), &v) != nil {
		return // a text
	}
	all := paths{}
	all.add("", v)
	for path, kinds := range all {
		real, there := want.Fields[path]
		if !there {
			t.Errorf("request %d, …%s: %s is not in the real answer", i, what, path)
		}
		for kind := range kinds {
			if there && !slices.Contains(strings.Split(real, "|"), kind) {
				t.Errorf("request %d, …%s: %s is %s, in the real answer %s", i, what, path, kind, real)
			}
		}
	}
	var said struct {
		Meta struct {
			Cached *int `json:"cached_tokens"`
		} `json:"meta_info"`
		Usage struct {
			Details struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Tokens []kv.Token
	}
	_ = json.Unmarshal([]byte(answer), &said) // other answers have neither
	cached := said.Meta.Cached
	if cached == nil {
		cached = said.Usage.Details.Cached
	}
	if (cached == nil) != (want.CachedTokens == nil) || cached != nil && *cached != *want.CachedTokens {
		t.Errorf("request %d, …%s: cached tokens are not those of the real one: %s", i, what, answer)
	}
	if want.Path == "/tokenize" && !slices.Equal(said.Tokens, want.Tokens) {
		t.Errorf("request %d, …%s: tokens %v, want %v", i, what, said.Tokens, want.Tokens)
	}
}

// follow reads as many events as the real server published with the request and compares them.
func (want *captured) follow(t *testing.T, i int, what string, in <-chan message, names map[kv.EngineHash]int) {
	t.Helper()
	number := func(h kv.EngineHash) int {
		if names[h] == 0 {
			names[h] = len(names) + 1
		}
		return names[h]
	}
	var got []engineevents.Event
	for timeout := time.After(patience); len(got) < len(want.Events); {
		select {
		case m := <-in:
			var d engineevents.Decoder
			var b engineevents.Batch
			if err := d.Decode(m.payload, &b); err != nil {
				t.Fatal(err)
			}
			for _, w := range want.Events[len(got):min(len(got)+1, len(want.Events))] {
				w.form(t, i, m.payload)
			}
			got = append(got, b.Events...)
		case <-timeout:
			t.Fatalf("request %d, …%s: %d events, want %d", i, what, len(got), len(want.Events))
		}
	}
	for j := range want.Events {
		w, g := &want.Events[j], &got[j]
		var hashes []int
		for _, h := range g.Hashes {
			hashes = append(hashes, number(h))
		}
		parent := 0
		if g.HasParent {
			parent = number(g.Parent)
		}
		if !slices.Equal(hashes, w.Hashes) || parent != w.Parent || !slices.Equal(g.Tokens, w.Tokens) || g.LoRA != w.LoRA || g.Salt != w.Salt {
			t.Errorf("request %d, …%s: event %d has blocks %v behind %d, adapter %q, salt %q, %d tokens; want %v behind %d, %q, %q, %d",
				i, what, j, hashes, parent, g.LoRA, g.Salt, len(g.Tokens), w.Hashes, w.Parent, w.LoRA, w.Salt, len(w.Tokens))
		}
	}
}

// form compares the encoding of a batch whose first event is like w with the real one: the fields of a map in
// their order, or an array.
func (w *capturedEvent) form(t *testing.T, i int, payload []byte) {
	t.Helper()
	var order []string
	if json.Unmarshal(w.Form, &order) != nil { // the number of an array's elements
		if bytes.Contains(payload, []byte("block_hashes")) {
			t.Errorf("request %d: the event is a map, want an array", i)
		}
		return
	}
	for _, field := range []string{"cache_salt", "lora_name", "session_id"} {
		if bytes.Contains(payload, []byte(field)) && !slices.Contains(order, field) {
			t.Errorf("request %d: field %q is in the event, and not in the real one", i, field)
		}
	}
	for _, field := range order {
		_, rest, found := bytes.Cut(payload, []byte(field))
		if !found {
			t.Errorf("request %d: field %q is not in the event, or not in its place", i, field)
		}
		payload = rest
	}
}
