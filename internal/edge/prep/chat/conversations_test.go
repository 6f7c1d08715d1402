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
func (f *conversations) scripted(t *testing.T, name string) *scripted {
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
	sources, _, err := parsed.sources(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScripted(sources, parsed.named)
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

// plain reports whether all messages of a conversation are texts.
func plain(c *prep.Chat) bool {
	for i := range c.Messages {
		if m := &c.Messages[i]; len(m.Parts) > 0 || m.NoContent {
			return false
		}
	}
	return true
}

// TestDeveloperMessages: what a developer says reaches the model as vLLM would show it, whether the
// template knows the role or not.
func TestDeveloperMessages(t *testing.T) {
	f := readConversations(t)
	held := 0
	for name := range f.Sources {
		if f.Lists[name]["vllm"] {
			continue
		}
		s := f.scripted(t, name)
		for i := range f.Conversations {
			c := f.chat(i)
			if !plain(c) {
				continue
			}
			held++
			got, err := s.Render(nil, c)
			want := f.Results[name]["vllm"][i]
			var refused *fault.Error
			switch what := fmt.Sprintf("%s, conversation %d", name, i); {
			case want.Output != nil && err != nil:
				t.Errorf("%s: %v, want %q", what, err, *want.Output)
			case want.Output != nil && (len(got) != 1 || got[0].Text != *want.Output):
				t.Errorf("%s:\n got %+v\nwant %q", what, got, *want.Output)
			case want.Output == nil && (!errors.As(err, &refused) || refused.Code != fault.Invalid):
				t.Errorf("%s: %+v, %v, want an error: %s", what, got, err, want.Error)
			}
		}
	}
	if held < 100 {
		t.Errorf("only %d prompts were compared", held)
	}
}
