package handoff

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/pool"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny"
)

// poolView is one worker's view of a pool in memory.
type poolView struct {
	sync.Mutex
	view *pool.View
	slow atomic.Int64 // how many accesses take long
}

// Use implements batch.PoolMemory.
func (v *poolView) Use(use func(*pool.View, kv.Mono) error) error {
	if v.slow.Add(-1) >= 0 {
		time.Sleep(600 * time.Millisecond) // virtual time (synctest)
	}
	v.Lock()
	defer v.Unlock()
	return use(v.view, 0)
}

// openPooled returns engines of the built-in model which share a pool. So many accesses of worker 3 take long.
func openPooled(t *testing.T, slow int64) func(blockSize int) exchangeEngine {
	var memory pool.Memory
	id := kv.WorkerID(0)
	return func(blockSize int) exchangeEngine {
		e := newTiny(t, blockSize, 2048, nil)
		layout := e.BlockLayout()
		cfg := layout.PoolConfig()
		err := error(nil)
		if memory.Size == 0 {
			if memory, err = pool.MapBytes(make([]byte, 1<<20+100*layout.BlockBytes)); err == nil {
				err = pool.Format(memory, cfg, 99)
			}
		}
		v := &poolView{}
		if err == nil {
			v.view, err = pool.Open(memory, cfg)
		}
		if id++; id == 3 {
			v.slow.Store(slow)
		}
		if err == nil {
			err = v.view.Join(0, kv.Worker{ID: id})
		}
		if err == nil {
			err = e.UsePool(v, 7, kv.Worker{ID: id})
		}
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

func poolStats(e exchangeEngine) batch.PoolStats { return e.(*tiny.Engine).PoolStats() }

// pooledRig is a rig of two workers with a pool, after another worker of it.
type pooledRig struct {
	*rig
	earlier exchangeEngine
}

func newPooledRig(t *testing.T, slow int64) *pooledRig {
	open := openPooled(t, slow)
	r := &pooledRig{earlier: open(16)}
	r.rig = newRig(t, rigConfig{blocks: []int{16, 16}, open: open, queue: newQueue(t)})
	r.open = openTiny(t) // of one which is alone
	enginetest.Start(t, r.earlier)
	return r
}

// prefill has the earlier worker put the blocks of a request into the pool.
func (r *pooledRig) prefill(req *engine.Request) {
	r.t.Helper()
	if err := r.earlier.PrefillBlocks(r.ctx, req, func(engine.HeldBlocks) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait() // the blocks are in the pool
}

// TestSlowPool: a prefill worker which fetches blocks for longer than Silence says meanwhile that its work goes on.
func TestSlowPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPooledRig(t, 8) // its start, a look-up, and six blocks
		r.prefill(newRequest(0, 97, 1))
		req := newRequest(0, 300, 4)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 || o.Took < 2*testHandoff.Silence {
			t.Errorf("%+v", o)
		}
		if s := poolStats(r.prefills[0].eng); s.Fetched != 6 {
			t.Errorf("%+v", s)
		}
		r.expectIdle()
	})
}

// TestPooledPrefix: of a prompt whose first blocks another worker has pooled, those are neither computed by the prefill
// worker nor moved, and the answer is that of one engine.
func TestPooledPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPooledRig(t, 0)
		r.prefill(newRequest(0, 97, 1))
		req := newRequest(0, 300, 4)
		req.Logprobs = 2
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Decision.Inputs.Cached != 96 || o.Start != 96 || o.End != 288 || o.RemoteCached != 96 {
			t.Errorf("%+v", o)
		}
		for name, e := range map[string]exchangeEngine{"decode": r.eng, "prefill": r.prefills[0].eng} {
			if s := poolStats(e); s.Fetched != 6 {
				t.Errorf("the %s worker: %+v", name, s)
			}
		}

		// All is there: no prefill worker is asked.
		r.prefill(newRequest(1, 129, 1))
		whole := newRequest(1, 129, 4)
		if o := r.expect(whole, r.start(r.ctx, whole)); isRemote(o) || o.Jobs != 0 {
			t.Errorf("%+v", o)
		}
		if s := poolStats(r.eng); s.Fetched != 6+8 {
			t.Errorf("the decode worker: %+v", s)
		}
		r.expectIdle()
	})
}
