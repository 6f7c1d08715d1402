package simcluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// sharing returns a cluster of workers in turn which encode themselves, in 30 ms, and send rows of a picture in 3 ms.
func sharing(workers int, change func(*Config)) Config {
	cfg := Config{
		Workers: workers, Route: route.Config{Mode: route.RoundRobin}, EmbeddingCache: 8 * pictureBytes, Timing: coded(),
		RowLatency: 2 * time.Millisecond, RowBandwidth: pictureBytes / 1e6,
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// TestFetchTimes: what another worker holds is fetched in the time of its bytes instead of encoded, once for all requests
// of a worker, and kept there. What that worker has no longer, or none holds, is encoded.
func TestFetchTimes(t *testing.T) {
	// Without pictures a prompt of 64 tokens takes 21.4 ms, and with one which is encoded in the pass 51.4.
	twice := []replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")}
	for _, tt := range []struct {
		name     string
		cfg      Config
		requests []replay.Request
		want     string // times of the first tokens
		use      replay.EmbeddingUse
	}{
		{
			"fetched before the pass",
			sharing(2, nil), twice, "51.4ms 1.0244s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Misses: 2, Fetched: 1},
		},
		{
			"… while the text is computed, in 14.8 ms; then 16.6",
			sharing(2, func(c *Config) { c.Encoders = 1 }), twice, "46.6ms 1.0314s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Misses: 2, Fetched: 1},
		},
		{
			"messages take 1 ms each: there, to the other worker and back, and back",
			sharing(2, func(c *Config) { c.Delay = time.Millisecond }), twice, "53.4ms 1.0284s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Misses: 2, Fetched: 1},
		},
		{
			"workers which do not share",
			sharing(2, func(c *Config) { c.NoRowSharing = true }), twice, "51.4ms 1.0514s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"it is not known yet what the other one holds",
			sharing(2, func(c *Config) { c.EventDelay = time.Second }), twice, "51.4ms 1.0514s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"encoding which takes no time",
			sharing(2, func(c *Config) { c.Timing.Encoder = nil }), twice, "21.4ms 1.0214s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"no cache",
			sharing(2, func(c *Config) { c.EmbeddingCache = 0 }), twice, "51.4ms 1.0514s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"one fetch for requests of a worker at once, which are two passes, and the third time it is there; of two pictures one is fetched, one encoded",
			sharing(2, nil),
			[]replay.Request{
				pictured(0, 0, "a"), pictured(1, time.Second, "a"), pictured(2, time.Second, "c"), pictured(3, time.Second, "a"),
				pictured(4, 2*time.Second, "x"), pictured(5, 2*time.Second, "a", "b"),
			},
			"51.4ms 1.0244s 1.0514s 1.0458s 2.0514s 2.053s",
			replay.EmbeddingUse{Objects: 7, EncoderRuns: 4, Hits: 1, Misses: 6, HitShare: 1.0 / 7, Fetched: 1},
		},
		{
			"it has been evicted, which is not known yet: encoded after all, and the miss is counted once",
			sharing(2, func(c *Config) { c.EmbeddingCache, c.EventDelay = pictureBytes, 100*time.Millisecond }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 0, "z"), pictured(2, time.Second, "b"), pictured(3, 1060*time.Millisecond, "a")},
			"51.4ms 51.4ms 1.0514s 1.1114s",
			replay.EmbeddingUse{Objects: 4, EncoderRuns: 4, Misses: 4, Evictions: 2, FetchMisses: 1},
		},
		{
			"… beside the passes",
			sharing(2, func(c *Config) { c.Encoders, c.EmbeddingCache, c.EventDelay = 1, pictureBytes, 100*time.Millisecond }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 0, "z"), pictured(2, time.Second, "b"), pictured(3, 1060*time.Millisecond, "a")},
			"46.6ms 46.6ms 1.0466s 1.1066s",
			replay.EmbeddingUse{Objects: 4, EncoderRuns: 4, Misses: 4, Evictions: 2, FetchMisses: 1},
		},
		{
			"what the worker encodes already it does not fetch",
			sharing(3, func(c *Config) { c.Encoders = 1 }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 20*time.Millisecond, "a"), pictured(2, 20*time.Millisecond), pictured(3, 20*time.Millisecond), pictured(4, 40*time.Millisecond, "a")},
			"56.4ms 73ms 39.8ms 39.8ms 73ms",
			replay.EmbeddingUse{Objects: 3, EncoderRuns: 2, Misses: 3},
		},
		{
			"what waits for an encoder is fetched if another one holds it by then: the third picture is there after 63 ms",
			sharing(2, func(c *Config) { c.Encoders = 1 }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 0, "b", "c", "a")},
			"46.6ms 88.2ms",
			replay.EmbeddingUse{Objects: 4, EncoderRuns: 3, Misses: 4, Fetched: 1},
		},
		{
			"… nor can one be, which has evicted it: the queue goes on",
			sharing(2, func(c *Config) { c.Encoders, c.EmbeddingCache, c.EventDelay = 1, pictureBytes, time.Second }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 0, "z"), pictured(2, 970*time.Millisecond, "b"), pictured(3, 1010*time.Millisecond, "c", "a")},
			"46.6ms 46.6ms 1.0166s 1.0866s",
			replay.EmbeddingUse{Objects: 5, EncoderRuns: 5, Misses: 5, Evictions: 3, FetchMisses: 1},
		},
		{
			"an encode worker which holds the rows gives them, not the worker",
			sharing(2, func(c *Config) { c.EncodeWorkers = 3 }), twice, "54.4ms 1.0244s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Misses: 2, EncoderHits: 1, EncoderMisses: 1, EncodeWorkers: 3},
		},
		{
			"… has evicted them: the worker gives them",
			sharing(2, func(c *Config) { c.EncodeWorkers, c.EmbeddingCache = 1, 2*pictureBytes }),
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "b", "c"), pictured(2, 2*time.Second, "b"), pictured(3, 3*time.Second, "a")},
			"54.4ms 1.086s 2.0244s 3.0244s",
			replay.EmbeddingUse{Objects: 5, EncoderRuns: 3, Misses: 5, EncoderHits: 1, EncoderMisses: 3, Evictions: 2, Fetched: 1, EncodeWorkers: 1},
		},
	} {
		j := run(t, tt.cfg, tt.requests)
		got := make([]string, len(tt.requests))
		for _, s := range j.samples {
			got[s.Index] = fmt.Sprint(s.First)
		}
		tt.use.CacheBytes = int64(tt.cfg.EmbeddingCache)
		if all := strings.Join(got, " "); all != tt.want || j.embeddings != tt.use {
			t.Errorf("%s:\n%v, want\n%v;\n%+v, want\n%+v", tt.name, all, tt.want, j.embeddings, tt.use)
		}
	}
}

// TestHeldByOne: a picture which one worker holds and seven others miss at once is not encoded again. One which none
// holds is encoded by each of eight, as by worker processes without encode workers.
func TestHeldByOne(t *testing.T) {
	var all []replay.Request
	for i := range 24 {
		all = append(all, pictured(i, 0, "b"))
	}
	for _, encoders := range []int{0, 2} {
		cfg := sharing(8, func(c *Config) { c.Encoders = encoders })
		if u := run(t, cfg, all).embeddings; u.EncoderRuns != 8 || u.Fetched != 0 {
			t.Errorf("%d encoders, nobody holds it: %+v", encoders, u)
		}
		held := []replay.Request{pictured(0, 0, "b")}
		for i := range 24 {
			held = append(held, pictured(i+1, time.Second, "b"))
		}
		if u := run(t, cfg, held).embeddings; u.EncoderRuns != 1 || u.Fetched != 7 || u.Misses+u.Hits != 25 {
			t.Errorf("%d encoders, one holds it: %+v", encoders, u)
		}
	}
}

// TestTargetsOfFetch: the workers which are asked for rows are those of the coordinator in a worker process: holders, not
// the worker itself, none which was down, and an encode worker alone if one holds the rows.
func TestTargetsOfFetch(t *testing.T) {
	cfg := sharing(5, func(c *Config) { c.EncodeWorkers = 3 })
	c, err := newCluster(cfg, &requests{}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	w := &c.workers[1]
	part := sim.MediaPart{Key: embcache.RowKey{Digest: kv.Digest{7}}, Kind: 1, End: 16}
	key := part.Key.EventKey()
	targets := func() (ids []kv.WorkerID) {
		order, holders := w.orderTargets(c, &part)
		for _, i := range order[:holders+1] {
			ids = append(ids, c.candidates[i].ID)
		}
		return ids
	}
	expect := func(what string, want ...kv.WorkerID) {
		t.Helper()
		if got := targets(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	first := targets()[0]
	if first < 6 {
		t.Fatalf("worker %d is no encode worker", first)
	}
	c.holders.Add(kv.Worker{ID: 2}, key)
	expect("it holds them itself", first)
	c.holders.Add(kv.Worker{ID: 4}, key)
	expect("another one does, too", 4, first)
	c.holders.Add(kv.Worker{ID: 1}, key)
	c.holders.Add(kv.Worker{ID: 5}, key)
	if got := targets(); len(got) != 3 || got[2] != first {
		t.Errorf("three others do: %v", got)
	}
	w.peers[4] = &rowPeer{pausedUntil: c.now.Add(time.Second)}
	w.peers[5] = &rowPeer{pausedUntil: c.now.Add(time.Second)}
	expect("two of them were down", 1, first)
	second := 6 + (first-6+1)%3
	c.holders.Add(kv.Worker{ID: second}, key)
	expect("an encode worker does", second)
	c.cfg.NoRowSharing = true
	c.holders.DropWorker(kv.Worker{ID: second})
	expect("workers do not share", first)
}

// TestHolderIsDown: the next worker is asked if one does not answer, which is then not asked for a while.
func TestHolderIsDown(t *testing.T) {
	c, err := newCluster(sharing(3, func(c *Config) { c.Delay = time.Millisecond }), &requests{}, &journal{})
	if err != nil {
		t.Fatal(err)
	}
	parts := make([]sim.MediaPart, 8)
	for i := range parts {
		parts[i] = sim.MediaPart{Key: embcache.RowKey{Digest: kv.Digest{byte(i + 1)}}, Kind: 1, End: 16}
		for holder := range 2 {
			c.workers[holder].encoder.Rows.KeepRows(&parts[i].Key, 16)
		}
	}
	runUntil := func(done func() bool) {
		t.Helper()
		for !done() {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
	}
	runUntil(func() bool { return c.rowChanges.usedCount() == 0 })
	c.workers[0].alive = false
	w := &c.workers[2]
	for i := range parts {
		if _, ok := w.startFetch(c, &parts[i]); !ok {
			t.Fatalf("object %d: there is no worker to ask", i)
		}
		runUntil(func() bool { return c.rowFetches.usedCount() == 0 })
		if !w.encoder.Rows.HasRows(&parts[i].Key) {
			t.Errorf("object %d has not come", i)
		}
	}
	if c.rowsFetched != 8 || c.fetchMisses != 1 {
		t.Errorf("%d objects have come, and a worker did not answer %d times", c.rowsFetched, c.fetchMisses)
	}
	for _, n := range []int{1, 2} {
		if _, holders := w.orderTargets(c, &parts[0]); holders != n {
			t.Errorf("%d workers can be asked at %v, want %d", holders, time.Duration(c.now), n)
		}
		end := c.now.Add(failurePause)
		runUntil(func() bool { return c.now >= end })
	}
}

// TestHoldersArePreferred: routers know which workers hold the embeddings of a prompt's media, and prefer them.
func TestHoldersArePreferred(t *testing.T) {
	var all []replay.Request
	for i := range 120 {
		all = append(all, pictured(i, time.Duration(i)*200*time.Millisecond, string(rune('a'+i*7%12))))
	}
	for _, mode := range []route.Mode{route.Time, route.KV} {
		var runs [2]int64
		for i, weight := range []float64{0, 1} {
			affinity := route.DefaultAffinityWeights()
			affinity.Embedding = weight
			cfg := sharing(4, func(c *Config) {
				c.Route = route.Config{Mode: mode, Affinity: &affinity}
				c.NoRowSharing, c.EmbeddingCache = true, 16*pictureBytes
			})
			j := &journal{}
			c, err := newCluster(cfg, &requests{all: all}, j)
			if err != nil {
				t.Fatal(err)
			}
			c.onDecision = func(q *requestTask, query *route.Query, d route.Decision) {
				var want []route.HeldMedia
				for n := range c.workers {
					if weight > 0 && c.workers[n].encoder.Rows.HasRows(&q.parts[0].Key) {
						want = append(want, route.HeldMedia{Worker: c.workers[n].id, Objects: 1})
					}
				}
				if got := query.Held; fmt.Sprint(got) != fmt.Sprint(want) || len(query.Media) != 1 || query.Media[0].Start != 48 || query.Media[0].End != 64 {
					t.Errorf("mode %s, request %d: held is %v, want %v; media %v", mode, q.request.Index, got, want, query.Media)
				}
			}
			for !c.isFinished() {
				if err := c.runEvent(); err != nil {
					t.Fatal(err)
				}
			}
			runs[i] = c.embeddingUse().EncoderRuns
		}
		if runs[1] > 20 || runs[0] < 30 {
			t.Errorf("mode %s: 12 pictures were encoded %d times without a preference, and %d times with it", mode, runs[0], runs[1])
		}
	}
}

// TestRowTransferTime: latency, and bytes at a bandwidth.
func TestRowTransferTime(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want time.Duration
	}{
		{Config{}, 0},
		{Config{RowLatency: time.Millisecond}, time.Millisecond},
		{Config{RowLatency: time.Millisecond, RowBandwidth: 8.192}, 2 * time.Millisecond},
		{Config{RowBandwidth: 12.5}, 655360 * time.Nanosecond},
	} {
		if got := tt.cfg.rowTransferTime(1000); got != tt.want {
			t.Errorf("%v at %g GB/s: %v, want %v", tt.cfg.RowLatency, tt.cfg.RowBandwidth, got, tt.want)
		}
	}
	for _, bandwidth := range []float64{-1, 1e-7, 1e7} {
		cfg := Config{RowBandwidth: bandwidth}
		cfg.EnsureDefaults()
		if cfg.Validate() == nil {
			t.Errorf("%g GB/s are valid", bandwidth)
		}
	}
}
