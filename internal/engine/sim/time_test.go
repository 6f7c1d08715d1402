package sim

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestFormulas compares the times of single requests with the published formulas, computed here.
func TestFormulas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, func(c *Config) {
			c.Timing = Timing{}
			c.Blocks, c.BlockSize, c.ContextLength, c.TokenBudget = 16_384, 64, 100_000, 8192
		})
		ctx := enginetest.Start(t, e)
		decode := func(blocks int) float64 {
			p := float64(blocks) / 16_384
			return -25.74*p*p + 54.01*p + 5.74
		}
		for i, n := range []int{128, 512, 1000, 4096, 8192} {
			var got stopwatch
			got.run(ctx, e, request(i, n, 130))
			if got.err != nil || len(got.at) != 130 {
				t.Fatal(got.err)
			}
			at := 0.0
			for j := range got.at {
				if at += decode((n + j + 63) / 64); j == 0 {
					tokens := float64(n)
					at += 4.209989e-7*tokens*tokens + 1.518344e-2*tokens + 16.50142
				}
				if math.Abs(got.at[j]-at) > 1e-6*float64(j+1) { // a nanosecond for each pass
					t.Fatalf("prompt of %d: token %d after %v ms, want %v", n, j, got.at[j], at)
				}
			}
		}
	})
}

// TestEnginesJitter checks that the passes of an engine have different jitter, and that two engines differ.
func TestEnginesJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times [2][]float64
		for i := range times {
			e := small(t, func(c *Config) { c.Timing.Jitter, c.Worker = 0.3, uint64(i) })
			got := queued(t, e, request(1, 20, 5))[0]
			if got.err != nil || len(got.at) != 5 {
				t.Fatal(got.err)
			}
			for j := 1; j < len(got.at); j++ {
				times[i] = append(times[i], math.Round(1e6*(got.at[j]-got.at[j-1]))) // nanoseconds
			}
		}
		for i, all := range times {
			slices.Sort(all)
			if n := len(slices.Compact(all)); n != 4 {
				t.Errorf("engine %d: %d different passes of 4: %v", i, n, all)
			}
		}
		if slices.Equal(times[0], times[1]) {
			t.Errorf("both engines: %v", times[0])
		}
	})
}

// TestShapes runs batches of known shapes on an engine that takes 1 ms for each prompt token and 10 ms if a
// sequence gets a token.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"one", func(t *testing.T) {
			w := queued(t, small(t, nil), request(1, 20, 5))
			w[0].expect(t, "alone", steps(30, 10, 4))
		}},
		{"chunks", func(t *testing.T) {
			e := small(t, nil)
			w := queued(t, e, request(1, 100, 2))
			// 48, 48, and 4 with a token.
			w[0].expect(t, "in chunks", steps(110, 10, 1))
			var again stopwatch
			again.run(t.Context(), e, request(1, 100, 2))
			again.expect(t, "from the cache", steps(14, 10, 1))
			if again.cached != 96 {
				t.Errorf("%d tokens cached, want 96", again.cached)
			}
		}},
		{"two", func(t *testing.T) {
			w := queued(t, small(t, nil), request(1, 20, 3), request(2, 30, 3))
			// 20 and 28 with a token; 1 and 2 with two; then two, then one.
			w[0].expect(t, "first", []float64{58, 70, 80})
			w[1].expect(t, "second", []float64{70, 80, 90})
		}},
		{"a newcomer", func(t *testing.T) {
			e := small(t, nil)
			ctx := enginetest.Start(t, e)
			var older, newer stopwatch
			done := make(chan struct{})
			go func() { older.run(ctx, e, request(1, 20, 5)); close(done) }()
			after(35 * time.Millisecond) // its second pass lasts from 30 to 40
			newer.run(ctx, e, request(2, 30, 2))
			<-done
			older.expect(t, "older", []float64{30, 40, 80, 90, 100})
			newer.expect(t, "newer", []float64{45, 55})
		}},
		{"after a pause", func(t *testing.T) {
			e := small(t, nil)
			ctx := enginetest.Start(t, e)
			for i := range 3 {
				var w stopwatch
				w.run(ctx, e, request(i, 20, 3))
				w.expect(t, "idle before", steps(30, 10, 2))
				after(3 * time.Millisecond)
			}
		}},
		{"preemption", func(t *testing.T) {
			e := small(t, func(c *Config) { c.Blocks = 10 })
			w := queued(t, e, request(1, 16, 20), request(2, 16, 20))
			// Both have 4 blocks of 4 tokens at first and 5 from their second token on. At its sixth token
			// the older one needs another block: the newer one is preempted, and by the end of the older one
			// all but its first block were evicted. Of 21 tokens 17 are computed again.
			w[0].expect(t, "older", steps(42, 10, 19))
			w[1].expect(t, "newer", steps(42, 10, 4), steps(232+27, 10, 14))
			if n := e.Load().Preemptions; n != 1 {
				t.Errorf("%d preemptions, want 1", n)
			}
		}},
		{"speedup", func(t *testing.T) {
			e := small(t, func(c *Config) { c.Timing.Speedup, c.Timing.DecodeSpeedup = 10, 2 })
			w := queued(t, e, request(1, 20, 3))
			w[0].expect(t, "faster", steps(2.5, 0.5, 2))
		}},
		{"media", func(t *testing.T) {
			e := small(t, func(c *Config) {
				c.Timing.Encoder = []EncoderPoint{{Tokens: 1, Millis: 100}, {Tokens: 101, Millis: 1100}}
			})
			req := request(1, 60, 2)
			req.Media = []kv.Media{{Hash: 1, Start: 4, End: 9}, {Hash: 2, Start: 40, End: 56}}
			w := queued(t, e, req)
			// 48 tokens and two objects, of 5 and 16 tokens: 140 and 250 ms; then the other 12 tokens, of which 8 are
			// the second object's.
			w[0].expect(t, "encoded", []float64{48 + 140 + 250 + 12 + 10, 48 + 140 + 250 + 12 + 20})
			var again stopwatch
			again.run(t.Context(), e, req)
			again.expect(t, "from the cache", []float64{14, 24}) // 56 tokens are
		}},
	} {
		t.Run(c.name, func(t *testing.T) { synctest.Test(t, c.run) })
	}
}

// TestAbortDuringPass ends a request in the middle of its prefill: its blocks are free at the end of that
// pass.
func TestAbortDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		ctx := enginetest.Start(t, e)
		one, cancel := context.WithCancel(ctx)
		sent := time.Now()
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := enginetest.Generate(one, e, request(1, 40, 5))
		if took := time.Since(sent); !errors.Is(err, context.Canceled) || took != 50*time.Millisecond {
			t.Errorf("%v after %v, want it canceled after 50ms", err, took)
		}
		if l := e.Load(); l.Running+l.Waiting+l.UsedBlocks+l.PrefillTokens != 0 {
			t.Errorf("not idle: %+v", l)
		}
	})
}

// TestStopDuringPass stops the engine in the middle of a pass, which it does not wait for.
func TestStopDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		run, stop := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, stop)
		result := make(chan error, 1)
		go func() {
			_, err := enginetest.Generate(t.Context(), e, request(1, 40, 5))
			result <- err
		}()
		began := time.Now()
		if err := e.Run(run); err != nil || time.Since(began) != 20*time.Millisecond {
			t.Errorf("run: %v after %v", err, time.Since(began))
		}
		if err := <-result; fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("the request: %v", err)
		}
		if err := e.Run(t.Context()); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("a second run: %v", err)
		}
	})
}

func TestStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(c *Config) { c.Timing.Startup = 2 * time.Second }
		e := small(t, slow)
		select {
		case <-e.Started():
			t.Error("up before it runs")
		default:
		}
		began := time.Now()
		go func() {
			<-e.Started()
			if took := time.Since(began); took != 2*time.Second {
				t.Errorf("up after %v", took)
			}
		}()
		w := queued(t, e, request(1, 20, 2))
		w[0].expect(t, "sent before", steps(2030, 10, 1))

		// An engine that stops before it is up releases all requests.
		e = small(t, slow)
		run, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		go func() {
			if err := e.Run(run); err != nil {
				t.Error(err)
			}
		}()
		if _, err := enginetest.Generate(t.Context(), e, request(1, 20, 2)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("stopped before it was up: %v", err)
		}
	})
}

// TestJitter checks that the same engine takes the same time again, and another worker another time.
func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(worker uint64) []float64 {
			e := small(t, func(c *Config) { c.Timing.Jitter, c.Worker = 0.2, worker })
			return queued(t, e, request(1, 20, 30))[0].at
		}
		one, again, two := run(1), run(1), run(2)
		if !slices.Equal(one, again) {
			t.Errorf("the same engine took %v and then %v", one, again)
		}
		if slices.Equal(one, two) || slices.Equal(one, steps(30, 10, 29)) {
			t.Errorf("no jitter of its own: %v and %v", one, two)
		}
	})
}

// TestClockDoesNotDrift checks that work between two passes takes no time of the second, unless it took too
// long.
func TestClockDoesNotDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c passClock
		c.openSleeper(t.Context())
		defer c.closeSleeper()
		const ms = time.Millisecond
		began := time.Now()
		for _, step := range []struct {
			between time.Duration
			follows bool
			want    time.Duration // end of a pass of 10 ms
		}{
			{0, false, 10 * ms},
			{3 * ms, true, 20 * ms},
			{25 * ms, true, 45 * ms}, // 15 ms late
			{0, true, 45 * ms},       // 5 ms late
			{0, true, 50 * ms},
			{2 * ms, false, 62 * ms},
			{maxCatchUp, true, 62*ms + maxCatchUp + 10*ms},
		} {
			after(step.between)
			if err := c.waitForPass(t.Context(), 10*ms, step.follows); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began); got != step.want {
				t.Errorf("%+v: ended at %v", step, got)
			}
		}
	})
}

// TestPreciseClock runs the conformance suite in real time, with the kernel's clock.
func TestPreciseClock(t *testing.T) {
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		return small(t, func(c *Config) { c.Timing.Speedup, c.Clock = 500, ClockPrecise })
	}})
}
