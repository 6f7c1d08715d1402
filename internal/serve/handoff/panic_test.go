package handoff

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/xfer"
)

// TestDecodeEnginePanics: a bug of the decode worker's engine fails the request with which it panics, and no other.
func TestDecodeEnginePanics(t *testing.T) {
	eachWay(t, "one request", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		r.cache.panics = "request-1"
		if got := <-r.start(r.ctx, newRequest(1, 400, 5)); fault.CodeOf(got.err) != fault.Internal {
			t.Errorf("%v", got.err)
		}
		if o := <-r.outcomes; o.State != disagg.Aborted {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		next := newRequest(2, 400, 5)
		if o := r.expect(next, r.start(r.ctx, next)); !isRemote(o) {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestPrefillEnginePanics: after a bug of a prefill worker's engine the decode worker computes the prompt.
func TestPrefillEnginePanics(t *testing.T) {
	eachWay(t, "one request", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		n := r.prefills[0]
		n.cache.panics = "request-1"
		for i, remote := range []bool{false, true} {
			req := newRequest(1+i, 400, 5)
			if o := r.expect(req, r.start(r.ctx, req)); isRemote(o) != remote {
				t.Errorf("%+v", o)
			}
			r.expectIdle()
		}
		if s := n.Stats(); s.Failed != 1 || s.Written != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// panickingPlane panics as it opens the first transfer.
type panickingPlane struct {
	xfer.Plane
	hasPanicked bool
}

func (p *panickingPlane) Expect(in xfer.Incoming) (*xfer.Transfer, error) {
	if !p.hasPanicked {
		p.hasPanicked = true
		panic("a bug")
	}
	return p.Plane.Expect(in)
}

// TestHandoffPanics: a panic of the goroutine which serves a request ends all that waits for it: the engine's reservation
// and the prefill worker's pull.
func TestHandoffPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := newMemPlane(t, xfer.Config{})
		r := newRig(t, rigConfig{blocks: []int{16, 64}, owner: &panickingPlane{Plane: plane}, writer: plane})
		done := make(chan error, 1)
		r.running.Go(func() {
			done <- bounded.RecoverPanic(func() error {
				return r.decoder.Generate(r.ctx, newRequest(1, 400, 5), func(*engine.Delta) error { return nil })
			})
		})
		if err := <-done; err == nil {
			t.Error("the request panics in no transfer: the test tests nothing")
		}
		if o := <-r.outcomes; o.State != disagg.Aborted {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		next := newRequest(2, 400, 5)
		if o := r.expect(next, r.start(r.ctx, next)); !isRemote(o) {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestJobPanics: a panic of the goroutine which does a job of the queue ends that delivery alone: the job comes again.
func TestJobPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: newQueue(t), prefill: func(c *PrefillWorkerConfig) {
			find := c.FindOwner
			c.FindOwner = func(w kv.Worker) *disagg.Metadata {
				if asked.Add(1) == 1 {
					panic("a bug")
				}
				return find(w)
			}
		}})
		req := newRequest(1, 400, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}
