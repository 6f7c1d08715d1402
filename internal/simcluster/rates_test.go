package simcluster

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/splitmix"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// unlike returns requests at equal distances whose prompts share nothing.
func unlike(n int, every time.Duration, input, output int) []replay.Request {
	all := make([]replay.Request, n)
	for i := range all {
		all[i] = replay.Request{Index: i, At: time.Duration(i) * every, Input: input + 37*(i%20), Output: output}
	}
	return all
}

// TestWrongRatesAreRightSoon: a router which takes prefills to be twice as fast, or half as fast, as they are knows
// their time within a fifth after 50 requests.
func TestWrongRatesAreRightSoon(t *testing.T) {
	for _, factor := range []float64{0.5, 2} {
		t.Run(fmt.Sprint(factor), func(t *testing.T) {
			timing := plain()
			timing.Prefill = sim.Prefill{Pass: 10 * factor, Token: 0.02 * factor} // the prior is 10 ms and 0.02 ms
			c, err := newCluster(Config{Workers: 2, Timing: timing}, &requests{all: unlike(50, 100*time.Millisecond, 1500, 4)}, &journal{})
			if err != nil {
				t.Fatal(err)
			}
			prompt := func() float64 {
				return c.routers[0].router.Rates().WorkerOf(c.workers[0].id).PrefillMs(2000)
			}
			want := 50 * factor
			if before := prompt(); math.Abs(before-50) > 1 {
				t.Fatalf("before any request 2,000 tokens take %g ms, want 50", before)
			}
			for !c.isFinished() {
				if err := c.runEvent(); err != nil {
					t.Fatal(err)
				}
			}
			// The first token comes with the step which ends the prefill, of 5 ms.
			if got := prompt(); got < want*0.8 || got > want*1.2+5 {
				t.Errorf("after 50 requests 2,000 tokens take %g ms, want %g", got, want)
			}
		})
	}
}

// TestSlowWorkerGetsItsShare: a worker of four which becomes half as fast gets, 10 s later, no more than the work that
// it can do in the time in which the others do theirs: a seventh, and not a quarter. It still gets some.
func TestSlowWorkerGetsItsShare(t *testing.T) {
	const slow, settled, end = 30 * time.Second, 40 * time.Second, 100 * time.Second
	cfg := Config{Workers: 4, Timing: plain(), SlowDowns: []SlowDown{{Worker: 1, At: slow, Factor: 2}}}
	var before, after [5]int
	for _, s := range run(t, cfg, unlike(int(end/(50*time.Millisecond)), 50*time.Millisecond, 1000, 4)).samples {
		switch {
		case s.Error != "":
			t.Fatalf("%+v", s)
		case s.Sent < slow:
			before[s.Worker]++
		case s.Sent >= settled:
			after[s.Worker]++
		}
	}
	share := func(n [5]int) float64 { return float64(n[1]) / float64(n[1]+n[2]+n[3]+n[4]) }
	if got := share(before); got < 0.22 || got > 0.28 {
		t.Errorf("before it slows down, worker 1 gets %.3f of the requests: %v", got, before)
	}
	if got := share(after); got < 0.02 || got > 1./7 {
		t.Errorf("10 s after it slowed down, worker 1 gets %.3f of the requests: %v", got, after)
	}
}

// TestBurstsAtManyRouters: 32 requests at one instant or 10 ms apart, every 3 s, some of them 40 times as long as
// others, wait for their first tokens at most 15 % longer in the mean if they come to four or eight routers, which hear of
// each other 3 ms later, than if one router gets them all.
func TestBurstsAtManyRouters(t *testing.T) {
	const bursts, size = 40, 32
	timing := plain()
	timing.Prefill.Token = 0.02
	requests := func(apart time.Duration) (all []replay.Request) {
		draw := splitmix.Source(1)
		for burst := range bursts {
			for i := range size {
				length := 200 + draw.Below(1000)
				if draw.Below(10) == 0 {
					length *= 40
				}
				at := time.Duration(burst)*3*time.Second + time.Duration(i)*apart
				all = append(all, replay.Request{Index: len(all), At: at, Input: length, Output: 4})
			}
		}
		return all
	}
	mean := func(routers int, all []replay.Request) time.Duration {
		sum := time.Duration(0)
		for _, s := range run(t, Config{Workers: 8, Routers: routers, Sync: true, EventDelay: 2 * time.Millisecond, Timing: timing}, all).samples {
			if s.Error != "" {
				t.Fatalf("%+v", s)
			}
			sum += s.First - s.Sent
		}
		return sum / (bursts * size)
	}
	for _, apart := range []time.Duration{0, 10 * time.Millisecond} {
		all := requests(apart)
		one := mean(1, all)
		for _, routers := range []int{4, 8} {
			if got := mean(routers, all); got > one*115/100 {
				t.Errorf("%v apart, %d routers: %v in the mean, one: %v", apart, routers, got, one)
			}
		}
	}
}

// TestHotPrefixIsCopied: requests behind two long prompts, which no queue drives away, do not stay with the two workers
// which computed these first, where answers take longer. The prompts are computed a few times more.
func TestHotPrefixIsCopied(t *testing.T) {
	const workers, prefix, block = 8, 512, 16
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	var all []replay.Request
	for i := range 3000 {
		r := replay.Request{Index: i, At: time.Duration(i) * 100 * time.Millisecond, BlockTokens: block, Output: 80}
		for b := range prefix {
			r.Blocks = append(r.Blocks, int64(1+1000*(i%2)+b))
		}
		for b := range 1 + i*7%60 {
			r.Blocks = append(r.Blocks, int64(1e6+100*i+b))
		}
		r.Input = len(r.Blocks) * block
		all = append(all, r)
	}
	var got [workers + 1]int
	computed := 0
	for _, s := range run(t, Config{Workers: workers, Timing: timing}, all).samples {
		if s.Index >= len(all)/2 {
			got[s.Worker]++
		}
		if s.Cached < prefix*block/2 {
			computed++
		}
	}
	if most := slices.Max(got[:]); most > 2*len(all)/2/workers {
		t.Errorf("the workers got %v of the second half of the requests", got[1:])
	}
	if computed > workers {
		t.Errorf("the two prompts were computed %d times, at %d workers", computed, workers)
	}
}

// TestPacedSessions: 60 conversations behind one system prompt, one request at a time, on engines which are as fast as the
// router assumes at first, and four times as fast. Four caches hold the histories of all, and one does not: all workers
// are used, and at least 75 of the 83 % of tokens which were sent before are cached.
func TestPacedSessions(t *testing.T) {
	const sessions, turns, block = 60, 6, 16
	var all []replay.Request
	for turn := range turns {
		for s := range sessions {
			r := replay.Request{Index: len(all), At: time.Duration(len(all)) * time.Second, BlockTokens: block, Output: 2}
			for b := range 800 / block {
				r.Blocks = append(r.Blocks, int64(1+b))
			}
			for b := range (3000 + 400*turn) / block {
				r.Blocks = append(r.Blocks, int64(1000+1000*s+b))
			}
			r.Input = len(r.Blocks) * block
			all = append(all, r)
		}
	}
	for _, speedup := range []float64{1, 4} {
		timing, err := sim.PresetTiming("mocker")
		if err != nil {
			t.Fatal(err)
		}
		timing.Speedup = speedup
		used := map[kv.WorkerID]int{}
		cached, sent := 0, 0
		for _, s := range run(t, Config{Workers: 4, Blocks: 8192, BlockSize: block, Timing: timing}, all).samples {
			used[kv.WorkerID(s.Worker)]++
			cached, sent = cached+s.Cached, sent+s.Input
		}
		if share := float64(cached) / float64(sent); share < 0.75 || len(used) != 4 {
			t.Errorf("at %g times the speed %.3f of the tokens are cached, and the workers got %v", speedup, share, used)
		}
	}
}

// TestOthersQueuedPromptsAreReuse: a prompt which another router has sent, and which is not computed yet, is worth
// waiting for: the next request with it goes there.
func TestOthersQueuedPromptsAreReuse(t *testing.T) {
	const pairs, prefix, block = 20, 512, 16
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	var all []replay.Request
	for i := range 2 * pairs { // the requests of a pair come to different routers, 80 ms apart
		r := replay.Request{Index: i, At: time.Duration(i/2)*3*time.Second + time.Duration(i%2)*80*time.Millisecond, BlockTokens: block, Output: 4}
		for b := range prefix {
			r.Blocks = append(r.Blocks, int64(1+1000*(i/2)+b))
		}
		r.Blocks = append(r.Blocks, int64(1e6+i))
		r.Input = len(r.Blocks) * block
		all = append(all, r)
	}
	alone := 0
	for _, s := range run(t, Config{Workers: 4, Routers: 2, Sync: true, EventDelay: 2 * time.Millisecond, PredictedTTL: 2 * time.Second, Timing: timing}, all).samples {
		if s.Index%2 == 1 && s.Cached < prefix*block/2 {
			alone++
		}
	}
	if alone > 0 {
		t.Errorf("%d of %d requests were sent to workers which computed the prompt again", alone, pairs)
	}
}

// TestEvictionsAreBlocks: a worker which evicts three times as many blocks as another one has three times its share.
func TestEvictionsAreBlocks(t *testing.T) {
	c, err := newCluster(Config{Workers: 2}, &requests{all: assistants.make(1)}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	for c.now < kv.Mono(time.Second) {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
	}
	r := &c.routers[0]
	for i, blocks := range []int{30, 10} {
		ev := kv.Event{Kind: kv.Removed, Tier: kv.TierDevice, Seqs: make([]kv.SeqHash, blocks)}
		r.applyVerdict(c.now, c.workers[i].id, []kv.Event{ev}, kvfeed.FeedVerdict{Outcome: kvfeed.Apply})
	}
	for i, want := range []float64{1.5, 0.5} {
		if got := r.router.Rates().WorkerOf(c.workers[i].id).EvictedShare(c.now, c.cfg.Blocks); got != want {
			t.Errorf("worker %v: %g, want %g", c.workers[i].id, got, want)
		}
	}
}
