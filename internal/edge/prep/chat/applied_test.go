package chat

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
)

// applied is what transformers' apply_chat_template made of conversations, by the
// name of the template.
type applied struct {
	Config        map[string]any
	Sources       map[string]string
	Conversations []struct {
		Messages            []sentMessage
		Tools               json.RawMessage
		Args                json.RawMessage
		AddGenerationPrompt bool `json:"add_generation_prompt"`
		ContinueFinal       bool `json:"continue_final_message"`
	}
	Results map[string][]struct {
		Output *string // nil if there was an error
		Raised *string // by the template itself
		Error  string
	}
}

// sentMessage is a message as clients send it.
type sentMessage struct {
	Role, Name string
	Content    json.RawMessage
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
	Reasoning  string          `json:"reasoning_content"`
}

func (m *sentMessage) message() prep.Message {
	out := prep.Message{Role: m.Role, Name: m.Name, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Reasoning: m.Reasoning}
	switch {
	case bytes.Equal(m.Content, []byte("null")):
		out.NoContent = true
	case json.Unmarshal(m.Content, &out.Content) != nil:
		out.Parts = m.Content
	}
	return out
}

func readApplied(t *testing.T) (f applied) {
	t.Helper()
	file, err := os.Open("testdata/applied.json.gz")
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

// renderAsSent renders a conversation without the steps that servers take before: the reference leaves
// those to its caller.
func renderAsSent(s *checkpointTemplate, c *prep.Chat) ([]prep.Segment, error) {
	if err := checkFlags(c); err != nil {
		return nil, err
	}
	messages, err := messageDicts(c, func(_ string, content any) any { return content })
	if err != nil {
		return nil, err
	}
	return s.renderMessages(nil, c, s.templateFor(c), messages)
}

// TestApplied holds whole conversations, in templates in the styles of families
// of models, against the reference's prompts, byte for byte.
func TestApplied(t *testing.T) {
	f := readApplied(t)
	if len(f.Sources) < 28 || len(f.Conversations) < 20 {
		t.Fatalf("only %d templates, %d conversations", len(f.Sources), len(f.Conversations))
	}
	for name, source := range f.Sources {
		f.Config["chat_template"] = source
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
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.now = func() time.Time { return time.Date(2026, 3, 7, 9, 5, 3, 0, time.UTC) }
		for i, c := range f.Conversations {
			chat := &prep.Chat{Tools: c.Tools, Args: c.Args, AddGenerationPrompt: c.AddGenerationPrompt, ContinueFinal: c.ContinueFinal}
			for j := range c.Messages {
				chat.Messages = append(chat.Messages, c.Messages[j].message())
			}
			what := fmt.Sprintf("%s, conversation %d", name, i)
			got, err := renderAsSent(s, chat)
			want := f.Results[name][i]
			var refused *fault.Error
			switch {
			case want.Output != nil && err != nil:
				t.Errorf("%s: %v, want %q", what, err, *want.Output)
			case want.Output != nil:
				if len(got) != 1 || got[0].Text != *want.Output {
					t.Errorf("%s:\n got %+v\nwant %q", what, got, *want.Output)
				}
			case err == nil:
				t.Errorf("%s: %+v, want an error: %s", what, got, want.Error)
			case !errors.As(err, &refused) || refused.Code != fault.Invalid:
				t.Errorf("%s: %v is not Invalid", what, err)
			case want.Raised != nil && err.Error() != *want.Raised:
				t.Errorf("%s: %v, want the template's %q", what, err, *want.Raised)
			}
		}
	}
}
