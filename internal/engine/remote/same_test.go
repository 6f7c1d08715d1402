package remote

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// TestSameFromTimeToTime checks that an answering engine is checked periodically for being the same, and for
// being alive only when in doubt.
func TestSameFromTimeToTime(t *testing.T) {
	var alive atomic.Int32
	same := make(chan struct{}, 100)
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := base(t, s.URL, func(c *Config) {
		c.CheckAlive = func(context.Context) error { alive.Add(1); return nil }
		c.CheckSame = func(context.Context) error {
			select {
			case same <- struct{}{}:
			default:
			}
			return nil
		}
	}, func(b *Base) { b.health.sameInterval = time.Millisecond })
	for range 3 {
		<-same
	}
	if n := alive.Load(); n != 0 {
		t.Errorf("it was asked %d times whether it is alive", n)
	}
	b.health.noteCallError(t.Context(), errBrokeOff)
	for alive.Load() == 0 {
		<-same
	}
}
