package api

import "testing"

// TestAddCounts: the sum of cached tokens is known only if every summand is.
func TestAddCounts(t *testing.T) {
	for _, tt := range []struct{ a, b, want int }{{1, 2, 3}, {0, CachedUnknown, CachedUnknown}, {CachedUnknown, 4, CachedUnknown}} {
		c := TokenCounts{Prompt: 5, Cached: tt.a}
		c.Add(TokenCounts{Prompt: 6, Cached: tt.b})
		if (c != TokenCounts{Prompt: 11, Cached: tt.want}) {
			t.Errorf("%d and %d cached make %+v", tt.a, tt.b, c)
		}
	}
}
