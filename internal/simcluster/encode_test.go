package simcluster

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// RecordEmbeddings implements EmbeddingRecorder.
func (j *journal) RecordEmbeddings(u replay.EmbeddingUse) {
	j.embeddings = u
	fmt.Fprintf(j, "%+v\n", u)
}

// pictured returns a request whose prompt is 48 tokens of its own and then pictures of 16 tokens.
func pictured(index int, at time.Duration, pictures ...string) replay.Request {
	r := replay.Request{Index: index, At: at, Output: 1, BlockTokens: 16}
	for i := range 3 {
		r.Blocks = append(r.Blocks, int64(1000*index+i+1))
	}
	for i, id := range pictures {
		r.Media = append(r.Media, replay.Media{Kind: "image", ID: id, Tokens: 16, Start: 48 + 16*i})
		r.Blocks = append(r.Blocks, -int64(id[0]))
	}
	r.Input = 16 * len(r.Blocks)
	return r
}

// coded is plain, with 30 ms for a picture whose rows take no time on their way.
func coded() sim.Timing {
	t := plain()
	t.Encoder = []sim.EncoderPoint{{Tokens: 16, Millis: 30}}
	t.KV = sim.KV{Bytes: 1}
	return t
}

const pictureBytes = 16 * sim.RowBytes

// TestEncodeTimes: a picture takes its time where it is encoded, and none where its rows are.
func TestEncodeTimes(t *testing.T) {
	// Without pictures a prompt of 64 tokens takes 10 + 6.4 + 5 ms, one of 80 takes 23.
	for _, tt := range []struct {
		name     string
		cfg      Config
		requests []replay.Request
		want     string // times of the first tokens
		use      replay.EmbeddingUse
	}{
		{
			"no cache: in the pass, each time",
			Config{},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")},
			"51.4ms 1.0514s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"a cache: once",
			Config{EmbeddingCache: pictureBytes},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")},
			"51.4ms 1.0214s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Hits: 1, Misses: 1, HitShare: 0.5},
		},
		{
			"KV hits are not looked up",
			Config{EmbeddingCache: pictureBytes},
			[]replay.Request{pictured(0, 0, "a"), func() replay.Request {
				r := pictured(0, time.Second, "a", "b")
				r.Index = 1
				return r
			}()},
			"51.4ms 1.0466s",
			replay.EmbeddingUse{Objects: 3, EncoderRuns: 2, Misses: 2, Evictions: 1},
		},
		{
			"an encode worker: before the pass, and both pictures after each other",
			Config{EmbeddingCache: 8 * pictureBytes, EncodeWorkers: 1},
			[]replay.Request{pictured(0, 0, "a", "b"), pictured(1, time.Second, "b", "c")},
			"83ms 1.053s",
			replay.EmbeddingUse{Objects: 4, EncoderRuns: 3, Hits: 1, Misses: 3, HitShare: 0.25, EncoderMisses: 3, EncodeWorkers: 1},
		},
		{
			"messages take 1 ms: there, to the encode worker and back, and back",
			Config{EmbeddingCache: 8 * pictureBytes, EncodeWorkers: 1, Delay: time.Millisecond},
			[]replay.Request{pictured(0, 0, "a")},
			"55.4ms",
			replay.EmbeddingUse{Objects: 1, EncoderRuns: 1, Misses: 1, EncoderMisses: 1, EncodeWorkers: 1},
		},
		{
			"an encode worker has what another worker has shown",
			Config{Workers: 2, Route: route.Config{Mode: route.RoundRobin}, EmbeddingCache: 8 * pictureBytes, EncodeWorkers: 3},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a"), pictured(2, 2*time.Second, "a")},
			"51.4ms 1.0214s 2.0214s",
			replay.EmbeddingUse{Objects: 3, EncoderRuns: 1, Hits: 1, Misses: 2, HitShare: 1.0 / 3, EncoderHits: 1, EncoderMisses: 1, EncodeWorkers: 3},
		},
		{
			"no cache: an encode worker encodes each time",
			Config{EncodeWorkers: 1},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")},
			"51.4ms 1.0514s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2, EncoderMisses: 2, EncodeWorkers: 1},
		},
		{
			"an encoder beside the passes: 14.8 ms for the text meanwhile, then 10 + 1.6 + 5",
			Config{Encoders: 1},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")},
			"46.6ms 1.0466s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"two pictures after each other, and at once",
			Config{Encoders: 1},
			[]replay.Request{pictured(0, 0, "a", "b")},
			"76.6ms",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"… at once",
			Config{Encoders: 2},
			[]replay.Request{pictured(0, 0, "a", "b")},
			"48.2ms",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 2, Misses: 2},
		},
		{
			"one job for requests which show a picture at once: their text in 19.6 ms, the rest in 10 + 3.2 + 5",
			Config{Encoders: 1},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, 0, "a")},
			"48.2ms 48.2ms",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Misses: 2},
		},
		{
			"a cache: the second time needs no encoder",
			Config{Encoders: 1, EmbeddingCache: pictureBytes},
			[]replay.Request{pictured(0, 0, "a"), pictured(1, time.Second, "a")},
			"46.6ms 1.0214s",
			replay.EmbeddingUse{Objects: 2, EncoderRuns: 1, Hits: 1, Misses: 1, HitShare: 0.5},
		},
		{
			"an encode worker, asked when the request is scheduled; of the second one all but the last picture is computed meanwhile",
			Config{Encoders: 1, EmbeddingCache: 8 * pictureBytes, EncodeWorkers: 1},
			[]replay.Request{pictured(0, 0, "a", "b"), pictured(1, time.Second, "b", "c")},
			"76.6ms 1.0466s",
			replay.EmbeddingUse{Objects: 4, EncoderRuns: 3, Hits: 1, Misses: 3, HitShare: 0.25, EncoderMisses: 3, EncodeWorkers: 1},
		},
	} {
		tt.cfg.Timing = coded()
		j := run(t, tt.cfg, tt.requests)
		got := make([]string, len(tt.requests))
		for _, s := range j.samples {
			got[s.Index] = fmt.Sprint(s.First)
		}
		tt.use.CacheBytes = int64(tt.cfg.EmbeddingCache)
		if all := strings.Join(got, " "); all != tt.want || j.embeddings != tt.use {
			t.Errorf("%s: %v, want %v; %+v, want %+v", tt.name, all, tt.want, j.embeddings, tt.use)
		}
	}
}

// TestMissesAtOnce: eight workers miss a picture at the same time, and so do requests of each: it is encoded once.
func TestMissesAtOnce(t *testing.T) {
	var all []replay.Request
	for i := range 24 {
		all = append(all, pictured(i, 0, "a"))
	}
	for _, encoders := range []int{1, 3, 8} {
		for _, bytes := range []int{0, pictureBytes} {
			j := run(t, Config{Workers: 8, Route: route.Config{Mode: route.RoundRobin}, EncodeWorkers: encoders, EmbeddingCache: bytes, Timing: coded()}, all)
			u := j.embeddings
			if u.EncoderRuns != 1 || u.Misses != 24 || u.EncoderMisses != 8 {
				t.Errorf("%d encode workers, caches of %d bytes: %+v", encoders, bytes, u)
			}
			workers := map[uint64]bool{}
			for _, s := range j.samples {
				workers[s.Worker] = s.Error == ""
			}
			if len(workers) != 8 {
				t.Errorf("requests went to %v", workers)
			}
		}
	}
}

// TestEncodeFaults: workers that crash or leave while they wait for rows, or are asked for them, lose no request, and what
// clients that left have asked for holds nothing. In the end it is known what each worker holds.
func TestEncodeFaults(t *testing.T) {
	var all []replay.Request
	for i := range 400 {
		all = append(all, pictured(i, time.Duration(i)*10*time.Millisecond, string(rune('a'+i%7)), string(rune('A'+i%26))))
	}
	timing := coded()
	timing.Encoder[0].Millis = 4
	var fetched, misses int64
	for seed := range uint64(8) {
		cfg := Config{
			Workers: 4, EncodeWorkers: []int{2, 0, 2, 0}[seed%4], Encoders: []int{0, 2, 1, 0}[seed%4], Blocks: []int{0, 200}[seed/4%2], EmbeddingCache: 9 * pictureBytes, Timing: timing, Seed: seed, Delay: time.Millisecond,
			Route: route.Config{Mode: route.RoundRobin}, StallTimeout: 400 * time.Millisecond,
			Faults: Faults{CallsBroken: 0.1, CrashEvery: time.Second, DrainShare: 0.3, MaxDowntime: 500 * time.Millisecond, Until: 3 * time.Second},
		}
		j := &journal{}
		c, err := newCluster(cfg, &requests{all: all}, j)
		if err != nil {
			t.Fatal(err)
		}
		for !c.isFinished() {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
		answered := 0
		for _, s := range j.samples {
			if s.Error == "" {
				answered++
			}
		}
		if len(j.samples) != len(all) || answered < len(all)/2 {
			t.Errorf("seed %d: %d of %d answered", seed, answered, len(j.samples))
		}
		for end := c.now.Add(time.Minute); c.now < end; {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.rowFetches.usedCount(); n != 0 {
			t.Errorf("seed %d: %d fetches are left", seed, n)
		}
		for i := range c.workers {
			w := &c.workers[i]
			if w.heldCalls != 0 || len(w.fetches) != 0 || w.encoder.Jobs() != 0 {
				t.Errorf("seed %d, worker %d: %d calls, %d fetches, %d objects", seed, i, w.heldCalls, len(w.fetches), w.encoder.Jobs())
			}
			if st := w.sched.Stats(); st.UsedBlocks+st.Running+st.Waiting+st.Encoding != 0 {
				t.Errorf("seed %d, worker %d: %+v", seed, i, st)
			}
			for _, known := range w.peers {
				if known.inFlight != 0 {
					t.Errorf("seed %d, worker %d: %+v", seed, i, known)
				}
			}
		}
		if n := c.calls.usedCount(); n != 0 {
			t.Errorf("seed %d: %d calls are left", seed, n)
		}
		if err := c.holders.Check(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		for i := range c.workers {
			if w := &c.workers[i]; c.holders.HeldBy(w.id) != w.encoder.Rows.Stats().Entries {
				t.Errorf("seed %d: worker %d is known to hold %d of %d entries", seed, i, c.holders.HeldBy(w.id), w.encoder.Rows.Stats().Entries)
			}
		}
		fetched, misses = fetched+c.rowsFetched, misses+c.fetchMisses
	}
	if fetched < 100 || misses < 10 {
		t.Errorf("%d objects came from workers which held them, and %d did not", fetched, misses)
	}
}

// TestTextBesidePicture: while a picture of 2 s is encoded beside the passes, the gaps of a text are those of a worker
// which does nothing else; in the passes one of them lasts for the 2 s.
func TestTextBesidePicture(t *testing.T) {
	timing := plain()
	timing.Prefill = sim.Prefill{Token: 0.1}
	timing.Encoder = []sim.EncoderPoint{{Tokens: 16, Millis: 2000}}
	picture := replay.Request{Index: 1, At: 101 * time.Millisecond, Input: 16, Output: 1, Media: []replay.Media{{Kind: "image", ID: "a", Tokens: 16}}}
	for encoders, want := range map[int]time.Duration{0: 2006600 * time.Microsecond, 1: 5 * time.Millisecond} {
		gaps := &gapRecorder{}
		// The text ends before the picture is encoded beside it.
		all := []replay.Request{{Input: 100, Output: 300}, picture}
		if err := Run(t.Context(), Config{Timing: timing, Encoders: encoders}, &requests{all: all}, gaps); err != nil {
			t.Fatal(err)
		}
		if gaps.longest != want || gaps.n != 299 {
			t.Errorf("%d encoders: the longest of %d gaps is %v, want %v", encoders, gaps.n, gaps.longest, want)
		}
	}
}

// TestLeaveWhileEncoding: a client which gives up while its picture is encoded leaves nothing at the worker, which has
// nothing else to do.
func TestLeaveWhileEncoding(t *testing.T) {
	timing := coded()
	timing.Encoder[0].Millis = 60_000
	for _, encodeWorkers := range []int{0, 1} {
		cfg := Config{Timing: timing, Encoders: 1, EncodeWorkers: encodeWorkers, StallTimeout: 400 * time.Millisecond, Migration: migrate.Config{MaxFailures: 1, MaxWait: time.Second}}
		j := &journal{}
		c, err := newCluster(cfg, &requests{all: []replay.Request{pictured(0, 0, "a")}}, j)
		if err != nil {
			t.Fatal(err)
		}
		for !c.isFinished() {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
		}
		w := &c.workers[0]
		if st := w.sched.Stats(); j.samples[0].Error == "" || st.UsedBlocks+st.Waiting != 0 || w.heldCalls != 0 || w.encoder.Jobs() != 0 || c.calls.usedCount() != 0 {
			t.Errorf("%d encode workers: %+v; %+v, %d calls held of %d, %d objects", encodeWorkers, j.samples[0], st, w.heldCalls, c.calls.usedCount(), w.encoder.Jobs())
		}
	}
}

// gapRecorder records the longest gap.
type gapRecorder struct {
	longest time.Duration
	n       int
}

func (g *gapRecorder) RecordSample(*replay.Sample) {}
func (g *gapRecorder) RecordGap(between time.Duration, n int) {
	g.longest, g.n = max(g.longest, between), g.n+n
}

// TestLikeTheEngine: requests with pictures, at any moments and also to a cache which is too small for them, have the
// same times here as in an engine which runs in virtual time.
func TestLikeTheEngine(t *testing.T) {
	const vocabulary = 1280
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 1))
		timing := coded()
		timing.Prefill.Pass = 0
		timing.EncoderOf = map[media.Kind][]sim.EncoderPoint{media.Video: {{Tokens: 16, Millis: 100}}}
		cfg := Config{
			Workers: 1, Timing: timing, Encoders: int(seed % 4), Blocks: []int{4096, 60}[seed/4%2], MaxSeqs: 4,
			TokenBudget: 64, MaxContext: 400, EmbeddingCache: rng.IntN(2) * 6 * pictureBytes,
		}
		var all []replay.Request
		at := time.Duration(0)
		for i := range 40 {
			at += time.Duration(1+rng.IntN(60_000_000)) * time.Nanosecond // never two at once
			var shown []string
			for range rng.IntN(4) {
				shown = append(shown, string(rune('a'+rng.IntN(9))))
			}
			r := pictured(i, at, shown...)
			for k := range r.Media {
				r.Media[k].Kind = []string{"image", "video"}[shown[k][0]%2]
			}
			if i > 0 && rng.IntN(4) == 0 { // the same again
				r = all[rng.IntN(i)]
				r.Index, r.At = i, at
			}
			r.Output = 1 + rng.IntN(30)
			all = append(all, r)
		}
		j := run(t, cfg, all)
		synctest.Test(t, func(t *testing.T) {
			e, err := sim.New(sim.Config{
				Vocabulary: sim.Vocabulary{Size: vocabulary}, Blocks: cfg.Blocks, BlockSize: 16, ContextLength: cfg.MaxContext,
				MaxSeqs: cfg.MaxSeqs, TokenBudget: cfg.TokenBudget, Timing: cfg.Timing, EmbeddingCache: cfg.EmbeddingCache,
				Encoders: cfg.Encoders, Media: []string{"image", "video"},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			start := time.Now()
			got := make([]string, len(all))
			var engines, requests sync.WaitGroup
			engines.Go(func() { _ = e.Run(ctx) })
			for i := range all {
				requests.Go(func() {
					<-time.NewTimer(all[i].At).C
					var first, last time.Duration
					err := e.Generate(ctx, engineRequest(&all[i]), func(d *engine.Delta) error {
						if len(d.Tokens) > 0 {
							last = time.Since(start)
							first = cmp.Or(first, last)
						}
						return nil
					})
					got[i] = fmt.Sprint(first, " ", last, " ", err)
				})
			}
			requests.Wait()
			stop()
			engines.Wait()
			for _, s := range j.samples {
				if want := fmt.Sprint(s.First, " ", s.Last, " <nil>"); s.Error != "" || got[s.Index] != want {
					t.Errorf("seed %d, %d encoders, %d blocks: request %d: %s here, %s of the engine", seed, cfg.Encoders, cfg.Blocks, s.Index, want, got[s.Index])
				}
			}
			if u := j.embeddings; u.EncoderRuns != int64(e.EncoderStats().Encoded) || u.Hits != int64(e.EncoderStats().Cache.Hits) {
				t.Errorf("seed %d: %+v here, %+v of the engine", seed, u, e.EncoderStats())
			}
		})
	}
}

// engineRequest returns the request of a workload as an engine gets it.
func engineRequest(r *replay.Request) *engine.Request {
	req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: r.Output, IgnoreEOS: true}}
	req.Prompt = replay.AppendTokens(nil, r, replay.Vocabulary{})
	for _, m := range r.Media {
		digest := kv.Digest{m.ID[0]}
		req.Media = append(req.Media, kv.Media{Hash: uint64(m.ID[0]), Start: m.Start, End: m.Start + m.Tokens, Digest: digest})
		req.Objects = append(req.Objects, media.Object{Kind: kindOf(m.Kind), Key: media.Key{Hash: uint64(m.ID[0]), Digest: digest}})
	}
	return req
}

// TestTextKnowsNoEncoders: requests without media do not notice encode workers and embedding caches.
func TestTextKnowsNoEncoders(t *testing.T) {
	all := assistants.make(3)
	cfg := Config{Workers: 3, Blocks: 200, Timing: coded()}
	want := run(t, cfg, all)
	cfg.EncodeWorkers, cfg.EmbeddingCache, cfg.Encoders = 2, 1<<30, 3
	if got := run(t, cfg, all); got.String() != want.String() {
		t.Error("the journals differ")
	}
	if strings.Contains(want.String(), "EncoderRuns") {
		t.Error("figures of embeddings without any")
	}
}
