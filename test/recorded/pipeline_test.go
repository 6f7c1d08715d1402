package main

import (
	"testing"

	"penstock/internal/edge/prep"
)

// TestPrompts: what the template makes of tools, calls and the two openings.
func TestPrompts(t *testing.T) {
	pipe, _, err := openPipeline(&dialect{Opening: "<think>\n", Silent: "<think>\n\n</think>\n\n"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	user := prep.Message{Role: "user", Content: "play:text"}
	called := prep.Message{Role: "assistant", Content: "Hm.", ToolCalls: []byte(`[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]`)}
	for want, c := range map[string]*prep.Chat{
		"<|begin|><|user|>play:text<|end|><|assistant|><think>\n": {
			Messages: []prep.Message{user}, AddGenerationPrompt: true,
		},
		"<|begin|><|user|>play:text<|end|><|assistant|><think>\n\n</think>\n\n": {
			Messages: []prep.Message{user}, AddGenerationPrompt: true, Args: []byte(`{"enable_thinking":false}`),
		},
		"<|begin|><|system|>You may call:\n{\"name\": \"f\"}\n<|end|><|system|>s<|end|><|user|>play:text<|end|><|assistant|>Hm.\nf {\"a\": 1}<|end|><|tool|>r<|end|><|assistant|><think>\n": {
			Messages: []prep.Message{{Role: "developer", Content: "s"}, user, called, {Role: "tool", Content: "r"}},
			Tools:    []byte(`[{"name":"f"}]`), AddGenerationPrompt: true,
		},
		"<|begin|><|user|>play:text<|end|><|assistant|>It is": {
			Messages: []prep.Message{user, {Role: "assistant", Content: "It is"}}, ContinueFinal: true,
		},
	} {
		tokens, err := pipe.EncodeChat(nil, c)
		if err != nil {
			t.Errorf("%q: %v", want, err)
			continue
		}
		var got []byte
		for _, id := range tokens {
			got, _ = pipe.Tokenizer.AppendBytes(got, id)
		}
		if string(got) != want {
			t.Errorf("got  %q,\nwant %q", got, want)
		}
	}
}
