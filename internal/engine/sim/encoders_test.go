package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// encoding returns an engine as small does, whose pictures of 8 tokens take so many milliseconds at encoders beside
// its passes; none beside them is in the passes.
func encoding(t testing.TB, encoders int, millis float64, change func(*Config)) *Engine {
	return small(t, func(c *Config) {
		c.Timing.Encoder = []EncoderPoint{{Tokens: 8, Millis: millis}}
		c.Media, c.Encoders = []string{"image"}, encoders
		if change != nil {
			change(c)
		}
	})
}

// longestGap returns the longest time from one token to the next, of tokens which came before a time.
func (s *stopwatch) longestGap(before float64) float64 {
	longest := 0.0
	for i := 1; i < len(s.at) && s.at[i-1] < before; i++ {
		longest = max(longest, s.at[i]-s.at[i-1])
	}
	return longest
}

// TestTextFlowsWhileEncoding: the longest gap of a text stream while a picture of 2 s is encoded is that of an idle
// engine, and all the request costs the stream is the prefill of its prompt: as much as text of its length. An engine
// which encodes in its passes stops the stream for 2 s.
func TestTextFlowsWhileEncoding(t *testing.T) {
	for _, c := range []struct {
		name                   string
		encoders               int
		picture                bool
		whileEncoding, longest float64
		first                  float64 // token of the newcomer, after 5 ms of a pass which has begun
	}{
		{"encoder beside the passes", 1, true, 10, 10 + 12, 5 + 2000 + 12 + 10},
		{"text in place of the picture", 1, false, 10 + 12, 10 + 12, 5 + 12 + 10},
		{"in the passes", 0, true, 2000 + 10 + 12, 2000 + 10 + 12, 5 + 2000 + 12 + 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := encoding(t, c.encoders, 2000, nil)
				ctx := enginetest.Start(t, e)
				var stream, newcomer stopwatch
				done := make(chan struct{})
				go func() { stream.run(ctx, e, request(1, 20, 290)); close(done) }()
				after(105 * time.Millisecond) // its passes end at 30, 40, 50, …
				req := request(2, 12, 3)
				if c.picture {
					req = shows(req, "", map[int]byte{0: 1})
				}
				newcomer.run(ctx, e, req)
				<-done
				if newcomer.err != nil || stream.err != nil || len(stream.at) != 290 {
					t.Fatal(newcomer.err, stream.err, len(stream.at))
				}
				if got := stream.longestGap(110 + 2000); got != c.whileEncoding {
					t.Errorf("longest gap while the picture is encoded %v ms, want %v", got, c.whileEncoding)
				}
				if got := stream.longestGap(1e9); got != c.longest {
					t.Errorf("longest gap %v ms, want %v", got, c.longest)
				}
				if newcomer.at[0] != c.first {
					t.Errorf("the newcomer's first token came after %v ms, want %v", newcomer.at[0], c.first)
				}
			})
		})
	}
}

// TestReservationsTakeNoTime: also where decode takes longer the more blocks are in use and the more sequences run, a
// text stream has, to the nanosecond, the times of one on an idle engine until the picture beside it is encoded.
func TestReservationsTakeNoTime(t *testing.T) {
	run := func(picture bool) (at []float64) {
		synctest.Test(t, func(t *testing.T) {
			e := encoding(t, 1, 2000, func(c *Config) {
				c.Timing.Decode.Use, c.Timing.Load = 90, Load{Factor: 3, Seqs: 4}
			})
			ctx := enginetest.Start(t, e)
			if picture {
				go func() {
					var w stopwatch
					w.run(ctx, e, shows(request(2, 100, 1), "", map[int]byte{0: 1}))
				}()
				after(ms(1))
			}
			var stream stopwatch
			stream.run(ctx, e, request(1, 20, 60))
			if stream.err != nil || stream.at[59] > 1990 {
				t.Errorf("%v, %v", stream.err, stream.at)
			}
			at = stream.at
		})
		return at
	}
	if alone, beside := run(false), run(true); !slices.Equal(alone, beside) {
		t.Errorf("alone %v, beside a picture %v", alone, beside)
	}
}

// TestTextsBesideVideos: texts have the same times to the first token, to the nanosecond, with a stream of videos and
// without one, if encoders are beside the passes: also when the videos' blocks fill the cache. The model of time has
// no prefill, so that the passes which compute the videos' tokens are no longer than others.
func TestTextsBesideVideos(t *testing.T) {
	run := func(t *testing.T, encoders, blocks int, videos bool) (texts []float64, preempted uint64) {
		synctest.Test(t, func(t *testing.T) {
			e := encoding(t, encoders, 190, func(c *Config) {
				c.Timing.Prefill, c.Blocks, c.TokenBudget = Prefill{}, blocks, 1024
			})
			ctx := enginetest.Start(t, e)
			var stream stopwatch
			var wg sync.WaitGroup
			wg.Go(func() { stream.run(ctx, e, request(1, 8, 100)) }) // its passes end at 10, 20, 30, …
			watches := make([]stopwatch, 30)
			for i := range watches {
				wg.Go(func() {
					after(ms(13 + 30*i))
					watches[i].run(ctx, e, request(1000+i, 12, 4))
				})
			}
			if videos {
				for i := range 20 {
					wg.Go(func() {
						after(ms(7 + 40*i))
						var w stopwatch
						w.run(ctx, e, shows(request(2000+i, 40, 4), "", map[int]byte{0: byte(i + 1)}))
						if w.err != nil || len(w.at) != 4 {
							t.Errorf("video %d: %v, %d tokens", i, w.err, len(w.at))
						}
					})
				}
			}
			wg.Wait()
			for i := range watches {
				if watches[i].err != nil {
					t.Fatal(watches[i].err)
				}
				texts = append(texts, watches[i].at[0])
			}
			if l := e.Load(); l.UsedBlocks+l.Running+l.Waiting+l.Encoding+l.Ready+l.Active != 0 {
				t.Errorf("not idle: %+v", l)
			}
			preempted = e.Load().Preemptions
		})
		return texts, preempted
	}
	for _, blocks := range []int{1000, 48} {
		alone, before := run(t, 1, blocks, false)
		for _, encoders := range []int{1, 3} {
			beside, preempted := run(t, encoders, blocks, true)
			if !slices.Equal(alone, beside) {
				t.Errorf("%d blocks, %d encoders: times to first token %v with videos, %v without", blocks, encoders, beside, alone)
			}
			if before != 0 || blocks == 48 && preempted == 0 {
				t.Errorf("%d blocks, %d encoders: %d preemptions with videos, %d without", blocks, encoders, preempted, before)
			}
		}
		if inside, _ := run(t, 0, blocks, true); slices.Max(inside) < 190 {
			t.Errorf("%d blocks: encoding in the passes delays no text: %v", blocks, inside)
		}
	}
}

// TestEncoderTimes: when the first tokens come of requests which show pictures. A pass takes 1 ms for a token of a
// prompt and 10 ms if a sequence gets a token; a picture takes 100 ms.
func TestEncoderTimes(t *testing.T) {
	type arrival struct {
		at  time.Duration
		req *engine.Request
	}
	picture := func(seed, prompt int, pictures map[int]byte) *engine.Request {
		return shows(request(seed, prompt, 1), "", pictures)
	}
	video := func(seed int, id byte) *engine.Request {
		r := picture(seed, 12, map[int]byte{0: id})
		r.Objects[0].Kind = media.Video
		return r
	}
	for _, c := range []struct {
		name     string
		encoders int
		change   func(*Config)
		arrivals []arrival
		want     []float64
		runs     uint64
	}{
		{
			"the text before a picture is computed meanwhile", 1, nil,
			[]arrival{{0, picture(1, 40, map[int]byte{30: 1})}},
			[]float64{100 + 10 + 10},
			1,
		},
		{
			"and what lies between two", 1, nil,
			[]arrival{{0, picture(1, 48, map[int]byte{0: 1, 28: 2})}},
			[]float64{200 + 20 + 10},
			2,
		},
		{
			"two at once", 2, nil,
			[]arrival{{0, picture(1, 48, map[int]byte{0: 1, 28: 2})}},
			[]float64{100 + 48 + 10},
			2,
		},
		{
			"first come, first served", 1, nil,
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}, {ms(30), picture(2, 12, map[int]byte{0: 2})}, {ms(31), picture(3, 12, map[int]byte{0: 3})}},
			[]float64{100 + 12 + 10, 200 - 30 + 12 + 10, 300 - 31 + 12 + 10},
			3,
		},
		{
			"a picture which two requests show is one job", 1, nil,
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}, {ms(30), picture(2, 16, map[int]byte{8: 1})}},
			[]float64{100 + 12 + 8 + 10, 100 - 30 + 12 + 8 + 10},
			1,
		},
		{
			"without a digest it is two", 1, nil,
			[]arrival{{0, anonymous(picture(1, 12, map[int]byte{0: 1}))}, {ms(30), anonymous(picture(2, 12, map[int]byte{0: 1}))}},
			[]float64{100 + 12 + 10, 200 - 30 + 12 + 10},
			2,
		},
		{
			"what the KV cache has needs no encoder", 1, nil,
			[]arrival{{0, picture(1, 13, map[int]byte{0: 1})}, {ms(200), picture(2, 12, map[int]byte{0: 2})}, {ms(210), picture(1, 13, map[int]byte{0: 1})}},
			[]float64{100 + 13 + 10, 100 + 12 + 10, 1 + 10},
			2,
		},
		{
			"nor what the embedding cache has", 1, func(c *Config) { c.EmbeddingCache = 1 << 20 },
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}, {ms(200), picture(2, 12, map[int]byte{0: 2})}, {ms(210), picture(3, 12, map[int]byte{2: 1})}},
			[]float64{100 + 12 + 10, 100 + 12 + 10, 12 + 10},
			2,
		},
		{
			"each kind has its time", 2, func(c *Config) {
				c.Media = []string{"image", "video"}
				c.Timing.EncoderOf = map[media.Kind][]EncoderPoint{media.Video: {{8, 300}}}
			},
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}, {0, video(2, 2)}},
			[]float64{100 + 12 + 10, 300 + 12 + 10},
			2,
		},
		{
			"at twice the speed", 1, func(c *Config) { c.Timing.Speedup = 2 },
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}},
			[]float64{50 + 6 + 5},
			1,
		},
		{
			"no time is none", 1, func(c *Config) { c.Timing.Encoder = nil },
			[]arrival{{0, picture(1, 12, map[int]byte{0: 1})}},
			[]float64{12 + 10},
			1,
		},
		{
			"without chunks nothing is computed before", 1, func(c *Config) { c.Chunking, c.TokenBudget, c.ContextLength = paged.Off, 64, 64 },
			[]arrival{{0, picture(1, 40, map[int]byte{30: 1})}},
			[]float64{100 + 40 + 10},
			1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := encoding(t, c.encoders, 100, c.change)
				ctx := enginetest.Start(t, e)
				watches := make([]stopwatch, len(c.arrivals))
				var wg sync.WaitGroup
				for i, a := range c.arrivals {
					wg.Go(func() {
						after(a.at)
						watches[i].run(ctx, e, a.req)
					})
				}
				wg.Wait()
				for i := range watches {
					watches[i].expect(t, fmt.Sprint("request ", i), c.want[i:i+1])
				}
				if s := e.EncoderStats(); s.Encoded != c.runs {
					t.Errorf("%d objects encoded, want %d", s.Encoded, c.runs)
				}
				expectIdle(t, e)
			})
		})
	}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// anonymous removes what identifies the objects of a request.
func anonymous(r *engine.Request) *engine.Request {
	for i := range r.Objects {
		r.Objects[i].Key.Digest = kv.Digest{}
	}
	return r
}

// expectIdle checks that nothing is held of any request.
func expectIdle(t *testing.T, e *Engine) {
	t.Helper()
	synctest.Wait()
	if l := e.Load(); l.UsedBlocks+l.Running+l.Waiting+l.PrefillTokens+l.Encoding+l.Ready+l.Active != 0 {
		t.Errorf("not idle: %+v", l)
	}
	enc := &e.computer.encoders
	if _, busy := enc.Deadline(); busy || enc.Jobs() != 0 || len(enc.waits) != 0 || len(e.computer.ready) != 0 {
		t.Errorf("encoders: %d jobs, %d wait, %d are ready", enc.Jobs(), len(enc.waits), len(e.computer.ready))
	}
}

// TestCancelWhileEncoding: a request which leaves frees its blocks and its encoder at once; the next one is encoded
// from then on. What another request waits for goes on.
func TestCancelWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 1, 2000, nil)
		ctx := enginetest.Start(t, e)
		leaving, leave := context.WithTimeout(ctx, ms(500))
		defer leave()
		var first, shared, next stopwatch
		var wg sync.WaitGroup
		wg.Go(func() { first.run(leaving, e, shows(request(1, 12, 1), "", map[int]byte{0: 1})) })
		after(ms(10))
		wg.Go(func() { shared.run(leaving, e, shows(request(2, 40, 1), "", map[int]byte{20: 2})) })
		wg.Go(func() { next.run(ctx, e, shows(request(3, 12, 1), "", map[int]byte{0: 2})) })
		synctest.Wait()
		after(ms(480)) // 490
		if l := e.Load(); l.Encoding != 3 || l.Running != 0 || l.Waiting != 3 || l.Ready+l.Active != 0 || l.UsedBlocks != 3+10+3 || l.PrefillTokens != 12+20+12 {
			t.Errorf("while all are encoding: %+v", l)
		}
		after(ms(11))                                            // 501
		if l := e.Load(); l.Encoding != 1 || l.UsedBlocks != 3 { // the jobs show in when next is done
			t.Errorf("after two have left: %+v", l)
		}
		wg.Wait()
		for _, w := range []*stopwatch{&first, &shared} {
			if !errors.Is(w.err, context.DeadlineExceeded) || len(w.at) != 0 {
				t.Errorf("%v, %v", w.err, w.at)
			}
		}
		next.expect(t, "next", []float64{490 + 2000 + 12 + 10})
		if s := e.EncoderStats(); s.Encoded != 1 {
			t.Errorf("%d objects encoded", s.Encoded)
		}
		expectIdle(t, e)
	})
}

// TestStopWhileEncoding: an engine which stops releases what is being encoded.
func TestStopWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 2, 2000, nil)
		run, stop := context.WithCancel(t.Context())
		time.AfterFunc(ms(20), stop)
		var w stopwatch
		done := make(chan struct{})
		go func() {
			w.run(t.Context(), e, shows(request(1, 40, 5), "", map[int]byte{0: 1, 20: 2}))
			close(done)
		}()
		if err := e.Run(run); err != nil {
			t.Error(err)
		}
		<-done
		if w.err == nil {
			t.Error("the request was served")
		}
		expectIdle(t, e)
	})
}

// TestEncodingGivesUpBlocksFirst: when a text stream needs the last block, a request whose picture is being encoded
// gives up its own, although a newer text holds others; texts keep their times, and it is served in the end.
func TestEncodingGivesUpBlocksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 1, 1000, func(c *Config) { c.Blocks = 20 })
		ctx := enginetest.Start(t, e)
		var older, picture, newer stopwatch
		var wg sync.WaitGroup
		wg.Go(func() { older.run(ctx, e, request(1, 16, 20)) }) // 4 blocks, and 9 in the end
		after(ms(1))
		wg.Go(func() { picture.run(ctx, e, shows(request(2, 28, 1), "", map[int]byte{0: 1})) }) // 7
		after(ms(1))
		wg.Go(func() { newer.run(ctx, e, request(3, 16, 20)) })
		wg.Wait()
		older.expect(t, "older", []float64{26, 52}, steps(62, 10, 17))
		newer.expect(t, "newer", steps(50, 10, 19))
		picture.expect(t, "picture", []float64{1025 + 28 + 10})
		if l := e.Load(); l.Preemptions != 1 {
			t.Errorf("%d preemptions, want 1", l.Preemptions)
		}
		expectIdle(t, e)
	})
}

// TestChoicesWhileEncoding: all choices of a request wait for its picture, which is encoded once.
func TestChoicesWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 1, 100, nil)
		ctx := enginetest.Start(t, e)
		req := shows(request(1, 13, 3), "", map[int]byte{0: 1})
		req.Choices = 3
		var w stopwatch
		w.run(ctx, e, req)
		// The first choice computes 13 tokens; then each of the others one.
		w.expect(t, "three choices", []float64{123, 123 + 12, 123 + 12, 123 + 12, 145, 145, 145, 155, 155}[:len(w.at)])
		if s := e.EncoderStats(); s.Encoded != 1 || len(w.at) != 9 {
			t.Errorf("%d objects encoded, %d tokens", s.Encoded, len(w.at))
		}
		expectIdle(t, e)
	})
}

// TestEncodersDoNotDrift: objects which are encoded one after the other take the sum of their times, though the engine
// learns of their ends only between its passes.
func TestEncodersDoNotDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 1, 100, nil)
		ctx := enginetest.Start(t, e)
		var stream stopwatch
		var wg sync.WaitGroup
		wg.Go(func() { stream.run(ctx, e, request(1, 7, 120)) }) // its passes end at 17, 27, 37, …
		watches := make([]stopwatch, 8)
		for i := range watches {
			wg.Go(func() { watches[i].run(ctx, e, shows(request(2+i, 9, 1), "", map[int]byte{0: byte(i + 1)})) })
		}
		wg.Wait()
		slices.SortFunc(watches, func(a, b stopwatch) int { return cmp.Compare(a.at[0], b.at[0]) })
		for i := range watches {
			// The pass in which it is computed takes 10 + 9 ms, and begins at the first end of one after its encoding.
			if late := watches[i].at[0] - float64(100*(i+1)) - 19; watches[i].err != nil || late < 0 || late > 17+10+9 {
				t.Errorf("request %d: %v, %v ms late", i, watches[i].err, late)
			}
		}
		expectIdle(t, e)
	})
}

// TestEncoderInvariants drives encoders with random operations. An encoder is idle only if nothing is queued, all that
// is waited for has a job, what ends has waited, and nothing is left in the end.
func TestEncoderInvariants(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tm := Timing{Encoder: []EncoderPoint{{1, 1}, {10, 30}}, EncoderOf: map[media.Kind][]EncoderPoint{media.Audio: nil}, Jitter: 0.2}
		tm.EnsureDefaults()
		e := Encoders{Timing: &tm, Rows: NewRowMemory(rng.IntN(3) * 20 * RowBytes)}
		e.SetCount(1 + rng.IntN(4))
		var now kv.Mono
		parts := map[paged.SeqID][]MediaPart{}
		waits, before := map[paged.RangeID]bool{}, map[paged.RangeID]bool{}
		finish := func(all []paged.RangeID) {
			for _, r := range all {
				if !waits[r] && !before[r] {
					t.Fatalf("seed %d: %+v did not wait", seed, r)
				}
				if !parts[r.Seq][r.Index].Ready {
					t.Fatalf("seed %d: %+v is not ready", seed, r)
				}
				delete(waits, r)
			}
		}
		for range 300 {
			now = now.Add(time.Duration(rng.IntN(5)) * time.Millisecond)
			if rng.IntN(2) == 0 {
				finish(e.FinishDue(now, nil))
			}
			id := paged.SeqID(rng.IntN(12))
			before = maps.Clone(waits)
			switch {
			case rng.IntN(3) == 0:
				finish(e.StopSequence(now, id, nil))
				delete(parts, id)
				for r := range waits {
					if r.Seq == id {
						delete(waits, r)
					}
				}
			default:
				if parts[id] == nil {
					for range 1 + rng.IntN(4) {
						start := rng.IntN(50)
						p := MediaPart{Start: start, End: start + 1 + rng.IntN(10), Kind: media.Kind(rng.IntN(4))}
						if n := rng.IntN(8); n > 0 {
							p.Key.Digest = kv.Digest{byte(n)}
						}
						parts[id] = append(parts[id], p)
					}
				}
				ready := rng.IntN(20)
				for i, p := range parts[id] {
					r := paged.RangeID{Seq: id, Index: i}
					if waits[r] = p.End > ready; !waits[r] {
						delete(waits, r)
					}
				}
				finish(e.StartSequence(now, id, parts[id], ready, nil))
			}
			before = nil
			checkEncoders(t, &e, waits)
		}
		for id := range paged.SeqID(12) {
			e.StopSequence(now, id, nil)
		}
		checkEncoders(t, &e, nil)
		if e.Jobs() != 0 {
			t.Fatalf("seed %d: %d jobs are left", seed, e.Jobs())
		}
	}
}

func checkEncoders(t *testing.T, e *Encoders, waits map[paged.RangeID]bool) {
	t.Helper()
	found, counts, keys := map[paged.RangeID]bool{}, map[paged.SeqID]int{}, map[embcache.RowKey]bool{}
	for _, job := range slices.Concat(e.encoders, e.queue) {
		if job == nil {
			if len(e.queue) > 0 {
				t.Fatalf("an encoder is idle, and %d jobs are queued", len(e.queue))
			}
			continue
		}
		if len(job.waiters) == 0 || job.key.Digest != (kv.Digest{}) && keys[job.key] {
			t.Fatalf("a job which none waits for, or a second one of an object: %+v", job)
		}
		keys[job.key] = true
		for _, w := range job.waiters {
			if found[w.RangeID] {
				t.Fatalf("%+v waits for two jobs", w)
			}
			found[w.RangeID] = true
			counts[w.Seq]++
		}
	}
	for r := range waits {
		if !found[r] {
			t.Fatalf("%+v has no job", r)
		}
	}
	for id, n := range counts {
		if e.waits[id] != n {
			t.Fatalf("sequence %d waits for %d ranges, %d are counted", id, n, e.waits[id])
		}
	}
	if len(found) != len(waits) || len(counts) != len(e.waits) {
		t.Fatalf("%d ranges wait of %d, of %d sequences of %d", len(found), len(waits), len(counts), len(e.waits))
	}
}

// TestAcceptedWhenEncoded: a request is accepted when its media are encoded, and not before. One whose media need no
// encoder, and one which ends with its first token, are accepted too.
func TestAcceptedWhenEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, 1, 2000, nil)
		ctx := enginetest.Start(t, e)
		for i, want := range []time.Duration{2 * time.Second, 0, 0} {
			req := shows(request(1, 13, 2), "", map[int]byte{0: 1})
			if i == 2 {
				req.Stop.MaxTokens = 1
			}
			began, accepted, tokens := time.Now(), time.Duration(-1), 0
			err := e.Generate(ctx, req, func(d *engine.Delta) error {
				if d.Accepted {
					accepted = time.Since(began)
				}
				tokens += len(d.Tokens)
				return nil
			})
			if err != nil || accepted < want || accepted > want+100*time.Millisecond || tokens != req.Stop.MaxTokens {
				t.Errorf("request %d: accepted after %v, want %v; %d tokens, %v", i, accepted, want, tokens, err)
			}
		}
	})
}
