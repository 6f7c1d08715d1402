package simcluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// RecordDisagg implements DisaggRecorder.
func (j *journal) RecordDisagg(u replay.DisaggUse) {
	j.disagg = u
	fmt.Fprintf(j, "%+v\n", u)
}

// splitFleet returns decode and prefill workers whose requests are divided by a policy. A token has 1,000 bytes.
func splitFleet(decode, prefill int, policy disagg.SplitPolicy, change func(*Config)) Config {
	cfg := Config{
		Workers: decode, PrefillWorkers: prefill, Route: route.Config{Mode: route.RoundRobin}, Timing: plain(),
		Split: disagg.DefaultSplit(),
	}
	cfg.Split.Policy = policy
	cfg.Timing.KV = sim.KV{Bytes: 1000}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// ownPrompt returns a request for so many tokens whose prompt shares nothing with others.
func ownPrompt(index int, at time.Duration, blocks, output int) replay.Request {
	r := replay.Request{Index: index, At: at, Output: output, BlockTokens: 16, Input: 16 * blocks}
	for i := range blocks {
		r.Blocks = append(r.Blocks, int64(1000*(index+1)+i))
	}
	return r
}

// firstTokens returns the times of the first tokens.
func firstTokens(t *testing.T, cfg Config, all []replay.Request) (string, replay.DisaggUse) {
	t.Helper()
	j := run(t, cfg, all)
	slices.SortFunc(j.samples, func(a, b replay.Sample) int { return a.Index - b.Index })
	var times []string
	for i := range j.samples {
		if s := &j.samples[i]; s.Error != "" {
			t.Fatalf("%+v", s)
		}
		times = append(times, fmt.Sprint(j.samples[i].First))
	}
	return strings.Join(times, " "), j.disagg
}

// TestRemotePrefillTimes: a prompt of 64 tokens takes 16.4 ms at a prefill worker, then its blocks take their time, and
// then the decode worker computes its last block in 16.6 ms. Where it is decoded, a prompt takes 21.4 ms.
func TestRemotePrefillTimes(t *testing.T) {
	const always = disagg.AlwaysRemote
	one := []replay.Request{ownPrompt(0, 0, 4, 1)}
	for _, tt := range []struct {
		name     string
		cfg      Config
		requests []replay.Request
		want     string
		remote   int64
		moved    int64 // bytes
	}{
		{"locally", splitFleet(1, 1, disagg.NeverRemote, nil), one, "21.4ms", 0, 0},
		{"blocks which take no time", splitFleet(1, 1, always, nil), one, "33ms", 1, 48000},
		{
			"48 tokens at 16 MB/s take 3 ms, and 2 ms beside that",
			splitFleet(1, 1, always, func(c *Config) { c.KVLatency, c.KVBandwidth = 2*time.Millisecond, 0.016 }), one, "38ms", 1, 48000,
		},
		{
			"messages: to the decode worker, the queue, for the prompt and back, and to the client",
			splitFleet(1, 1, always, func(c *Config) { c.Delay = time.Millisecond }), one, "38ms", 1, 48000,
		},
		{"a prompt of one block has nothing to move", splitFleet(1, 1, always, nil), []replay.Request{ownPrompt(0, 0, 1, 1)}, "16.6ms", 0, 0},
		{
			"the decode worker holds it",
			splitFleet(1, 1, always, nil),
			[]replay.Request{ownPrompt(0, 0, 4, 1), ownPromptAgain(0, 1, time.Second)},
			"33ms 1.0166s", 1, 48000,
		},
		{
			"the prefill worker has it in its cache, not the other decode worker: 11.6 and 16.6 ms",
			splitFleet(2, 1, always, nil),
			[]replay.Request{ownPrompt(0, 0, 4, 1), ownPromptAgain(0, 1, time.Second)},
			"33ms 1.0282s", 2, 96000,
		},
		{
			"blocks of two prompts of one pass leave one after the other",
			splitFleet(2, 1, always, func(c *Config) { c.KVBandwidth, c.PrefillConcurrency = 0.016, 3 }),
			[]replay.Request{ownPrompt(0, 0, 4, 1), ownPrompt(1, 0, 4, 1), ownPrompt(2, 0, 4, 1)},
			"36ms 58.8ms 61.8ms", 3, 144000,
		},
		{
			"two prefill workers",
			splitFleet(2, 2, always, nil),
			[]replay.Request{ownPrompt(0, 0, 4, 1), ownPrompt(1, 0, 4, 1)},
			"33ms 33ms", 2, 96000,
		},
	} {
		got, u := firstTokens(t, tt.cfg, tt.requests)
		if got != tt.want || u.Remote != tt.remote || u.BytesMoved != tt.moved || u.Remote+u.Local != int64(len(tt.requests)) {
			t.Errorf("%s: first tokens at %s, want %s: %+v", tt.name, got, tt.want, u)
		}
	}
}

// ownPromptAgain is ownPrompt of 4 blocks with the prompt of an earlier request.
func ownPromptAgain(of, index int, at time.Duration) replay.Request {
	r := ownPrompt(of, at, 4, 1)
	r.Index = index
	return r
}

// runWhole runs a cluster to its end and then as long as jobs and notes are on their way, and returns it.
func runWhole(t *testing.T, cfg Config, all []replay.Request) (*cluster, *journal) {
	t.Helper()
	j := &journal{}
	c, err := newCluster(cfg, &requests{all: all}, j)
	if err != nil {
		t.Fatal(err)
	}
	for end := kv.Mono(0); end == 0 || c.now < end; {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
		if end == 0 && c.isFinished() {
			end = c.now.Add(time.Minute)
		}
	}
	checkAnswers(t, all, j)
	return c, j
}

// TestDecodeWorkersComputeTails: decode workers compute at most a block of each remote prompt, blocks and bytes add up,
// and nothing is held at the end.
func TestDecodeWorkersComputeTails(t *testing.T) {
	all := assistants.make(4)
	for _, policy := range []disagg.SplitPolicy{disagg.AlwaysRemote, disagg.ByCost, disagg.ByThreshold} {
		c, j := runWhole(t, splitFleet(3, 2, policy, func(c *Config) { c.KVLatency, c.Split.MaxLocalPrefillLength = time.Millisecond, 300 }), all)
		u := c.disaggUse()
		switch {
		case u.Remote == 0 || u.Remote+u.Local != int64(len(all)) || u.Cancelled != 0:
			t.Errorf("%v: %+v", policy, u)
		case u.RemoteTail > u.Remote*int64(c.cfg.BlockSize) || u.RemoteTail < u.Remote:
			t.Errorf("%v: decode workers computed %d tokens of %d remote prompts, in blocks of %d", policy, u.RemoteTail, u.Remote, c.cfg.BlockSize)
		case u.BytesMoved%(1000*int64(c.cfg.BlockSize)) != 0 || u.QueueWait.Count != u.Jobs:
			t.Errorf("%v: %+v", policy, u)
		case policy == disagg.AlwaysRemote && u.LocalReasons["nothing to move"]+u.LocalReasons["decided"] != int(u.Local):
			t.Errorf("%v: %+v", policy, u)
		}
		for i := range c.workers {
			w := &c.workers[i]
			if st := w.sched.Stats(); st.UsedBlocks != 0 || st.Held != 0 || w.sched.Check() != nil || w.decoding != 0 {
				t.Errorf("%v: worker %d: %+v, %v", policy, i+1, st, w.sched.Check())
			}
		}
		if n := c.jobs.usedCount() + c.decodeNotes.usedCount() + c.calls.usedCount() + c.queuedTokens; n != 0 {
			t.Errorf("%v: %d jobs, notes and calls are left", policy, n)
		}
		if again := run(t, c.cfg, all); len(again.samples) != len(j.samples) || !strings.HasPrefix(again.String(), j.String()) {
			t.Errorf("%v: two runs differ", policy)
		}
	}
}

// TestNeverRemoteIsOneRole: a fleet which sends no prompt away serves as one without prefill workers.
func TestNeverRemoteIsOneRole(t *testing.T) {
	all := assistants.make(5)
	for _, mode := range []route.Mode{route.Time, route.KV} {
		divided := splitFleet(3, 2, disagg.NeverRemote, func(c *Config) { c.Route.Mode = mode })
		alone := divided
		alone.PrefillWorkers = 0
		want, got := run(t, alone, all).String(), run(t, divided, all)
		if !strings.HasPrefix(got.String(), want) || got.disagg.Local != int64(len(all)) || got.disagg.Jobs != 0 {
			t.Errorf("%s: samples differ: %+v", mode, got.disagg)
		}
	}
}

// TestIdlePrefillWorkers: with prefill workers which are idle, and blocks which take no time, a first token comes at
// most two short passes later than from a decode worker alone: that of the prompt's end, and one which had begun. When
// the decode worker is busy it comes sooner.
func TestIdlePrefillWorkers(t *testing.T) {
	var all []replay.Request
	for i := range 60 {
		all = append(all, ownPrompt(i, time.Duration(i)*20*time.Millisecond, 40, 30))
	}
	local := run(t, splitFleet(2, 8, disagg.NeverRemote, nil), all)
	remote := run(t, splitFleet(2, 8, disagg.AlwaysRemote, nil), all)
	for _, j := range []*journal{local, remote} {
		slices.SortFunc(j.samples, func(a, b replay.Sample) int { return a.Index - b.Index })
	}
	sooner := 0
	for i := range local.samples {
		a, b := local.samples[i].First, remote.samples[i].First
		if b > a+2*25*time.Millisecond {
			t.Errorf("request %d: first token at %v, alone at %v", i, b, a)
		}
		if b < a {
			sooner++
		}
	}
	if sooner < 30 {
		t.Errorf("only %d of %d first tokens came sooner", sooner, len(all))
	}
}

// TestPrefillWorkerCrash: when prefill workers die, their prompts go to others, or are computed by the decode workers;
// none is lost. Without any the fleet serves on.
func TestPrefillWorkerCrash(t *testing.T) {
	var all []replay.Request
	for i := range 40 {
		all = append(all, ownPrompt(i, time.Duration(i)*50*time.Millisecond, 40, 5))
	}
	for _, prefill := range []int{1, 3} {
		j := &journal{}
		c, err := newCluster(splitFleet(2, prefill, disagg.AlwaysRemote, func(c *Config) { c.Faults.MaxDowntime = time.Hour }), &requests{all: all}, j)
		if err != nil {
			t.Fatal(err)
		}
		for crashed := false; !c.isFinished(); {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
			if p := &c.workers[c.cfg.Workers]; !crashed && sinceStart(c.now) > 500*time.Millisecond && p.heldCalls > 0 {
				crashed = true
				c.crashWorker(p.number)
			}
		}
		checkAnswers(t, all, j)
		u := c.disaggUse()
		for i := range j.samples {
			if s := &j.samples[i]; s.Error != "" || prefill == 3 && s.First > s.Sent+time.Second { // the silence of a dead one takes longer
				t.Errorf("%d prefill workers: %+v", prefill, s)
			}
		}
		if prefill == 1 && (u.LocalReasons["queue too slow"] == 0 || u.Decisions["there are no prefill workers"] == 0 && u.Local < 20) {
			t.Errorf("one prefill worker: %+v", u)
		}
		if prefill == 3 && (u.Jobs <= u.Remote || u.Local != 0) {
			t.Errorf("three prefill workers: %+v", u)
		}
	}
}

// TestSplitConfigIsChecked: what cannot be is refused.
func TestSplitConfigIsChecked(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.PrefillWorkers = -1 },
		func(c *Config) { c.PrefillWorkers = maxPrefillWorkers + 1 },
		func(c *Config) { c.PrefillConcurrency = -1 },
		func(c *Config) { c.KVLatency = -1 },
		func(c *Config) { c.KVBandwidth = -1 },
		func(c *Config) { c.KVBandwidth = 1e-9 },
		func(c *Config) { c.Split.Policy = 77 },
		func(c *Config) { c.Handoff = disagg.HandoffConfig{MaxAttempts: 1} },
	} {
		cfg := splitFleet(1, 1, disagg.ByCost, change)
		cfg.EnsureDefaults()
		if cfg.Validate() == nil {
			t.Errorf("%+v", cfg)
		}
	}
}

// TestSharedPrefixesGoToTheirHolder: prompts which share a long prefix go to the prefill workers which hold it, so that
// these compute less than when any worker takes any prompt.
func TestSharedPrefixesGoToTheirHolder(t *testing.T) {
	const groups, each, shared, own = 5, 12, 60, 4
	var all []replay.Request
	for i := range groups * each {
		r := ownPrompt(i, time.Duration(i)*100*time.Millisecond, shared+own, 2)
		for b := range shared { // of one of the groups
			r.Blocks[b] = int64(1_000_000 + 1000*(i%groups) + b)
		}
		all = append(all, r)
	}
	c, j := runWhole(t, splitFleet(3, 3, disagg.AlwaysRemote, nil), all)
	u := c.disaggUse()
	for i := range j.samples {
		if s := &j.samples[i]; s.Error != "" {
			t.Fatalf("%+v", s)
		}
	}
	// Each prefix is computed once, and the last block of a prompt by its decode worker.
	if want := int64(16 * (groups*shared + len(all)*own)); u.PrefillComputed > want || u.Addressed < int64(len(all)/3) || u.Remote != int64(len(all)) {
		t.Errorf("prefill workers computed %d tokens, want %d: %+v", u.PrefillComputed, want, u)
	}
	if n := c.jobs.usedCount() + c.decodeNotes.usedCount() + c.calls.usedCount() + c.queuedTokens; n != 0 {
		t.Errorf("%d jobs, notes and calls are left", n)
	}
}

// TestAddressedWorkerCrashes: prompts whose holder dies are computed by others, also the ones which wait for it: each is a
// job of its own then.
func TestAddressedWorkerCrashes(t *testing.T) {
	var all []replay.Request
	for i := range 13 { // the first one alone, so that one worker holds the prefix
		r := ownPrompt(0, time.Duration(min(i, 1))*2*time.Second+time.Duration(i)*time.Millisecond, 200, 3)
		r.Index = i
		for b := 196; b < 200; b++ {
			r.Blocks[b] = int64(1_000_000 + 1000*i + b)
		}
		all = append(all, r)
	}
	j := &journal{}
	c, err := newCluster(splitFleet(4, 3, disagg.AlwaysRemote, func(c *Config) { c.Faults.MaxDowntime, c.PrefillConcurrency = time.Hour, 1 }), &requests{all: all}, j)
	if err != nil {
		t.Fatal(err)
	}
	addressed := func() *simWorker {
		for i := range c.workers {
			if w := &c.workers[i]; w.calledJobs > 0 && len(w.addressed) > 0 {
				return w
			}
		}
		return nil
	}
	crashed, lost := false, int64(0)
	for !c.isFinished() {
		if err := c.runEvent(); err != nil {
			t.Fatal(err)
		}
		if w := addressed(); w != nil && !crashed {
			crashed, lost = true, int64(w.calledJobs+len(w.addressed))
			c.crashWorker(w.number)
		}
	}
	checkAnswers(t, all, j)
	u := c.disaggUse()
	for i := range j.samples {
		if s := &j.samples[i]; s.Error != "" || s.First > s.Sent+2*time.Second {
			t.Errorf("%+v", s)
		}
	}
	if !crashed || u.Jobs < u.Remote+lost {
		t.Errorf("crashed %t with %d jobs: %+v", crashed, lost, u)
	}
}
