package simcluster

import (
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/replay"
)

// recovery is what came of a request whose worker died in the middle of its answer.
type recovery struct {
	first, second kv.WorkerID
	resumed       int           // tokens of prompt and answer with which the second worker began
	computed      int           // of those, the ones that it had to compute
	pause         time.Duration // from the last token of the first worker to the first one of the second
	gaps          int
}

// recoverAfter runs a request of 4,000 tokens to a cluster of three, the last of which has no
// access to the pool; its worker dies when so many tokens of the answer are out.
func recoverAfter(t *testing.T, pool Pool, got int) recovery {
	t.Helper()
	j := &journal{}
	cfg := Config{Workers: 3, EventDelay: time.Millisecond, Delay: time.Millisecond, Pool: pool, Route: route.Config{Seed: 2}, Faults: Faults{Lease: time.Minute}, Seed: 1}
	request := replay.Request{Blocks: []int64{1}, BlockTokens: 4000, Input: 4000, Output: 1000}
	c, err := newCluster(cfg, &requests{all: []replay.Request{request}}, j)
	if err != nil {
		t.Fatal(err)
	}
	var r recovery
	c.onDecision = func(_ *requestTask, _ *route.Query, d route.Decision) {
		if r.first == 0 {
			r.first = d.Worker.ID
		}
		r.second = d.Worker.ID
	}
	died := kv.Mono(0)
	for !c.isFinished() {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
		if len(c.tasks.all) == 0 {
			continue
		}
		switch task := &c.tasks.all[0]; {
		case died == 0 && task.generated == got:
			died = task.last
			c.crashWorker(uint32(r.first - 1))
		case died != 0 && r.pause == 0 && task.generated > got:
			r.pause = task.last.Sub(died)
			st := c.workers[r.second-1].sched.Stats()
			r.resumed = request.Input + got
			r.computed = r.resumed - int(st.FetchedTokens)
		}
	}
	if len(j.samples) != 1 || j.samples[0].Error != "" || j.samples[0].Output != request.Output {
		t.Fatalf("%+v", j.samples)
	}
	r.gaps = j.gaps
	return r
}

// TestRecoveryFromThePool: a worker dies in the middle of an answer. The request goes on at the other
// worker that can attach the pool, which fetches all but what was not yet copied; no token is lost or
// comes twice. Without a pool the whole prompt is computed again.
func TestRecoveryFromThePool(t *testing.T) {
	const got = 500
	pooled := recoverAfter(t, Pool{Blocks: 4096, Members: 2, Delay: time.Millisecond}, got)
	without := recoverAfter(t, Pool{}, got)
	t.Logf("from the pool: %d of %d tokens computed, a pause of %v; without: %d computed, %v",
		pooled.computed, pooled.resumed, pooled.pause, without.computed, without.pause)
	if pooled.first == pooled.second || pooled.first > 2 || pooled.second > 2 {
		t.Errorf("from worker %d to worker %d, and 1 and 2 can attach the pool", pooled.first, pooled.second)
	}
	if pooled.computed > 16 { // one block, and it was not full
		t.Errorf("%d tokens are computed again, more than a block", pooled.computed)
	}
	if without.computed != without.resumed {
		t.Errorf("without a pool %d of %d tokens are computed", without.computed, without.resumed)
	}
	if 2*pooled.pause > without.pause {
		t.Errorf("recovery takes %v, without a pool %v", pooled.pause, without.pause)
	}
	if pooled.gaps != 999 || without.gaps != 999 {
		t.Errorf("%d and %d gaps between 1000 tokens", pooled.gaps, without.gaps)
	}
}
