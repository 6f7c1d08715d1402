package handoff

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/internal/engine"
	"penstock/internal/plane/bus/bustest"
)

// TestStorm: many requests at a decode worker with little memory, prefill workers which are slow, stand still and die, and
// queues which lose, repeat and delay. Every answer is that of one engine, and nothing is left.
func TestStorm(t *testing.T) {
	var remote, local uint64
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testStorm(t, seed)
				remote, local = remote+s.Remote, local+60-s.Remote-s.Aborted
			})
		})
	}
	if remote < 12 || local < 12 { // how many depends on the order in which goroutines run
		t.Errorf("the test tested little: of 180 requests %d were prefilled elsewhere, and %d locally", remote, local)
	}
}

func testStorm(t *testing.T, seed uint64) DecodeWorkerStats {
	rng := lockedRand{rng: rand.New(rand.NewPCG(seed, 1))}
	r := newRig(t, rigConfig{blocks: []int{16, 16, 64, 128}, queue: newQueue(t), capacity: 16 * 150, change: func(c *DecodeWorkerConfig) {
		c.LandingBytes = 12000 * tokenBytes
	}})
	r.cache.beforeBatch(func() { time.Sleep(2 * time.Millisecond) }) // virtual, as all times here
	for _, n := range r.prefills {
		n.queue.Set(bustest.QueueFaults{Fail: 0.1, Duplicate: 0.2, Delay: 300 * time.Millisecond})
		n.cache.beforeBatch(func() { time.Sleep(rng.upTo(50 * time.Millisecond)) })
		sometimes := func() {
			if rng.upTo(8) == 0 {
				time.Sleep(3 * time.Second)
			}
		}
		n.bulk.during, n.bulk.commit = sometimes, sometimes
		n.calls.beforeCall(engine.MethodProgress, sometimes)
	}
	go func() {
		time.Sleep(5 * time.Second)
		r.prefills[0].kill()
	}()
	var all sync.WaitGroup
	for i := range 60 {
		req := newRequest(i/2, 1+int(rng.upTo(1500)), 1+int(rng.upTo(20)))
		req.ID = fmt.Sprintf("request-%d", i)
		req.Sampling = engine.Sampling{Temperature: float64(i % 2), Seed: uint64(i)}
		begin, cancelAfter := rng.upTo(15*time.Second), time.Hour
		if i%6 == 0 {
			cancelAfter = rng.upTo(2 * time.Second)
		}
		all.Go(func() {
			time.Sleep(begin)
			ctx, cancel := context.WithTimeout(r.ctx, cancelAfter)
			defer cancel()
			got := <-r.start(ctx, req)
			if !errors.Is(got.err, context.DeadlineExceeded) {
				r.compare(req, got)
			}
		})
	}
	all.Wait()
	s := r.decoder.Stats()
	local := uint64(0)
	for _, n := range s.Local {
		local += n
	}
	if s.Remote+local+s.Aborted != 60 {
		t.Errorf("60 requests came: %+v", s)
	}
	t.Logf("%+v", s)
	close(r.outcomes)
	for o := range r.outcomes {
		if limit := testHandoff.Budget + 2*testHandoff.LocalWait; o.Took > limit || o.State == disagg.Decoding && o.Bytes == 0 {
			t.Errorf("%+v", o)
		}
	}
	time.Sleep(testJob.Budget)
	r.expectIdle()
	return s
}

// lockedRand is a random source for several goroutines.
type lockedRand struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// upTo returns a duration, or a number, below n.
func (r *lockedRand) upTo(n time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(r.rng.Int64N(int64(n)))
}
