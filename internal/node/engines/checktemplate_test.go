package engines

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
)

// renderer makes prompts as an engine of one kind does.
type renderer struct {
	pipe *prep.Pipeline
	rule prep.ContentRule
}

func (r renderer) Preprocess(_ context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	c, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return nil, err
	}
	c.Content = r.rule
	tokens, err := r.pipe.EncodeChat(nil, c)
	return &engine.Preprocessed{Attempt: req.Attempt, Tokens: tokens}, err
}

// TestCheckTemplate: a note says that the engine makes different prompts of conversations, even if only
// content parts differ.
func TestCheckTemplate(t *testing.T) {
	open := func(template string) *prep.Pipeline {
		dir := t.TempDir()
		tokenizer, config := token.BuiltinFiles()
		for name, contents := range map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": config, "chat_template.jinja": []byte(template)} {
			if err := os.WriteFile(filepath.Join(dir, name), contents, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	texts := open("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
	others := open("{% for m in messages %}{{ m.role }} - {{ m.content }}{% endfor %}")
	for name, c := range map[string]struct {
		kind string
		pipe *prep.Pipeline // of the engine
		rule prep.ContentRule
		want string // in the note
	}{
		"vLLM":                  {"vllm", texts, prep.ContentVLLM, ""},
		"SGLang":                {"sglang", texts, prep.ContentSGLang, ""},
		"a template of its own": {"sglang", others, prep.ContentSGLang, "the engine's chat template"},
		"another rule":          {"sglang", texts, prep.ContentVLLM, "content parts"},
	} {
		m := &RemoteModel{pipe: texts, From: "DIR"}
		note := checkTemplate(t.Context(), renderer{c.pipe, c.rule}, engine.Card{Name: "m", Engine: c.kind}, m)
		if c.want == "" && note != "" || !strings.Contains(note, c.want) {
			t.Errorf("%s: %q, want %q", name, note, c.want)
		}
	}
}
