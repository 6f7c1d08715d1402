package handoff

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
)

// TestStages: the time between the end of a prefill and the first token is divided into stages, once for each request
// whose blocks came. What comes before and after them belongs to none.
func TestStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observed := make(chan HandoffStages, 10)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, change: func(c *DecodeWorkerConfig) {
			c.ObserveStages = func(s *HandoffStages) { observed <- *s }
		}})
		pause := func(d time.Duration) func() { return func() { time.Sleep(d) } } // virtual time (synctest)
		n, want := r.prefills[0], HandoffStages{
			Send: 300 * time.Millisecond, Transfer: 200 * time.Millisecond, Import: 100 * time.Millisecond, FirstToken: 50 * time.Millisecond,
		}
		n.cache.beforeBatch(pause(10 * time.Millisecond))
		n.bulk.opening = func() error { time.Sleep(want.Send); return nil } // virtual time
		n.bulk.during = pause(want.Transfer / 2)                            // in each of two pieces
		r.cache.mu.writing = pause(want.Import)
		r.cache.beforeBatch(pause(want.FirstToken))
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) {
			t.Errorf("%+v", o)
		}
		if got := <-observed; got != want || got.Sum() != 650*time.Millisecond {
			t.Errorf("%+v, want %+v", got, want)
		}

		// The connection of a small transfer is opened after Send, and before Transfer.
		small := newRequest(3, 400, 5)
		if o := r.expect(small, r.start(r.ctx, small)); !isRemote(o) {
			t.Errorf("%+v", o)
		}
		want.Send, want.Transfer = time.Microsecond, want.Transfer/2 // one piece
		if got := <-observed; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}

		local := newRequest(2, large, 5)
		local.Split.Policy = new(disagg.NeverRemote)
		if o := r.expect(local, r.start(r.ctx, local)); isRemote(o) {
			t.Errorf("%+v", o)
		}
		if len(observed) != 0 {
			t.Errorf("a prompt which was computed here has the stages %+v", <-observed)
		}
		r.expectIdle()
	})
}
