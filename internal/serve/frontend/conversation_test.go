package frontend

import (
	"os"
	"path/filepath"
	"testing"

	"penstock/internal/catalog"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/openai/responses"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
)

// TestConversationOfAnEngine: content parts reach the template by the rule of the card's engine, and
// reach an engine that makes prompts unchanged, except Penstock's own, whose earlier versions took the
// texts of a message as one.
func TestConversationOfAnEngine(t *testing.T) {
	q := &api.Request{Endpoint: api.Chat, Messages: []api.Message{
		{Role: "system", Content: "s"},
		{Role: "user", Content: "a\nb", Parts: []api.Part{{Text: "a"}, {Text: "b"}}},
	}}
	const parts = `[{"type":"text","text":"a"},{"type":"text","text":"b"}]`
	here, elsewhere := prep.Encoder(prep.LocalEncoder{}), prep.Encoder(&engineEncoder{})
	for _, c := range []struct {
		engine  string
		encoder prep.Encoder
		rule    prep.ContentRule
		parts   string
	}{
		{"vllm", here, prep.ContentVLLM, parts},
		{"sglang", here, prep.ContentSGLang, parts},
		{"trtllm", here, prep.ContentTRTLLM, parts},
		{"llamacpp", here, prep.ContentLlamaCpp, parts},
		{"tiny", here, prep.ContentVLLM, parts},
		{"of a later version", here, prep.ContentVLLM, parts},
		{"sglang", elsewhere, prep.ContentSGLang, parts},
		{"tiny", elsewhere, prep.ContentVLLM, ""},
	} {
		m := &servedModel{Model: &catalog.Model{Card: engine.Card{Name: "m", Engine: c.engine}}, encoder: c.encoder}
		got := m.chatOf(q)
		if got.Content != c.rule || string(got.Messages[1].Parts) != c.parts || got.Messages[0].Content != "s" {
			t.Errorf("%s: rule %d, parts %s", c.engine, got.Content, got.Messages[1].Parts)
		}
		if c.parts == "" && got.Messages[1].Content != "a\nb" {
			t.Errorf("%s: the text %q", c.engine, got.Messages[1].Content)
		}
	}
}

// systemFirst is a template in the style of Qwen's: the system message comes first, and messages of
// unknown roles are not shown.
const systemFirst = "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}" +
	"<S>{{ m.content }}{% elif m.role == 'user' %}<U>{{ m.content }}{% elif m.role == 'assistant' %}<A>{{ m.content }}{% endif %}{% endfor %}"

// TestDevelopersOfBothDialects: developer messages, and the instructions of /v1/responses, are shown to
// a template without that role.
func TestDevelopersOfBothDialects(t *testing.T) {
	dir := t.TempDir()
	tokenizer, config := token.BuiltinFiles()
	for name, contents := range map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": config, "chat_template.jinja": []byte(systemFirst)} {
		if err := os.WriteFile(filepath.Join(dir, name), contents, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	m := &servedModel{Model: &catalog.Model{Card: engine.Card{Name: "m", Engine: "vllm"}}, encoder: prep.LocalEncoder{Pipeline: pipe}}
	chats := func(body string) (*api.Request, error) { return openai.Decode(api.Chat, []byte(body)) }
	items := func(body string) (*api.Request, error) {
		q, err := responses.Decode([]byte(body))
		if err != nil {
			return nil, err
		}
		return q.Request, nil
	}
	for _, c := range []struct {
		decode     func(string) (*api.Request, error)
		body, want string
	}{
		{chats, `"messages":[{"role":"developer","content":"Answer in French only."},{"role":"user","content":"Hi"}]`, "<S>Answer in French only.<U>Hi"},
		{
			chats,
			`"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hi"},{"role":"developer","content":[{"type":"text","text":"D"},{"type":"text","text":"E"}]}]`,
			"<S>S\n\nD\nE<U>Hi",
		},
		{items, `"instructions":"Be kind.","input":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}]`, "<S>Be kind.\n\nBe brief.<U>Hi"},
		{
			items,
			`"input":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},{"role":"developer","content":[{"type":"input_text","text":"D"}]},{"role":"user","content":"x"}]`,
			"<S>D<U>Hi<A>Hello<U>x",
		},
	} {
		q, err := c.decode(`{"model":"m",` + c.body + `}`)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pipe.RenderText(m.chatOf(q)); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.body, got, err, c.want)
		}
	}
}
