package simcluster

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/activeseq/replica"
	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/migrate"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/internal/replay"
)

// healing is how long after the last fault everything is well: a dead worker is back
// by then, and the longest waits of routers that asked for a cache in vain are over.
const healing = 3 * time.Minute

// drawFaults draws what goes wrong; each kind is left out now and then.
func drawFaults(t *rapid.T) Faults {
	share := func(name string, most float64) float64 {
		return float64(rapid.IntRange(0, 3).Draw(t, name)) / 3 * most
	}
	return Faults{
		Until:       20 * time.Second,
		RecordsLost: share("lost", 0.3), RecordsRepeated: share("repeated", 0.3),
		RecordsLate: share("late", 0.5), MaxLateness: time.Duration(rapid.IntRange(0, 3).Draw(t, "late by")) * time.Second,
		ResyncsLost: share("resyncs lost", 0.8), LoadsLost: share("loads lost", 0.8), PingsLost: share("pings lost", 0.5),
		CallsBroken: share("calls broken", 0.3),
		Slow:        share("slow", 0.1), SlowBy: rapid.SampledFrom([]int{5, 100}).Draw(t, "slow by"),
		CrashEvery: time.Duration(rapid.IntRange(0, 3).Draw(t, "crash every")) * 5 * time.Second,
		Lease:      time.Duration(rapid.IntRange(1, 10).Draw(t, "lease")) * time.Second,
	}
}

// TestFaults: whatever is lost, repeated, late or dead, every request is over once,
// with all of its tokens or a stated error; nothing leaks; and some time after the
// last fault routers know exactly what is cached.
func TestFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shape{
			requests: rapid.IntRange(1, 150).Draw(t, "requests"), every: 150 * time.Millisecond, roots: 5,
			blocks: 6, blockTokens: 48, output: rapid.IntRange(1, 60).Draw(t, "output"), sessions: rapid.IntRange(0, 5).Draw(t, "sessions"),
		}
		cfg := Config{
			Workers: rapid.IntRange(1, 5).Draw(t, "workers"), Blocks: rapid.SampledFrom([]int{60, 200, 4000}).Draw(t, "blocks"),
			MaxSeqs: rapid.IntRange(1, 8).Draw(t, "seqs"), TokenBudget: rapid.SampledFrom([]int{64, 2048}).Draw(t, "budget"),
			Routers: rapid.IntRange(1, 3).Draw(t, "routers"),
			Sync:    rapid.Bool().Draw(t, "sync"), TrackOutput: rapid.Bool().Draw(t, "track output"),
			EventDelay: time.Duration(rapid.IntRange(0, 2).Draw(t, "event delay")) * 10 * time.Millisecond,
			Delay:      time.Duration(rapid.IntRange(0, 2).Draw(t, "delay")) * time.Millisecond,
			Migration:  migrate.Config{MaxFailures: rapid.SampledFrom([]int{-1, 1, 3}).Draw(t, "limit")},
			MaxWaiting: rapid.SampledFrom([]int{1, 4, 0}).Draw(t, "waiting"), StallTimeout: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "stall"),
			Pool: Pool{
				Blocks: rapid.SampledFrom([]int{0, 20, 4000}).Draw(t, "pool"), Members: rapid.IntRange(0, 3).Draw(t, "members"),
				Delay: time.Duration(rapid.IntRange(0, 2).Draw(t, "copy")) * 50 * time.Millisecond,
			},
			Faults: drawFaults(t), Seed: rapid.Uint64().Draw(t, "seed"),
			PrefillWorkers: rapid.IntRange(0, 3).Draw(t, "prefill workers"), PrefillConcurrency: rapid.IntRange(1, 4).Draw(t, "concurrency"),
			Split: disagg.SplitConfig{
				Policy:                rapid.SampledFrom([]disagg.SplitPolicy{disagg.AlwaysRemote, disagg.ByCost, disagg.ByThreshold}).Draw(t, "split"),
				MaxLocalPrefillLength: 100, MaxPrefillQueueSize: 2, DecodeWeight: 0.1,
			},
			KVLatency: time.Duration(rapid.IntRange(0, 2).Draw(t, "kv latency")) * 20 * time.Millisecond,
		}
		all := s.make(rapid.Uint64().Draw(t, "workload"))
		first, c := disturbed(t, cfg, all)
		checkHealed(t, c)
		if again, _ := disturbed(t, cfg, all); again.String() != first.String() {
			t.Fatal("two runs of one seed differ")
		}
	})
}

// disturbed runs a cluster to its end, looking into it now and then, and then until
// it has had the time to heal.
func disturbed(t *rapid.T, cfg Config, all []replay.Request) (*journal, *cluster) {
	j := &journal{}
	c, err := newCluster(cfg, &requests{all: all}, j)
	if err != nil {
		t.Fatal(err)
	}
	tries := map[string]int{}
	c.onDecision = func(task *requestTask, q *route.Query, d route.Decision) {
		most := max(c.cfg.Migration.MaxFailures, 0) + 1
		if cfg.MaxWaiting > 0 || cfg.Faults.DrainShare > 0 { // what is full or leaves does not count
			most = 64
		}
		if tries[task.key]++; tries[task.key] > most {
			t.Fatalf("request %d is tried %d times", task.request.Index, tries[task.key])
		}
		for _, o := range q.Overlaps {
			if o.Depth() == o.Blocks[kv.TierPool] {
				continue // all of it is in the pool, whatever is known of the worker
			}
			r := &c.routers[task.router]
			if h, known := r.tracker.HealthOf(o.Worker); !known || h.State != kvfeed.Live || h.Epoch < r.members[o.Worker.ID-1].epoch {
				t.Fatalf("worker %d is matched in doubt, or by an earlier life: %+v", o.Worker.ID, h)
			}
		}
	}
	for n := 0; !c.isFinished(); n++ {
		step(t, c)
		if n%500 == 0 {
			checkMachines(t, c)
		}
	}
	checkAnswers(t, all, j)
	gaps := 0
	for i := range j.samples {
		gaps += max(j.samples[i].Output-1, 0)
		if s := &j.samples[i]; s.Error != "" && s.Error != "unavailable" && (s.Error != "overloaded" || cfg.MaxWaiting == 0) {
			t.Fatalf("request %d: %s", s.Index, s.Error)
		}
	}
	if j.gaps != gaps {
		t.Fatalf("%d gaps between tokens, want %d: some came twice", j.gaps, gaps)
	}
	for end := max(c.now, kv.Mono(cfg.Faults.Until)).Add(healing); c.now < end; {
		step(t, c)
	}
	return j, c
}

func step(t *rapid.T, c *cluster) {
	if err := c.runEvent(); err != nil {
		t.Fatal(err)
	}
}

// checkMachines states the invariants of all machines, and that the routers have
// reserved what is on its way and nothing else.
func checkMachines(t *rapid.T, c *cluster) {
	active := make([]int, len(c.routers))
	prefilling := map[[2]uint32]bool{} // router and worker
	vacant := map[uint32]bool{}
	for _, at := range c.tasks.vacant {
		vacant[at] = true
	}
	for i := range c.tasks.all {
		if task := &c.tasks.all[i]; !vacant[uint32(i)] && task.call != noCall {
			active[task.router]++
			if !task.prefilled {
				prefilling[[2]uint32{task.router, task.worker}] = true
			}
		}
	}
	for i := range c.routers {
		r := &c.routers[i]
		for _, err := range []error{r.tracker.Check(), r.index.Check(), r.active.Check(), r.health.Check(c.now)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := r.active.Len(); n > active[i] {
			t.Fatalf("router %d has %d reservations for %d requests", i, n, active[i])
		}
		for j := range c.workers {
			l := r.active.LoadOf(c.workers[j].id)
			if l.PrefillTokens > r.active.OthersShare(c.workers[j].id).PrefillTokens && !prefilling[[2]uint32{uint32(i), uint32(j)}] {
				t.Fatalf("router %d counts %d tokens to prefill on worker %d, which has prefilled all", i, l.PrefillTokens, j+1)
			}
		}
	}
	for i := range c.workers {
		if err := c.workers[i].sched.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkHealed: nothing is reserved or held, and each router knows of each worker's
// cache what is in it.
func checkHealed(t *rapid.T, c *cluster) {
	checkMachines(t, c)
	if n := c.calls.usedCount() + c.batches.usedCount() + c.records.usedCount() + c.requests.usedCount(); n != 0 {
		t.Fatalf("%d calls, batches, parcels and requests are left", n)
	}
	for i := range c.routers {
		checkExchange(t, c, &c.routers[i])
	}
	if n := c.jobs.usedCount() + c.decodeNotes.usedCount() + len(c.jobQueue) + c.queuedTokens; n != 0 || len(c.pulls) != c.cfg.PrefillWorkers*c.cfg.PrefillConcurrency {
		t.Fatalf("%d jobs and notes are left, %d pulls", n, len(c.pulls))
	}
	for i := range c.workers {
		w := &c.workers[i]
		if st := w.sched.Stats(); !w.alive || st.UsedBlocks != 0 || w.heldCalls != 0 || w.decoding != 0 || w.awaiting != 0 || len(w.inbox)+len(w.aborts)+len(w.imports) != 0 {
			t.Fatalf("worker %d: alive %t, %d calls, %+v", w.id.ID, w.alive, w.heldCalls, st)
		}
		if w.isPrefill(c) {
			continue
		}
		want := cached(w)
		for j := range c.routers {
			r := &c.routers[j]
			if n := r.active.Len(); n != 0 {
				t.Fatalf("router %d has %d reservations at the end", j, n)
			}
			if h, _ := r.tracker.HealthOf(w.id); h.State != kvfeed.Live || h.Epoch != w.epoch || h.LastSeq != w.log.Next()-1 {
				t.Fatalf("worker %d of epoch %d at event %d: %+v", w.id.ID, w.epoch, w.log.Next(), h)
			}
			if got := r.index.AppendBlocks(nil, w.id); !slices.Equal(got, want) {
				t.Fatalf("router %d knows %d blocks of worker %d, which has %d", j, len(got), w.id.ID, len(want))
			}
			if st, ok := r.health.StatusOf(w.id.ID); !ok || st.Quarantined {
				t.Fatalf("worker %d is in quarantine: %+v", w.id.ID, st)
			}
		}
	}
	checkPooled(t, c)
}

// checkPooled: routers take nothing to be in the pool that is not, and nothing to be on its way.
// The last that a worker said before it died may be lost, and then an end with it.
func checkPooled(t *rapid.T, c *cluster) {
	if c.pool == nil {
		return
	}
	f := &c.cfg.Faults
	for i := range c.routers {
		st := c.routers[i].pools.Stats()
		if st.InTransit != 0 || st.Doubtful != 0 || st.Pooled > c.pool.Len() {
			t.Fatalf("router %d: %+v, in the pool are %d", i, st, c.pool.Len())
		}
		if err := c.routers[i].pools.Check(); err != nil {
			t.Fatal(err)
		}
		if f.RecordsLost+f.RecordsLate+f.RecordsRepeated == 0 && f.CrashEvery == 0 && st.Pooled != c.pool.Len() {
			t.Fatalf("router %d knows %d blocks in the pool, there are %d", i, st.Pooled, c.pool.Len())
		}
	}
}

// checkExchange: a router that takes part knows all others, is told of nothing that is
// not there any more, and what each of them said last is what it knows.
func checkExchange(t *rapid.T, c *cluster, r *simRouter) {
	if n := r.active.AdoptedCount(); n != 0 {
		t.Fatalf("router %d counts %d requests of others at the end", r.number, n)
	}
	if r.replica == nil {
		return
	}
	if err := r.replica.Check(); err != nil {
		t.Fatal(err)
	}
	peers := r.replica.AppendPeers(nil)
	if len(peers) != len(c.routers)-1 {
		t.Fatalf("router %d knows %d others", r.number, len(peers))
	}
	for _, p := range peers {
		if p.Requests != 0 || p.Lacking || c.now.Sub(p.Agreed) > replica.ConvergenceTime {
			t.Fatalf("router %d has of another: %+v at %v", r.number, p, sinceStart(c.now))
		}
	}
}

// TestSyncIsExact: without faults each router counts, shortly after, what all have sent. In mode time routers count the
// progress of a prefill from when they heard of it, so loads differ by the delay of the messages.
func TestSyncIsExact(t *testing.T) {
	c, err := newCluster(Config{Workers: 4, Routers: 3, Sync: true, Delay: time.Millisecond, Route: route.Config{Mode: route.KV}}, &requests{all: assistants.make(3)}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	looks, shared := 0, 0
	for !c.isFinished() {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
		quiet := c.syncMessages.usedCount() == 0
		for i := range c.routers {
			quiet = quiet && !c.routers[i].replica.HasPending()
		}
		if !quiet || c.now < kv.Mono(time.Second) {
			continue
		}
		looks++
		for i := range c.workers {
			id := c.workers[i].id
			want := c.routers[0].active.LoadOf(id)
			for j := range c.routers {
				r := &c.routers[j]
				shared += r.active.OthersShare(id).Requests
				if got := r.active.LoadOf(id); got != want {
					t.Fatalf("at %v router %d counts %+v on worker %d, the first one %+v", sinceStart(c.now), j, got, id.ID, want)
				}
			}
		}
	}
	if looks == 0 || shared == 0 {
		t.Errorf("%d looks, %d requests of others", looks, shared)
	}
}

// cached is what a worker has in its cache, in the order of an index.
func cached(w *simWorker) []prefix.Block {
	var all []prefix.Block
	for _, ev := range w.sched.AppendDump(nil) {
		seq := ev.Parent
		for i, b := range ev.Blocks {
			seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
			all = append(all, prefix.Block{Seq: seq})
		}
	}
	slices.SortFunc(all, func(a, b prefix.Block) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

// chainOf returns the prefixes of a request's prompt.
func (c *cluster) chainOf(t *testing.T, r *replay.Request) []kv.SeqHash {
	h, err := kv.NewHasher(c.cfg.BlockSize, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	return kv.AppendChain(nil, h.AppendBlockHashes(nil, replay.AppendTokens(nil, r, c.cfg.Vocabulary), nil))
}

// TestOverlapsAreTrue: without faults no decision believes more of a cache than is in it, as long as nothing is evicted;
// with predictions, than will be in it when the prompts which wait there are computed.
func TestOverlapsAreTrue(t *testing.T) {
	matched := 0
	for seed := range uint64(10) {
		cfg := Config{Workers: 4, EventDelay: 30 * time.Millisecond, Seed: seed / 2}
		if seed%2 == 1 {
			cfg.PredictedTTL = 2 * time.Second
		}
		c, err := newCluster(cfg, &requests{all: assistants.make(cfg.Seed)}, &journal{})
		if err != nil {
			t.Fatal(err)
		}
		c.onDecision = func(_ *requestTask, q *route.Query, d route.Decision) {
			w := &c.workers[d.Worker.ID-1]
			have := map[kv.SeqHash]bool{}
			for _, b := range cached(w) {
				have[b.Seq] = true
			}
			for i := range c.tasks.all {
				if o := &c.tasks.all[i]; cfg.PredictedTTL > 0 && o.hasWorker && o.call != noCall && kv.WorkerID(o.worker+1) == d.Worker.ID && !o.prefilled {
					for _, s := range c.chainOf(t, &o.request) {
						have[s] = true
					}
				}
			}
			truth := 0
			for truth < len(q.Chain) && have[q.Chain[truth]] {
				truth++
			}
			if d.OverlapBlocks > truth {
				t.Fatalf("worker %d is believed to hold %d blocks of %d", d.Worker.ID, d.OverlapBlocks, truth)
			}
			matched += d.OverlapBlocks
		}
		for !c.isFinished() {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if matched == 0 {
		t.Error("nothing was ever matched")
	}
}

// TestIndexFollows: without faults and delay, what a router knows of an idle worker
// is what it has, however much is evicted.
func TestIndexFollows(t *testing.T) {
	c, err := newCluster(Config{Workers: 3, Blocks: 80}, &requests{all: assistants.make(3)}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	evicted, looks := uint64(0), 0
	for n := 0; !c.isFinished(); n++ {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
		if n%20 != 0 || c.records.usedCount() > 0 {
			continue
		}
		for i := range c.workers {
			w := &c.workers[i]
			evicted = max(evicted, w.sched.Stats().Evictions)
			if w.busy {
				continue
			}
			looks++
			if got, want := c.routers[0].index.AppendBlocks(nil, w.id), cached(w); !slices.Equal(got, want) {
				t.Fatalf("%d blocks are known of worker %d, which has %d", len(got), w.id.ID, len(want))
			}
		}
	}
	if evicted == 0 || looks == 0 {
		t.Errorf("%d blocks were evicted, %d looks taken", evicted, looks)
	}
}

// TestStrangers: what a worker publishes that discovery does not know goes after the
// grace, whoever else comes and goes meanwhile.
func TestStrangers(t *testing.T) {
	c, err := newCluster(Config{Workers: 2}, &requests{}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	r, w := &c.routers[0], &c.workers[1]
	w.registered = false
	c.updateMembers(0)
	r.acceptRecord(c, &kvfeed.Record{Worker: w.id, Epoch: w.epoch, First: 1, BlockSize: 16, Events: []kv.Event{
		{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: []kv.BlockHash{7}},
	}})
	for range 3 {
		c.now = c.now.Add(unregisteredGrace / 3)
		c.updateMembers(0)
		if n := len(r.index.AppendBlocks(nil, w.id)); n != 1 {
			t.Fatalf("%d blocks are known after %v", n, sinceStart(c.now))
		}
	}
	r.runUpkeep(c)
	if _, known := r.tracker.HealthOf(w.id); known || len(r.index.AppendBlocks(nil, w.id)) != 0 {
		t.Error("the stranger's blocks are still known")
	}
}

// TestLateLife: records of a life that discovery knows to be over are not taken, though
// nothing of the new one has come.
func TestLateLife(t *testing.T) {
	c, err := newCluster(Config{Workers: 1}, &requests{}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	r, w := &c.routers[0], &c.workers[0]
	old := w.epoch
	w.registeredEpoch++
	c.updateMembers(0)
	r.acceptRecord(c, &kvfeed.Record{Worker: w.id, Epoch: old, First: 1, BlockSize: 16, Events: []kv.Event{
		{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: []kv.BlockHash{7}},
	}})
	if n := len(r.index.AppendBlocks(nil, w.id)); n != 0 {
		t.Errorf("%d blocks of a life that is over are known", n)
	}
}

// TestDescriptionsAreRare: however often routers ask, a worker describes its cache once
// a second.
func TestDescriptionsAreRare(t *testing.T) {
	c, err := newCluster(Config{Workers: 1}, &requests{}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	w := &c.workers[0]
	before := w.log.Next()
	for at := time.Duration(0); at < 10*time.Second; at += 100 * time.Millisecond {
		c.sendResync(kv.Mono(at), 0, kvfeed.ResyncRequest{})
	}
	for c.now < kv.Mono(11*time.Second) {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.log.Next() - before; n != 10 { // of an empty cache: an event that says so
		t.Errorf("%d descriptions in ten seconds, want 10", n)
	}
}

// TestPlannedLeaves: workers that leave as planned fail no request, even where none
// may be made good.
func TestPlannedLeaves(t *testing.T) {
	moved := 0
	for seed := range uint64(10) {
		all := shape{requests: 150, every: 150 * time.Millisecond, roots: 5, blocks: 6, blockTokens: 48, output: 60}.make(seed)
		cfg := Config{
			Workers: 3, Seed: seed, Migration: migrate.Config{MaxFailures: -1, FirstWait: 10 * time.Second}, Delay: time.Millisecond,
			Faults: Faults{CrashEvery: 5 * time.Second, DrainShare: 1, Drain: 200 * time.Millisecond, MaxDowntime: 2 * time.Second, MaxLateness: 100 * time.Millisecond, LoadsLost: 1},
		}
		j := &journal{}
		c, err := newCluster(cfg, &requests{all: all}, j)
		if err != nil {
			t.Fatal(err)
		}
		c.onDecision = func(_ *requestTask, q *route.Query, _ route.Decision) {
			if q.Moving {
				moved++
			}
		}
		held := make([]int, cfg.Workers)
		for !c.isFinished() {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
			for i := range c.workers {
				w := &c.workers[i]
				if w.draining && w.heldCalls > held[i] {
					t.Fatalf("worker %d took a call though it leaves", i+1)
				}
				held[i] = w.heldCalls
			}
		}
		checkAnswers(t, all, j)
		for _, s := range j.samples {
			if s.Error != "" {
				t.Errorf("seed %d: %+v", seed, s)
			}
		}
	}
	if moved == 0 {
		t.Error("no request had to move")
	}
}
