package batch

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"weak"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestIdleKeepsNothing checks that a waiting engine holds no request, which can be large.
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

// observer is a computer that records which batches are back to back.
type observer struct {
	Computer
	follows []bool
}

func (o *observer) ComputeBatch(ctx context.Context, b *Batch) error {
	o.follows = append(o.follows, b.BackToBack)
	return o.Computer.ComputeBatch(ctx, b)
}

// TestFollows checks that batches are back to back until the engine has nothing to do.
func TestFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		seen := &observer{Computer: e.computer}
		e.computer = seen
		ctx := enginetest.Start(t, e)
		for range 2 {
			enginetest.MustGenerate(t, ctx, e, greedy(1, 8, 3))
			synctest.Wait()
		}
		if want := []bool{false, true, true, false, true, true}; !slices.Equal(seen.follows, want) {
			t.Errorf("%v, want %v", seen.follows, want)
		}
	})
}
