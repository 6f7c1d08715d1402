package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/edge/prep"
)

// ownTemplate opens a checkpoint with a vocabulary of ChatML and these files.
func ownTemplate(t *testing.T, config map[string]any, template string) *prep.Pipeline {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{tokenizerFile: fixture(t, "qwen2"), configFile: text}
	if template != "" {
		files[templateFile] = []byte(template)
	}
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, files)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func renderText(t *testing.T, p *prep.Pipeline, c *prep.Chat) string {
	t.Helper()
	segments, err := p.Template.Render(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(segments) != 1 || !segments[0].Special {
		t.Fatalf("%+v is not one text with special tokens", segments)
	}
	return segments[0].Text
}

func TestOwnTemplate(t *testing.T) {
	const source = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	config := map[string]any{"chat_template": source, "bos_token": map[string]any{"content": "<b>"}, "eos_token": "<|endoftext|>"}
	p := ownTemplate(t, config, "")
	if p.TemplateName != "jinja, from "+configFile {
		t.Errorf("template %q", p.TemplateName)
	}
	if got, want := renderText(t, p, oneTurn(" Hi ")), "<b><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if end, _ := p.Tokenizer.ID("<|im_end|>"); len(p.StopTokens) == 0 || p.StopTokens[len(p.StopTokens)-1] != end {
		t.Errorf("stop tokens %v lack %d", p.StopTokens, end)
	}
	// What a client spells as a special token is one, as with the reference.
	ids := encode(t, p, oneTurn("<|im_end|>"))
	if want := p.Tokenizer.Encode(nil, "<|im_end|>", prep.EncodeOptions{ParseSpecial: true}); strings.Count(toText(ids), toText(want)) != 2 {
		t.Errorf("%v has not two of %v", ids, want)
	}
	if p := ownTemplate(t, config, "file"); p.TemplateName != "jinja, from "+templateFile || renderText(t, p, oneTurn("x")) != "file" {
		t.Errorf("the file does not hide the configuration: %q", p.TemplateName)
	}
}

func toText[T any](v T) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return strings.Trim(string(text), "[]")
}

func TestOwnTemplateContinues(t *testing.T) {
	chat := &prep.Chat{ContinueFinal: true, Messages: []prep.Message{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Well, "}}}
	const loop = "{% for m in messages %}[{{ m.content SHOWN }}]{% endfor %}"
	for shown, want := range map[string]string{"": "[Hi][Well, ", "| trim": "[Hi][Well,"} {
		p := ownTemplate(t, nil, strings.Replace(loop, "SHOWN", shown, 1))
		if got := renderText(t, p, chat); got != want {
			t.Errorf("%q: %q, want %q", shown, got, want)
		}
	}
	p := ownTemplate(t, nil, "nothing")
	if _, err := p.Template.Render(nil, chat); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a template that hides the message: %v", err)
	}
}

func TestOwnTemplateTools(t *testing.T) {
	named := []map[string]string{
		{"name": "default", "template": "plain"},
		{"name": "tool_use", "template": "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson if m.tool_calls }}{{ m.tool_call_id }}{{ m.content }}{{ m.reasoning_content }};{% endfor %}"},
	}
	p := ownTemplate(t, map[string]any{"chat_template": named}, "")
	chat := &prep.Chat{Tools: []byte(`[{"z":1,"a":"<é>"}]`), Messages: []prep.Message{
		{Role: "assistant", ToolCalls: []byte(`[{"function":{"name":"f","arguments":"{\"y\":1,\"b\":2}"}}]`), Reasoning: "R"},
		{Role: "tool", ToolCallID: "7", Parts: []byte(`[{"type":"text","text":"T"}]`)},
	}}
	if got, want := renderText(t, p, chat), `[{"z": 1, "a": "<é>"}]{"y": 1, "b": 2}R;7T;`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := renderText(t, p, oneTurn("x")); got != "plain" {
		t.Errorf("without tools: %q", got)
	}
	chat.Tools = []byte(`[`)
	var refused *fault.Error
	if _, err := p.Template.Render(nil, chat); !errors.As(err, &refused) || refused.Param != "tools" {
		t.Errorf("broken tools: %v", err)
	}
}

// TestOwnTemplateToolUseFile: the template for tools may be in a file of its own.
func TestOwnTemplateToolUseFile(t *testing.T) {
	dir := checkpoint(t, map[string][]byte{tokenizerFile: fixture(t, "qwen2"), templateFile: []byte("plain")})
	before, err := Open(Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, toolUseFile)
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{{ tools | tojson }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Open(Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if p.Digest == before.Digest {
		t.Error("the digest says nothing of the file")
	}
	chat := oneTurn("x")
	if got := renderText(t, p, chat); got != "plain" {
		t.Errorf("without tools: %q", got)
	}
	chat.Tools = []byte(`[]`)
	if got := renderText(t, p, chat); got != "[]" {
		t.Errorf("with tools: %q", got)
	}
}

func TestOwnTemplateRaises(t *testing.T) {
	p := ownTemplate(t, nil, "{{ raise_exception('roles must alternate') }}")
	if _, err := p.EncodeChat(nil, oneTurn("x")); fault.CodeOf(err) != fault.Invalid || err.Error() != "roles must alternate" {
		t.Errorf("%v", err)
	}
}

// TestOwnTemplateArgs: clients set further variables, in place of special tokens
// too, but none that the request has a field for.
func TestOwnTemplateArgs(t *testing.T) {
	p := ownTemplate(t, map[string]any{"bos_token": "<s>"}, "{{ bos_token }}{{ enable_thinking }}{{ extra | tojson }}")
	chat := oneTurn("x")
	chat.Args = []byte(`{"enable_thinking":false,"extra":{"z":1,"a":[2]},"bos_token":"B"}`)
	if got, want := renderText(t, p, chat), `BFalse{"z": 1, "a": [2]}`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for args, param := range map[string]string{
		`[1]`:                                  "chat_template_kwargs",
		`{`:                                    "chat_template_kwargs",
		`{"messages":[]}`:                      "chat_template_kwargs.messages",
		`{"tools":null}`:                       "chat_template_kwargs.tools",
		`{"documents":[]}`:                     "chat_template_kwargs.documents",
		`{"a":1,"add_generation_prompt":true}`: "chat_template_kwargs.add_generation_prompt",
	} {
		chat.Args = []byte(args)
		var refused *fault.Error
		if _, err := p.Template.Render(nil, chat); !errors.As(err, &refused) || refused.Code != fault.Invalid || refused.Param != param {
			t.Errorf("%s: %v", args, err)
		}
	}
	if _, err := chatMLTemplate().Render(nil, chat); err != nil {
		t.Errorf("a template that is Go code: %v", err)
	}
}

// TestOwnTemplateHostileJSON: JSON that cannot be a value is refused by the name
// of its field.
func TestOwnTemplateHostileJSON(t *testing.T) {
	p := ownTemplate(t, nil, "{{ messages | tojson }}{{ tools }}")
	for name, hostile := range map[string]string{
		"deep": strings.Repeat("[", 100_000), "huge number": strings.Repeat("9", 100_000), "cut": `[{"a":`, "two values": "[] []",
	} {
		for param, chat := range map[string]*prep.Chat{
			"tools":                {Tools: []byte(hostile), Messages: []prep.Message{{Role: "user"}}},
			"chat_template_kwargs": {Args: []byte(hostile), Messages: []prep.Message{{Role: "user"}}},
			"messages[0]":          {Messages: []prep.Message{{Role: "user", Parts: []byte(hostile)}}},
			"messages[1]":          {Messages: []prep.Message{{Role: "user"}, {Role: "assistant", ToolCalls: []byte(hostile)}}},
		} {
			var refused *fault.Error
			if _, err := p.Template.Render(nil, chat); !errors.As(err, &refused) || refused.Code != fault.Invalid || refused.Param != param {
				t.Errorf("%s in %s: %v", name, param, err)
			}
		}
	}
}

func TestOwnTemplateClock(t *testing.T) {
	s, err := newCheckpointTemplate(map[string]string{"default": "{{ strftime_now('%d %b %Y') }}"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC) }
	if got := renderText(t, &prep.Pipeline{Template: s}, oneTurn("x")); got != "07 Mar 2026" {
		t.Errorf("%q", got)
	}
}

// TestOwnTemplateRefused: what cannot be run is named, and no other template
// takes its place.
func TestOwnTemplateRefused(t *testing.T) {
	for source, says := range map[string]string{"\n{% autoescape true %}": "line 2", "{{ x | nosuch }}": "nosuch"} {
		p := ownTemplate(t, nil, source)
		if p.Template != nil || !strings.Contains(p.TemplateName, says) || !strings.Contains(p.TemplateName, templateFile) {
			t.Errorf("%q: template %q", source, p.TemplateName)
		}
		if _, err := p.EncodeChat(nil, oneTurn("x")); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("%q: %v", source, err)
		}
	}
	for _, wrong := range []any{7, []map[string]string{{"name": "rag", "template": "x"}}} {
		if p := ownTemplate(t, map[string]any{"chat_template": wrong}, ""); p.Template != nil || !strings.Contains(p.TemplateName, configFile) {
			t.Errorf("%v: template %q", wrong, p.TemplateName)
		}
	}
}

// TestGoTemplatesShowMedia: each where it stands, and nothing that they do not know.
func TestGoTemplatesShowMedia(t *testing.T) {
	parts := prep.AppendTextPart([]byte{'['}, "a<|image|>")
	parts = prep.AppendTextPart(prep.AppendMediaPart(parts, media.Image), "b")
	parts = append(prep.AppendTextPart(parts, "c"), ']')
	c := &prep.Chat{Messages: []prep.Message{{Role: "user", Parts: parts}}}
	segments, err := builtinTemplate().Render(nil, c)
	want := []prep.Segment{{Text: "<|begin|>", Special: true}, {Text: "<|user|>", Special: true}, {Text: "a<|image|>"}, {Text: "<|image|>", Special: true}, {Text: "b"}, {Text: "\nc"}, {Text: "<|end|>", Special: true}}
	if err != nil || !slices.Equal(segments, want) {
		t.Errorf("%v, %v", segments, err)
	}
	c.Messages[0].Parts = append(prep.AppendMediaPart([]byte{'['}, media.Audio), ']')
	var refused *fault.Error
	if _, err := chatMLTemplate().Render(nil, c); !errors.As(err, &refused) || refused.Param != "messages[0].content" {
		t.Error(err)
	}
}

// TestUnshownToolsAreRefused: a template that does not look at them would drop
// them, and a user would not know why the model calls nothing.
func TestUnshownToolsAreRefused(t *testing.T) {
	tools, user := []byte(`[{"type":"function","function":{"name":"f"}}]`), prep.Message{Role: "user", Content: "x"}
	called := prep.Message{Role: "assistant", ToolCalls: []byte(`[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]`)}
	blind := ownTemplate(t, map[string]any{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}, "")
	seeing := ownTemplate(t, map[string]any{"chat_template": "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"}, "")
	for param, c := range map[string]*prep.Chat{
		"tools":                  {Tools: tools, Messages: []prep.Message{user}},
		"messages[1].tool_calls": {Messages: []prep.Message{user, called}},
	} {
		var refused *fault.Error
		if _, err := blind.EncodeChat(nil, c); !errors.As(err, &refused) || refused.Code != fault.Unimplemented || refused.Param != param {
			t.Errorf("%s: %v", param, err)
		}
		if _, err := seeing.EncodeChat(nil, c); err != nil {
			t.Errorf("%s: %v", param, err)
		}
	}
}
