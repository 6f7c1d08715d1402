package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"penstock/internal/edge/api"
)

// TestClientRequests: requests of the official client are decoded correctly.
// tools/fixtures/make_anthropic_requests.py generated them.
func TestClientRequests(t *testing.T) {
	lines, err := os.ReadFile("testdata/requests.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for line := range bytes.Lines(lines) {
		var r struct {
			Name, Path string
			Body       json.RawMessage
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		decode := Decode
		if r.Path == "/v1/messages/count_tokens" {
			decode = DecodeCount
		}
		q, err := decode(r.Body)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		fmt.Fprintf(&out, "%s\n%s\n", r.Name, describe(q))
	}
	golden(t, "../requests.txt", out.Bytes())
}

// describe prints the fields of a request which differ from their defaults.
func describe(q *api.Request) []byte {
	var b []byte
	say := func(name string, zero bool, value any) {
		if !zero {
			b = fmt.Appendf(b, "  %s %v\n", name, value)
		}
	}
	for _, m := range q.Messages {
		b = fmt.Appendf(b, "  %s %q\n", m.Role, m.Content)
		say("  name", m.Name == "", m.Name)
		say("  answers", m.ToolCallID == "", m.ToolCallID)
		say("  thought", m.Reasoning == "", m.Reasoning)
		say("  calls", m.ToolCalls == nil, string(m.ToolCalls))
	}
	say("continues", !q.ContinueFinal, q.ContinueFinal)
	say("tools", q.ToolsJSON == nil, string(q.ToolsJSON))
	say("tool choice", q.ToolChoice == api.ToolChoice{}, q.ToolChoice)
	say("one call", !q.OneCall, q.OneCall)
	say("template", q.TemplateArgs == nil, string(q.TemplateArgs))
	say("hides reasoning", !q.HideReasoning, q.HideReasoning)
	say("schema", q.Format.Kind == api.FormatText, q.Format.Param+" "+string(q.Format.Schema))
	say("max tokens", q.MaxTokens == 0, q.MaxTokens)
	say("stream", !q.Stream, q.Stream)
	say("stop", q.Stop == nil, fmt.Sprintf("%q", q.Stop))
	if q.Temperature != nil && q.TopP != nil && q.TopK != nil {
		b = fmt.Appendf(b, "  sampling %v %v %v\n", *q.Temperature, *q.TopP, *q.TopK)
	}
	return b
}
