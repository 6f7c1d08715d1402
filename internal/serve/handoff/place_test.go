package handoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
)

// TestLeastLoaded: a job goes to the worker with the fewest tokens to compute, those of jobs in progress among them, and to
// none which failed. The end of its context withdraws it.
func TestLeastLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := rpc.NewMemPlane()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		workers := []PrefillPeer{{Addr: "a", Tokens: 100}, {Addr: "b", Tokens: 50}, {Addr: "c", Tokens: 80}}
		for i := range workers {
			workers[i].Incarnation = disagg.Incarnation{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}, Epoch: 9}
			go func() {
				_ = calls.Serve(ctx, workers[i].Addr, func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
					<-ctx.Done()
					return ctx.Err()
				}, nil)
			}()
		}
		synctest.Wait()
		p := NewCallPlacer(calls, func() []PrefillPeer { return workers })
		type placed struct {
			by  disagg.Incarnation
			err error
		}
		results := make(chan placed, 3)
		place := func(ctx context.Context, failed ...disagg.Incarnation) {
			go func() {
				by, err := p.PlaceJob(ctx, &engine.PrefillRequest{Attempt: 1, Tokens: 90}, disagg.Incarnation{}, failed)
				results <- placed{by, err}
			}()
			synctest.Wait()
		}
		first, end := context.WithCancel(ctx)
		place(first)                       // b, which has 90 then
		place(ctx)                         // c
		place(ctx, workers[1].Incarnation) // c has 90: less than a
		if _, err := p.PlaceJob(ctx, &engine.PrefillRequest{}, disagg.Incarnation{}, []disagg.Incarnation{workers[0].Incarnation, workers[1].Incarnation, workers[2].Incarnation}); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("no worker is left: %v", err)
		}
		for i, want := range []int{0, 90, 180} {
			if got := p.mu.placed[workers[i].Incarnation]; got != want {
				t.Errorf("%s has jobs of %d tokens, want %d", workers[i].Addr, got, want)
			}
		}
		end()
		if got := <-results; got.by != workers[1].Incarnation || !errors.Is(got.err, context.Canceled) {
			t.Errorf("%+v", got)
		}
		cancel()
		<-results
		<-results
		if len(p.mu.placed) != 0 {
			t.Errorf("at the end: %v", p.mu.placed)
		}
	})
}
