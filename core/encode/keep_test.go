package encode

import "testing"

// TestRetention has a line for each line of the matrix, and for what applies together.
func TestRetention(t *testing.T) {
	for _, c := range []struct {
		name string
		use  Usage
		want Retention
	}{
		{"single pass", Usage{Branches: 1}, DiscardRows},
		{"beam search", Usage{Branches: 4}, KeepUntilEnd},
		{"n = 2", Usage{Branches: 2}, KeepUntilEnd},
		{"multi-turn", Usage{MultiTurn: true}, KeepForNextTurn},
		{"prefix caching", Usage{PrefixCaching: true}, DiscardRows},
		{"speculative decoding", Usage{Speculative: true}, KeepUntilEnd},
		{"multi-turn with prefix caching", Usage{MultiTurn: true, PrefixCaching: true}, DiscardRows},
		{"multi-turn with beams", Usage{MultiTurn: true, Branches: 2}, KeepForNextTurn},
		{"beams with prefix caching", Usage{Branches: 2, PrefixCaching: true}, KeepUntilEnd},
		{"speculative with prefix caching", Usage{Speculative: true, PrefixCaching: true}, KeepUntilEnd},
		{"multi-turn with prefix caching and beams", Usage{MultiTurn: true, PrefixCaching: true, Branches: 2}, KeepUntilEnd},
	} {
		if got := c.use.Retention(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
