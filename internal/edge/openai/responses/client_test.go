package responses

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/edge/api"
)

// TestClientRequests: the decoder accepts the conversations of the official client, which contain answers of this
// package. Such an answer becomes one turn of the assistant, followed by the results of its calls.
func TestClientRequests(t *testing.T) {
	b, err := os.ReadFile("testdata/client_requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Package  string            `json:"package"`
		Requests []json.RawMessage `json:"requests"`
	}
	if err := json.Unmarshal(b, &recorded); err != nil {
		t.Fatal(err)
	}
	if len(recorded.Requests) < 8 {
		t.Fatalf("%d requests of %s are recorded", len(recorded.Requests), recorded.Package)
	}
	turn := []api.Message{
		{Role: "assistant", Reasoning: "Let me see.", Content: "I'll look: one moment.", ToolCalls: []byte(
			`[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"a\":\"x\\\"y\"}"}},` +
				`{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]`)},
		{Role: "tool", ToolCallID: "call_0", Content: `{"ok": true}`},
		{Role: "tool", ToolCallID: "call_1", Content: `{"ok": true}`},
	}
	sentBack := 0
	for i, body := range recorded.Requests {
		q, err := Decode(body)
		if err != nil {
			t.Errorf("request %d of %s: %v", i, recorded.Package, err)
			continue
		}
		last := q.Messages[max(0, len(q.Messages)-len(turn)):]
		if last[len(last)-1].Role != "tool" {
			continue
		}
		sentBack++
		if diff := cmp.Diff(turn, last); diff != "" {
			t.Errorf("request %d (-want +got)\n%s", i, diff)
		}
	}
	if sentBack != 3 {
		t.Errorf("answers are sent back %d times", sentBack)
	}
}
