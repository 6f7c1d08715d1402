package tiny

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/obs"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// picture is a request with a picture of 6 tokens after 20 of text, and some after it.
func picture(t testing.TB, seed, output int) *engine.Request {
	req := within(80, greedy(seed, 30, output))
	show(t, req, 20, noise(media.Image, uint64(seed), 56, 84, 3))
	return req
}

// outcome is an answer, or why there is none.
type outcome struct {
	choices []enginetest.Choice
	err     error
}

// ask starts a request. accepted is closed when it is accepted.
func ask(ctx context.Context, e *Engine, req *engine.Request) (result chan outcome, accepted chan struct{}) {
	result, accepted = make(chan outcome, 1), make(chan struct{})
	go func() {
		r := enginetest.NewRecorder(req)
		err := e.Generate(ctx, req, func(d *engine.Delta) error {
			if d.Accepted {
				close(accepted)
			}
			return r.Sink(d)
		})
		for i := range r.Choices {
			r.Choices[i].Cached = 0
		}
		result <- outcome{r.Choices, err}
	}()
	return result, accepted
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// heldEncoder makes encoders wait until their channel is closed, or their context ends.
func heldEncoder(s *mediaEncoders) (open chan struct{}, entered chan struct{}) {
	open, entered = make(chan struct{}), make(chan struct{}, 1000)
	inner := s.encode
	s.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
		entered <- struct{}{}
		select {
		case <-open:
			return inner(ctx, kind, input, grid)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return open, entered
}

// TestTextGoesOnWhileEncoding: while an encoder hangs, another request's text is computed to its end, and of the request
// with the picture the text before it. The request is in the load with all its blocks, and is not accepted.
func TestTextGoesOnWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cold := seeing(t, cacheOf(0))
		req := picture(t, 1, 12)
		want := enginetest.MustGenerate(t, enginetest.Start(t, cold), cold, req)

		e := seeing(t, cacheOf(0))
		open, entered := heldEncoder(e.cpu.encoders)
		_, spied, ctx := spied(t, e)
		result, accepted := ask(ctx, e, req)
		<-entered
		synctest.Wait()
		if l := e.Load(); l.Encoding != 1 || l.Ready != 0 || l.Active != 0 || l.UsedBlocks != 9 || spied.computed.Load() != 20 {
			t.Errorf("while it is encoded: %+v, %d tokens computed", l, spied.computed.Load())
		}
		text := within(80, greedy(2, 30, 40))
		enginetest.MustGenerate(t, ctx, e, text)
		if n := spied.steps.Load(); n != 1+40 || isClosed(accepted) || len(result) > 0 {
			t.Errorf("%d steps, accepted: %t", n, isClosed(accepted))
		}
		close(open)
		got := <-result
		if got.err != nil || !slices.Equal(got.choices[0].Tokens, want[0].Tokens) || !isClosed(accepted) {
			t.Errorf("%+v, want %v", got, want[0].Tokens)
		}
		if s := e.EncodeStats(); s.Ended[encode.Completed] != 1 || s.Encoded != 1 || e.Load().UsedBlocks != 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// TestCancelAtEveryState: a request which leaves in any state of its media leaves nothing, and others are served.
func TestCancelAtEveryState(t *testing.T) {
	for _, choices := range []int{1, 2} {
		for _, capacity := range []int{0, 64 << 20} {
			for _, state := range []string{"waits for memory", "waits for an encoder", "runs", "waits for staging memory", "is staged", "is prefilled"} {
				t.Run(fmt.Sprintf("%s, %d choices, %d bytes", state, choices, capacity), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { cancelIn(t, state, choices, capacity) })
				})
			}
		}
	}
}

func cancelIn(t *testing.T, state string, choices, capacity int) {
	const one = 6 * 32 * elementBytes // bytes of a picture's rows
	e := seeing(t, func(c *Config) {
		c.EmbeddingCache = &capacity
		c.Encode.CPUBudget, c.Encode.StagingBudget, c.Encode.Threads = 2*one, 2*one, 1
		switch state {
		case "waits for memory":
			c.Encode.CPUBudget = one
		case "waits for staging memory":
			c.Encode.StagingBudget = one
		}
	})
	open, entered := heldEncoder(e.cpu.encoders)
	g := &gate{e.cpu.forward, enginetest.NewGate()}
	e.cpu.forward = g
	ctx := enginetest.Start(t, e)
	first, second := picture(t, 1, 8), picture(t, 2, 8)
	first.Choices, second.Choices = choices, choices
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	machine := func() encode.Stats { synctest.Wait(); return e.EncodeStats().Stats }
	var other chan outcome
	var result chan outcome
	switch state {
	case "waits for memory", "waits for an encoder":
		g.Open(t)
		other, _ = ask(ctx, e, first)
		<-entered
		result, _ = ask(leaving, e, second)
		if s := machine(); s.WaitingRequests+s.QueuedObjects+s.RunningObjects != 2 || (s.WaitingRequests == 1) != (state == "waits for memory") {
			t.Errorf("%+v", s)
		}
		leave()
	case "runs":
		g.Open(t)
		result, _ = ask(leaving, e, second)
		<-entered
		leave()
	case "waits for staging memory":
		g.Open(t)
		close(open)
		p, o := e.cpu.encoders.pool, &encodeObject{rowRequest: rowRequest{object: &first.Objects[0], pads: 6}, from: &e.cpu.content, tokens: 6, grid: [3]int{1, 4, 6}}
		blocker := p.newRequest(ctx, []*encodeObject{o}, func() {})
		if err := p.submitRequest(blocker); err != nil {
			t.Fatal(err)
		}
		machine()
		result, _ = ask(leaving, e, second)
		if s := machine(); s.StagingRequests != 1 || s.StagingBytes != one {
			t.Errorf("%+v", s)
		}
		leave()
		result <- <-result // the request ends before the other one does
		blocker.endRequest()
	case "is staged", "is prefilled":
		close(open)
		result, _ = ask(leaving, e, second)
		passes := map[string]int{"is staged": 0, "is prefilled": 2}[state]
		for range passes {
			<-g.Enter
			synctest.Wait()
			g.Leave <- struct{}{}
		}
		<-g.Enter
		s := machine()
		if staged := map[string]int64{"is staged": one}[state]; s.StagingBytes != staged || s.Ended[encode.Completed] > 0 != (choices == 1 && passes > 0) {
			t.Errorf("%+v", s)
		}
		leave()
		g.Open(t)
		g.Leave <- struct{}{}
	}
	if got := <-result; !errors.Is(got.err, context.Canceled) {
		t.Errorf("it ended with %v", got.err)
	}
	if !isClosed(open) {
		close(open)
	}
	if other != nil {
		if got := <-other; got.err != nil {
			t.Error(got.err)
		}
	}
	if s, l := machine(), e.Load(); s.EncodingRequests+s.ReadyRequests+s.ActiveRequests+s.RunningObjects != 0 || s.CPUBytes != 0 || l.Running+l.Waiting+l.UsedBlocks != 0 {
		t.Errorf("after it has left: %+v, %+v", s, l)
	}
	if again, _ := ask(ctx, e, second); (<-again).err != nil {
		t.Error("the request is not served when it comes again")
	}
}

// decoded returns an object as a run has it before it is encoded.
func decoded(t testing.TB, s *mediaEncoders, o media.Object) decodedItem {
	t.Helper()
	l, ok := s.layoutBySize(&o)
	if !ok {
		t.Fatal("an object without a size")
	}
	return decodedItem{&runItem{encodeObject: &encodeObject{rowRequest: rowRequest{object: &o}}}, o.Tensor, l}
}

// TestBatchedEqualsSingle: the rows of objects which are encoded together equal the rows of each alone, bit for bit.
func TestBatchedEqualsSingle(t *testing.T) {
	s := seeing(t, nil).cpu.encoders
	for name, shape := range map[media.Kind][]int{media.Image: {56, 84, 3}, media.Video: {3, 56, 84, 3}, media.Audio: {3000}} {
		for _, n := range []int{2, 3, 8} {
			var group []decodedItem
			var want []float32
			for i := range n {
				d := decoded(t, s, noise(name, uint64(i), shape...))
				rows, err := s.encodeRows(t.Context(), []decodedItem{d})
				if err != nil {
					t.Fatal(err)
				}
				group, want = append(group, d), append(want, rows...)
			}
			got, err := s.encodeRows(t.Context(), group)
			same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
			if err != nil || !slices.EqualFunc(got, want, same) {
				t.Errorf("%d of kind %v have other rows together: %v", n, name, err)
			}
		}
	}
}

// TestBatchesByShape: objects of one shape which wait for the encoder are encoded together, as many as a batch may have,
// and a larger one apart.
func TestBatchesByShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := encoding(t, func(c *Config) { c.Encode.Threads, c.Encode.Batch = 1, 4 })
		open, entered := heldEncoder(e.encoders)
		var frames []int
		inner := e.encoders.encode
		e.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			rows, err := inner(ctx, kind, input, grid)
			frames = append(frames, grid[0])
			return rows, err
		}
		var running sync.WaitGroup
		start := func(o media.Object) {
			running.Go(func() {
				got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{}, &o)
				if err != nil {
					t.Error(err)
					return
				}
				got.Release()
			})
			synctest.Wait()
		}
		start(noise(media.Image, 0, 56, 84, 3))
		<-entered
		for seed := range uint64(6) {
			start(noise(media.Image, 1+seed, 56, 84, 3))
		}
		start(noise(media.Image, 10, 56, 56, 3))
		close(open)
		running.Wait()
		if s := e.EncodeStats(); !slices.Equal(slices.Sorted(slices.Values(frames)), []int{1, 1, 2, 4}) || s.Jobs != 8 || s.Runs != 4 || s.Encoded != 8 {
			t.Errorf("batches of %v: %+v", frames, s)
		}
	})
}

// TestPoisonItem: an object which makes the encoder panic fails alone, with its index and kind, and the objects
// which were encoded with it are answered.
func TestPoisonItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, func(c *Config) { c.Encode.Threads = 1 })
		open, entered := heldEncoder(e.cpu.encoders)
		bad := noise(media.Image, 3, 56, 84, 3)
		poison, err := e.cpu.encoders.prepareInput(media.Image, &bad.Tensor, new(decoded(t, e.cpu.encoders, bad).layout))
		if err != nil {
			t.Fatal(err)
		}
		inner, panics := e.cpu.encoders.encode, 0
		e.cpu.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			for at := 0; at+len(poison) <= len(input); at += len(poison) {
				if slices.Equal(input[at:at+len(poison)], poison) {
					panics++
					panic("poison")
				}
			}
			return inner(ctx, kind, input, grid)
		}
		ctx := enginetest.Start(t, e)
		var results []chan outcome
		var accepted []chan struct{}
		for seed := range 7 {
			result, a := ask(ctx, e, picture(t, seed, 4))
			if results, accepted = append(results, result), append(accepted, a); seed == 0 {
				<-entered
			}
			synctest.Wait()
		}
		close(open)
		for i, result := range results {
			got := <-result
			if i != 3 {
				if got.err != nil {
					t.Errorf("request %d: %v", i, got.err)
				}
				continue
			}
			failed := engine.MediaFailures(got.err)
			if len(failed) != 1 || failed[0].Index != 0 || failed[0].Kind != encode.EncoderFailed || isClosed(accepted[i]) {
				t.Errorf("the poisoned request: %v, accepted: %t", got.err, isClosed(accepted[i]))
			}
		}
		if s := e.EncodeStats(); panics != 3 || s.Failures[encode.EncoderFailed] != 1 || s.Encoded != 6 || s.Repeats == 0 {
			t.Errorf("%d panics, %+v", panics, s)
		}
	})
}

// TestTypedFailures: what cannot be encoded is refused before the request is accepted, with the index and the kind.
func TestTypedFailures(t *testing.T) {
	for name, c := range map[string]struct {
		kind   encode.FailureKind
		code   fault.Code
		config func(*Config)
		change func(*media.Object)
	}{
		"corrupt":   {encode.Corrupt, fault.Invalid, nil, func(o *media.Object) { o.Source, o.Tensor = "http://x/text", media.Tensor{} }},
		"too large": {encode.OutOfMemory, fault.MediaFailed, func(c *Config) { c.Encode.CPUBudget = 4 * 32 * elementBytes }, nil},
		"deadline":  {encode.DeadlinePassed, fault.Deadline, func(c *Config) { c.Encode.Timeout = time.Second }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := seeing(t, func(cfg *Config) {
					cfg.Files = &files{by: map[string][]byte{"http://x/text": []byte("not a picture")}}
					if c.config != nil {
						c.config(cfg)
					}
				})
				heldEncoder(e.cpu.encoders) // until the deadline
				req := picture(t, 1, 4)
				if c.change != nil {
					c.change(&req.Objects[0])
				}
				result, accepted := ask(enginetest.Start(t, e), e, req)
				got := <-result
				failed := engine.MediaFailures(got.err)
				if len(failed) != 1 || failed[0].Index != 0 || failed[0].Kind != c.kind || fault.CodeOf(got.err) != c.code || isClosed(accepted) {
					t.Errorf("%v, %+v, accepted: %t", got.err, failed, isClosed(accepted))
				}
			})
		})
	}
}

// TestBudgetsUnderStorm: requests with pictures of many sizes, some of which leave, never have more rows in memory than
// the budgets, and all others are answered.
func TestBudgetsUnderStorm(t *testing.T) {
	for _, capacity := range []int{0, 20 << 10} {
		e := seeing(t, func(c *Config) {
			c.EmbeddingCache = &capacity
			c.Encode.CPUBudget, c.Encode.StagingBudget, c.Encode.MaxJobs, c.Encode.Batch = 3000, 2500, 5, 3
			c.MaxSeqs = 8
		})
		ctx := enginetest.Start(t, e)
		p := e.cpu.encoders.pool
		check := func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			s := p.mu.machine.Stats()
			own, staged := 0, 0
			for _, r := range p.mu.rows {
				own += elementBytes * len(r.rows)
			}
			for _, q := range p.mu.requests {
				for _, rows := range q.staged {
					staged += elementBytes * len(rows)
				}
			}
			if own > 3000 || staged > 2500 || s.CPUBytes > 3000 || s.StagingBytes > 2500 || s.RunningObjects > 5 {
				t.Errorf("%d bytes of rows and %d staged: %+v", own, staged, s)
			}
			if err := p.mu.machine.Check(); err != nil {
				t.Error(err)
			}
		}
		var running sync.WaitGroup
		var left, served atomic.Int64
		for hand := range 6 {
			running.Go(func() {
				for step := range 12 {
					n := randomOutput(uint64(hand), uint64(step))
					req := within(80, greedy(int(n%7), 20, 6))
					req.Choices = 1 + int(n>>8%2)
					for i := range 1 + int(n>>16%2) {
						show(t, req, len(req.Prompt)-1, noise(media.Image, n>>20%9+uint64(10*i), 56, 28*(2+int(n>>24%2)), 3))
					}
					leaving, leave := context.WithCancel(ctx)
					deltas := 0
					err := e.Generate(leaving, req, func(*engine.Delta) error {
						if deltas++; n>>28%3 == 0 && deltas == 2 {
							leave()
						}
						return nil
					})
					if n>>28%7 == 1 {
						leave()
					}
					leave()
					check()
					switch {
					case err == nil:
						served.Add(1)
					case errors.Is(err, context.Canceled):
						left.Add(1)
					default:
						t.Errorf("%d: %v", hand, err)
					}
				}
			})
		}
		running.Wait()
		if left.Load() == 0 || served.Load() == 0 {
			t.Errorf("%d left, %d were served: the test tests nothing", left.Load(), served.Load())
		}
	}
}

// TestEncodedAgainAfterPreemption: rows are given up when their tokens are computed. A request whose blocks are evicted
// after that has its picture encoded again, and its answer is the same; one with several choices keeps the rows.
func TestEncodedAgainAfterPreemption(t *testing.T) {
	for _, choices := range []int{1, 2} {
		t.Run(fmt.Sprint(choices, " choices"), func(t *testing.T) {
			newer := within(80, greedy(1, 12, 60/choices))
			newer.Choices, newer.Sampling = choices, engine.Sampling{Temperature: 1, Seed: 4}
			show(t, newer, 11, noise(media.Image, 1, 56, 84, 3))
			cold := seeing(t, func(c *Config) { c.Blocks = 400 })
			want := enginetest.MustGenerate(t, enginetest.Start(t, cold), cold, newer)

			e := seeing(t, func(c *Config) { c.EmbeddingCache, c.Blocks = new(0), 26 })
			g := &gate{e.cpu.forward, enginetest.NewGate()}
			e.cpu.forward = g
			ctx := enginetest.Start(t, e)
			older, _ := ask(ctx, e, within(80, greedy(9, 12, 100)))
			<-g.Enter
			result, _ := ask(ctx, e, newer)
			for e.Load().Waiting == 0 {
				runtime.Gosched()
			}
			g.Leave <- struct{}{}
			<-g.Enter // a step of the older one alone; the newer one has its blocks
			for !hasStagedRows(e.cpu.encoders.pool) {
				runtime.Gosched()
			}
			g.Open(t)
			g.Leave <- struct{}{}
			got := <-result
			if o := <-older; o.err != nil || got.err != nil {
				t.Fatal(o.err, got.err)
			}
			for i := range want {
				if !slices.Equal(got.choices[i].Tokens, want[i].Tokens) {
					t.Errorf("choice %d: %v, want %v", i, got.choices[i].Tokens, want[i].Tokens)
				}
			}
			again := uint64(2)
			if choices > 1 {
				again = 1
			}
			if s := e.EncoderStats(); s.Encoded != again || e.Load().Preemptions == 0 {
				t.Errorf("encoded %d times, want %d; %d preemptions", s.Encoded, again, e.Load().Preemptions)
			}
		})
	}
}

// hasStagedRows reports whether the model can read the rows of a request.
func hasStagedRows(p *encodePool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.mu.requests {
		if q.state == requestReady {
			return true
		}
	}
	return false
}

// rowsWatch is a forwarder which has weak pointers to what is staged while it computes.
type rowsWatch struct {
	forwarder
	pool   *encodePool
	staged []weak.Pointer[float32]
}

func (w *rowsWatch) Forward(c *model.Cache, work []model.Work) error {
	w.pool.mu.Lock()
	for _, q := range w.pool.mu.requests {
		for _, rows := range q.staged {
			w.staged = append(w.staged, weak.Make(&rows[0]))
		}
	}
	w.pool.mu.Unlock()
	return w.forwarder.Forward(c, work)
}

// TestIdleKeepsNoRows: an engine without requests refers to no rows which were staged.
func TestIdleKeepsNoRows(t *testing.T) {
	e := seeing(t, cacheOf(0))
	w := &rowsWatch{forwarder: e.cpu.forward, pool: e.cpu.encoders.pool}
	e.cpu.forward = w
	ctx := enginetest.Start(t, e)
	enginetest.MustGenerate(t, ctx, e, picture(t, 1, 1)) // its last batch shows the picture
	runtime.GC()
	if len(w.staged) == 0 {
		t.Error("nothing was staged")
	}
	for _, p := range w.staged {
		if p.Value() != nil {
			t.Error("rows are referred to after the answer")
		}
	}
}

// TestKeepOrDiscard: the matrix of package encode, with the embedding cache and without it. While an answer is
// generated, the rows of a picture are in memory (or pinned in the cache) only if another branch may need them; after it
// only if the next turn will. What the cache has stays there.
func TestKeepOrDiscard(t *testing.T) {
	const one = 6 * 32 * elementBytes
	for _, c := range []struct {
		what         string
		choices      int
		conversation bool
		reuse        paged.Switch
		during       int64  // bytes which are kept while it is generated
		after        int64  // and then, without the cache
		again        uint64 // runs of the encoder for a second request with the picture, without the cache
	}{
		{"single pass", 1, false, paged.Off, 0, 0, 1},
		{"several choices", 2, false, paged.Off, one, 0, 1},
		{"several turns", 1, true, paged.Off, one, one, 0},
		{"prefix caching", 1, true, paged.On, 0, 0, 0}, // its tokens are KV hits
		{"prefix caching, several choices", 2, true, paged.On, one, 0, 0},
	} {
		for _, capacity := range []int{0, 64 << 20} {
			t.Run(fmt.Sprintf("%s, cache of %d bytes", c.what, capacity), func(t *testing.T) {
				e := seeing(t, func(cfg *Config) { cfg.EmbeddingCache, cfg.Reuse = &capacity, c.reuse })
				ctx := enginetest.Start(t, e)
				req := picture(t, 1, 8)
				req.Choices, req.Objects[0].Part = c.choices, ""
				if c.conversation {
					req.Objects[0].Part = "messages[1].content[0]"
				}
				looked := false
				if err := e.Generate(ctx, req, func(d *engine.Delta) error {
					if len(d.Tokens) == 0 || looked {
						return nil
					}
					looked = true
					s, cache := e.EncodeStats(), e.EncoderStats().Cache
					own, pinned := c.during, int64(0)
					if capacity > 0 {
						own, pinned = 0, c.during
					}
					if s.CPUBytes != own || int64(cache.PinnedBytes) != pinned || s.StagingBytes != 0 && c.choices == 1 { // others may need them now
						t.Errorf("while it is generated %d bytes are in memory, %d pinned, %d staged", s.CPUBytes, cache.PinnedBytes, s.StagingBytes)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				s, cache := e.EncodeStats(), e.EncoderStats().Cache
				after, entries, again := c.after, 0, c.again
				if capacity > 0 {
					after, entries, again = 0, 1, 0
				}
				if s.CPUBytes != after || s.KeptBytes != after || cache.Entries != entries || cache.PinnedBytes != 0 {
					t.Errorf("after it %d bytes are in memory, %d kept, %d in the cache, %d pinned", s.CPUBytes, s.KeptBytes, cache.Entries, cache.PinnedBytes)
				}
				enginetest.MustGenerate(t, ctx, e, req)
				if n := e.EncoderStats().Encoded - 1; n != again {
					t.Errorf("for the second request encoders ran %d times, want %d", n, again)
				}
			})
		}
	}
}

// TestEncodeSpans: each object that is encoded is a span of its request's trace, however it ends.
func TestEncodeSpans(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	tracer := obs.NewTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen)))
	e := seeing(t, func(c *Config) { c.Encode.Tracer = tracer })
	ctx, parent := tracer.Start(enginetest.Start(t, e), "request")
	req := picture(t, 1, 4)
	sound := noise(media.Audio, 2, 3000)
	show(t, req, len(req.Prompt)-1, sound)
	enginetest.MustGenerate(t, ctx, e, req)
	req.Prompt[0]++ // no KV hit
	req.Objects[1].Tensor.Data = req.Objects[1].Tensor.Data[1:]
	req.Salt.Namespace = "other"
	if _, err := enginetest.Generate(ctx, e, req); err == nil {
		t.Error("a damaged sound is encoded")
	}
	parent.End(nil)
	expectIdle(t, e.cpu.encoders)
	counts := map[string]int{}
	for _, s := range seen.Ended() {
		name := s.Name()
		for _, a := range s.Attributes() {
			if a.Key == "error.type" {
				name += " " + a.Value.AsString()
			}
		}
		counts[name]++
		if s.SpanContext().TraceID() != seen.Ended()[0].SpanContext().TraceID() {
			t.Errorf("%s is of another trace", s.Name())
		}
	}
	if diff := cmp.Diff(map[string]int{"request": 1, "encode image": 2, "encode audio": 1, "encode audio " + fault.Invalid.String(): 1}, counts); diff != "" {
		t.Error(diff)
	}
}

// TestEvictedWhileWaiting: the next turn of a conversation waits with the second picture encoded and the first one in the
// KV cache, from which it is evicted before there is room. What it holds of the staging memory does not keep it from
// that for both.
func TestEvictedWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const one = 6 * 32 * elementBytes
		turn := within(80, greedy(1, 14, 2))
		show(t, turn, 4, noise(media.Image, 1, 56, 84, 3))
		next := within(80, greedy(1, 30, 4))
		show(t, next, 4, noise(media.Image, 1, 56, 84, 3))
		show(t, next, len(next.Prompt)-2, noise(media.Image, 2, 56, 84, 3))
		cold := seeing(t, nil)
		want := enginetest.MustGenerate(t, enginetest.Start(t, cold), cold, next)

		e := seeing(t, func(c *Config) {
			c.EmbeddingCache, c.Blocks, c.Encode.CPUBudget, c.Encode.StagingBudget = new(0), 30, 2*one, 2*one
		})
		ctx := enginetest.Start(t, e)
		enginetest.MustGenerate(t, ctx, e, turn)
		g := &gate{e.cpu.forward, enginetest.NewGate()}
		e.cpu.forward = g
		text, _ := ask(ctx, e, within(80, greedy(9, 92, 27)))
		<-g.Enter
		result, accepted := ask(ctx, e, next)
		synctest.Wait()
		g.Leave <- struct{}{}
		<-g.Enter
		synctest.Wait()
		if s := e.EncodeStats(); s.Encoded != 2 || s.StagingBytes != one || isClosed(accepted) {
			t.Errorf("while it waits: %+v, accepted: %t", s, isClosed(accepted))
		}
		g.Open(t)
		g.Leave <- struct{}{}
		if got := <-text; got.err != nil {
			t.Fatal(got.err)
		}
		select {
		case got := <-result:
			if got.err != nil || !slices.Equal(got.choices[0].Tokens, want[0].Tokens) {
				t.Errorf("%+v, want %v", got, want[0].Tokens)
			}
		case <-time.After(time.Hour):
			t.Fatalf("it waits for ever: %+v", e.EncodeStats())
		}
		if s := e.EncodeStats(); s.Encoded != 4 {
			t.Errorf("the first picture was not evicted: %+v", s)
		}
	})
}

// TestFailsWithItsRequest: a sequence which comes when the encoder has failed for another choice of its request, and
// before the loop knows, fails with it: nothing is encoded again.
func TestFailsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, nil)
		c, inner, calls := e.cpu, e.cpu.encoders.encode, 0
		c.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			if calls++; calls == 1 {
				return nil, errors.New("a defect")
			}
			return inner(ctx, kind, input, grid)
		}
		req := picture(t, 1, 4)
		req.Choices = 2
		states, err := c.StartRequest(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range states {
			c.StartEncoding(paged.SeqID(i+1), s, 0)
			synctest.Wait()
		}
		ranges, failed := c.AppendEncoded(nil), map[paged.SeqID]bool{}
		for _, f := range c.AppendFailed(nil) {
			failed[f.ID] = len(engine.MediaFailures(f.Err)) == 1
		}
		if diff := cmp.Diff(map[paged.SeqID]bool{1: true, 2: true}, failed); diff != "" || len(ranges) != 0 || calls != 1 {
			t.Errorf("%d ranges are encoded by %d calls: %s", len(ranges), calls, diff)
		}
		for i, s := range states {
			c.StopEncoding(paged.SeqID(i + 1))
			s.(*choiceState).Release()
		}
	})
}

// TestRowsOfLostRun: rows of a run which the machine has given up are given back.
func TestRowsOfLostRun(t *testing.T) {
	for _, capacity := range []int{0, 64 << 20} {
		synctest.Test(t, func(t *testing.T) {
			e := seeing(t, func(c *Config) { c.EmbeddingCache, c.Encode.Threads = &capacity, 1 })
			open, entered := heldEncoder(e.cpu.encoders)
			result, _ := ask(enginetest.Start(t, e), e, picture(t, 1, 4))
			<-entered
			p := e.cpu.encoders.pool
			p.mu.Lock()
			actions, err := p.mu.machine.LoseEncoder(p.nowLocked(), 1, nil)
			if err == nil {
				actions, err = p.mu.machine.AddEncoder(p.nowLocked(), 2, encode.EncoderLimits{}, actions)
			}
			if err != nil {
				t.Error(err)
			}
			p.performLocked(actions)
			p.mu.Unlock()
			synctest.Wait()
			close(open)
			if got := <-result; got.err != nil {
				t.Error(got.err)
			}
			if s := e.EncodeStats(); s.LateReports != 1 || s.Repeats != 1 {
				t.Errorf("%+v", s)
			}
		}) // seeing expects that no rows are held at the end
	}
}

// TestBatchesBySize: a batch has at most maxBatchTokens tokens.
func TestBatchesBySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const large = 256 // tokens of a picture
		most := maxBatchTokens / large
		e := encoding(t, func(c *Config) { c.Encode.Threads, c.Encode.Batch, c.Encode.MaxJobs = 1, 64, 64 })
		e.encoders.encode = func(_ context.Context, _ media.Kind, _ []float32, grid [3]int) ([]float32, error) {
			return make([]float32, grid[0]*large*e.encoders.rows.width), nil
		}
		open, entered := heldEncoder(e.encoders)
		var frames []int
		inner := e.encoders.encode
		e.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			rows, err := inner(ctx, kind, input, grid)
			frames = append(frames, grid[0])
			return rows, err
		}
		var running sync.WaitGroup
		for seed := range uint64(2 + most) {
			o := noise(media.Image, seed, 448, 448, 3)
			running.Go(func() {
				got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{}, &o)
				if err != nil {
					t.Error(err)
					return
				}
				got.Release()
			})
			if seed == 0 {
				<-entered
			}
			synctest.Wait()
		}
		close(open)
		running.Wait()
		if len(frames) < 3 || slices.Max(frames) != most {
			t.Errorf("batches of %v, want at most %d", frames, most)
		}
	})
}
