package responses

import (
	"testing"

	"penstock/internal/edge/api"
)

// TestUsageOfAnUnknownCache: an unknown number of cached tokens is left out, not 0.
func TestUsageOfAnUnknownCache(t *testing.T) {
	got := string(appendUsage(nil, api.TokenCounts{Prompt: 20, Completion: 7, Cached: api.CachedUnknown}))
	want := `{"input_tokens":20,"input_tokens_details":{"cache_write_tokens":0},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":27}`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
