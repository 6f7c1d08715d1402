package engine

import (
	"fmt"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestCachedReport checks the reports of an attempt's cached tokens, delta by delta. A delta is choice,
// tokens, cached and "." if it is the choice's last.
func TestCachedReport(t *testing.T) {
	type deltas = [][4]int // choice, tokens, cached, last
	for _, tt := range []struct {
		name   string
		deltas deltas
		want   string
	}{
		{"at once", deltas{{0, 1, 7, 0}, {0, 1, 0, 0}, {0, 1, 0, 1}}, "7 - -"},
		{"none at once", deltas{{0, 1, 0, 0}, {0, 1, 5, 1}}, "0 -"},
		{"late", deltas{{0, 1, -1, 0}, {0, 1, 0, 0}, {0, 1, 9, 1}}, "-1 - 9"},
		{"none, late", deltas{{0, 1, -1, 0}, {0, 1, 0, 1}}, "-1 0"},
		{"never", deltas{{0, 1, -1, 0}, {0, 1, -1, 1}}, "-1 -"},
		{"one delta", deltas{{0, 1, 3, 1}}, "3"},
		{"one delta, never", deltas{{0, 1, -1, 1}}, "-1"},
		{"the first choice speaks", deltas{{1, 1, 4, 0}, {0, 1, 6, 0}}, "4 -"},
		{"another choice knows", deltas{{0, 1, -1, 0}, {1, 1, -1, 0}, {0, 0, -1, 1}, {1, 0, 8, 1}}, "-1 - - 8"},
		{"another choice knows at once", deltas{{0, 1, -1, 0}, {1, 1, 8, 0}, {0, 0, 6, 1}}, "-1 8 -"},
		{"no tokens", deltas{{0, 0, 0, 1}, {1, 1, 2, 0}}, "- 2"},
		{"the last choice", deltas{{MaxChoices - 1, 1, -1, 0}, {MaxChoices - 1, 0, 2, 1}}, "-1 2"},
		{"no such choice", deltas{{MaxChoices, 1, 3, 0}, {-1, 1, 3, 0}}, "- -"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r CachedReport
			r.ObserveDelta(&Delta{Accepted: true})
			var got []string
			for _, d := range tt.deltas {
				delta := Delta{Choice: d[0], Tokens: make([]kv.Token, d[1]), Cached: d[2], Finish: Finish(d[3])}
				if cached, news := r.ObserveDelta(&delta); news {
					got = append(got, fmt.Sprint(cached))
				} else {
					got = append(got, "-")
				}
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("%s, want %s", s, tt.want)
			}
		})
	}
}
