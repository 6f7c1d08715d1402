package chat

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/internal/edge/prep"
)

// TestLongConversations: the bounds of a rendering grow with the conversation, so
// that no template in use meets them, however many messages there are and however
// long they are.
func TestLongConversations(t *testing.T) {
	many := make([]prep.Message, 5_001)
	for i := range many {
		many[i] = prep.Message{Role: [...]string{"user", "assistant"}[i%2], Content: "ok"}
	}
	calls := make([]prep.Message, 0, 2_251)
	for range 750 {
		calls = append(calls, prep.Message{Role: "user", Content: "go"},
			prep.Message{Role: "assistant", ToolCalls: []byte(`[{"id":"abcdefghi","type":"function","function":{"name":"f","arguments":"{\"a\":[1,2,3]}"}}]`)},
			prep.Message{Role: "tool", Content: "done", ToolCallID: "abcdefghi"})
	}
	long := []prep.Message{{Role: "user", Content: strings.Repeat("word\n ", 150_000)}, {Role: "assistant", Content: strings.Repeat("<think>x</think>y", 30_000)}, {Role: "user", Content: "é"}}
	tools := []byte("[" + strings.Repeat(`{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string","enum":["x","y"]}}}}},`, 500) +
		`{"type":"function","function":{"name":"g","description":"d","parameters":{"type":"object","properties":{}}}}]`)
	for name, source := range readApplied(t).Sources {
		config, err := json.Marshal(map[string]any{"chat_template": source, "bos_token": "<s>", "eos_token": "</s>", "image_token": "i", "audio_token": "a", "pad_token_2": "p"})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parseConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newCheckpointTemplate(map[string]string{"default": source}, parsed.named)
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]*prep.Chat{
			"many messages": {Messages: many}, "many calls": {Messages: calls}, "long messages": {Messages: long}, "many tools": {Messages: long[2:], Tools: tools},
		} {
			if _, err := s.Render(nil, c); err != nil && strings.Contains(err.Error(), "limit") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}
