package worker_test

import (
	"testing"
	"testing/synctest"

	"penstock/internal/serve/servetest"
)

// TestCachedLate: cached tokens are counted whenever the engine reports them.
func TestCachedLate(t *testing.T) {
	for _, tt := range []struct {
		tells servetest.CachedReporting
		want  string
	}{{servetest.ReportsFirst, "8"}, {servetest.ReportsLast, "8"}, {servetest.ReportsNever, "0"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{Cached: tt.tells})
			r.start(r.engine)
			defer r.stop()
			for range 2 { // the second finds the first one's blocks
				if _, err := r.generate(t.Context(), r.addr(), request(9)); err != nil {
					t.Fatal(err)
				}
			}
			if n := r.metric(`worker_cached_tokens_total{worker="7"}`); n != tt.want {
				t.Errorf("told at time %d: %s cached tokens are counted, want %s", tt.tells, n, tt.want)
			}
		})
	}
}
