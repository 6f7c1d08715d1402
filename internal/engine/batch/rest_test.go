package batch

import (
	"runtime"
	"testing"
	"testing/synctest"
	"weak"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestIdleKeepsNothing: an engine that waits holds no request, which can be large.
func TestIdleKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		ctx := enginetest.Start(t, e)
		var kept []weak.Pointer[engine.Request]
		for i := range 5 {
			req := greedy(i, 30, 5)
			req.Choices = 1 + i
			kept = append(kept, weak.Make(req))
			enginetest.MustGenerate(t, ctx, e, req)
		}
		synctest.Wait()
		runtime.GC()
		for i, p := range kept {
			if p.Value() != nil {
				t.Errorf("request %d is kept", i)
			}
		}
		runtime.KeepAlive(e)
	})
}
