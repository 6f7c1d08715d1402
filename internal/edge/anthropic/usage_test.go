package anthropic

import (
	"encoding/json"
	"testing"

	"penstock/internal/edge/api"
)

// TestUsageOfAnUnknownCache: an unknown number of cached tokens is not reported as 0.
func TestUsageOfAnUnknownCache(t *testing.T) {
	got := string(appendUsage(nil, api.TokenCounts{Prompt: 20, Completion: 7, Cached: api.CachedUnknown}))
	want := `{"input_tokens":20,"cache_creation_input_tokens":0,"output_tokens":7,"output_tokens_details":{"thinking_tokens":0}}`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var schema, v any
	if err := json.Unmarshal([]byte(usageSchema()), &schema); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(got), &v); err != nil || !matches(t, schema, v) {
		t.Errorf("%s does not match the schema (%v)", got, err)
	}
}
