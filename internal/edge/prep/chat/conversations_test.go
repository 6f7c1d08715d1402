package chat

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
)

// conversations is what engines made of conversations, by the name of the template:
// tools/fixtures/make_conversations.py.
type conversations struct {
	Config        map[string]any
	Sources       map[string]string
	Conversations []struct {
		Messages            []sentMessage
		Tools               json.RawMessage
		AddGenerationPrompt bool `json:"add_generation_prompt"`
		ContinueFinal       bool `json:"continue_final_message"`
	}
	Lists   map[string]map[string]bool // by the engine: whether a message's content is a list there
	Results map[string]map[string][]struct {
		Output *string // nil if there was an error, or the engine was not asked
		Error  string
	}
}

func readConversations(t *testing.T) (f conversations) {
	t.Helper()
	file, err := os.Open("testdata/conversations.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

// scripted returns a template of the fixture.
func (f *conversations) scripted(t *testing.T, name string) *checkpointTemplate {
	t.Helper()
	f.Config["chat_template"] = f.Sources[name]
	config, err := json.Marshal(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	sources, _, err := parsed.templateSources(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newCheckpointTemplate(sources, parsed.named)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

// chat returns a conversation of the fixture.
func (f *conversations) chat(i int) *prep.Chat {
	c := &f.Conversations[i]
	chat := &prep.Chat{Tools: c.Tools, AddGenerationPrompt: c.AddGenerationPrompt, ContinueFinal: c.ContinueFinal}
	for j := range c.Messages {
		chat.Messages = append(chat.Messages, c.Messages[j].message())
	}
	return chat
}

// TestConversations holds conversations against the prompts that engines make of them: how contents reach a
// template as texts or as lists of parts, and that what a developer says reaches the model.
func TestConversations(t *testing.T) {
	f := readConversations(t)
	held := 0
	for name := range f.Sources {
		s := f.scripted(t, name)
		for _, engine := range [...]string{"vllm", "sglang"} {
			rule, _ := prep.ContentRuleOf(engine)
			if got, want := s.plain.wantsLists[rule](), f.Lists[name][engine]; got != want {
				t.Errorf("%s: %s hands over lists: %v, want %v", name, engine, got, want)
			}
			for i := range f.Conversations {
				want := f.Results[name][engine][i]
				if want.Output == nil && want.Error == "" || name == "whole" && f.Conversations[i].Tools != nil { // which prints the order of keys
					continue
				}
				held++
				c := f.chat(i)
				c.Content = rule
				got, err := s.Render(nil, c)
				var refused *fault.Error
				switch what := fmt.Sprintf("%s, %s, conversation %d", name, engine, i); {
				case want.Output != nil && err != nil:
					t.Errorf("%s: %v, want %q", what, err, *want.Output)
				case want.Output != nil && (len(got) != 1 || got[0].Text != *want.Output):
					t.Errorf("%s:\n got %+v\nwant %q", what, got, *want.Output)
				case want.Output == nil && (!errors.As(err, &refused) || refused.Code != fault.Invalid):
					t.Errorf("%s: %+v, %v, want an error: %s", what, got, err, want.Error)
				}
			}
		}
	}
	if held < 1000 {
		t.Errorf("only %d prompts were compared", held)
	}
}

// TestContentRules has the rules of the engines that the fixture does not have.
func TestContentRules(t *testing.T) {
	const (
		plain  = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
		either = "{% for m in messages %}{% if m.content is string %}<{{ m.content }}>{% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}"
		lists  = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
	)
	parts := func(texts ...string) prep.Message {
		array := []byte{'['}
		for _, text := range texts {
			array = prep.AppendTextPart(array, text)
		}
		return prep.Message{Role: "user", Parts: append(array, ']')}
	}
	for _, c := range []struct {
		engine, template string
		message          prep.Message
		want             string
	}{
		{"trtllm", plain, parts("a", "", "b"), "<a\nb>"},
		{"trtllm", either, parts("a", "b"), "<a\nb>"},
		{"trtllm", either, prep.Message{Role: "assistant", NoContent: true}, "<>"},
		{"llamacpp", plain, parts("", "a", "", "b"), "<a\n\nb>"},
		{"llamacpp", either, parts("a", "b"), "<a\nb>"},
		{"llamacpp", lists, parts("a", "b"), "(a)(b)"},
		{"llamacpp", lists, prep.Message{Role: "user", Content: "a"}, "(a)"},
		{"llamacpp", lists, prep.Message{Role: "assistant", NoContent: true}, "()"},
		{"sim", either, prep.Message{Role: "user", Content: "a"}, "(a)"}, // as vLLM
		{"sglang", either, prep.Message{Role: "user", Content: "a"}, "<a>"},
		{"vllm", plain, prep.Message{Role: "user", Parts: []byte(`[{"type":"text","text":"a"},{"type":"image"}]`)}, `<[{'type': 'text', 'text': 'a'}, {'type': 'image'}]>`},
	} {
		s, err := newCheckpointTemplate(map[string]string{"default": c.template}, nil)
		if err != nil {
			t.Fatal(err)
		}
		chat := &prep.Chat{Messages: []prep.Message{c.message}}
		chat.Content, _ = prep.ContentRuleOf(c.engine)
		got, err := s.Render(nil, chat)
		if err != nil || len(got) != 1 || got[0].Text != c.want {
			t.Errorf("%s, %s: %+v, %v, want %q", c.engine, c.template, got, err, c.want)
		}
	}
}
