package tiny

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
)

// inputs returns n prompts of all lengths.
func inputs(n int) []*engine.EmbedRequest {
	var all []*engine.EmbedRequest
	for i := range n {
		all = append(all, &engine.EmbedRequest{
			ID: fmt.Sprint("input-", i), Attempt: 1, Prompt: within(96, greedy(i%4, 1+i*29%130, 1)).Prompt,
		})
	}
	return all
}

// direct computes an embedding from the model alone, a token at a time.
func direct(t *testing.T, prompt []kv.Token) []float32 {
	t.Helper()
	shape := smallShape()
	m, err := model.New(t.Context(), shape, randomWeights(&shape, 1))
	if err != nil {
		t.Fatal(err)
	}
	c := m.NewCache(1, len(prompt))
	mean := make([]float64, shape.HiddenSize)
	for i, token := range prompt {
		if err := m.Forward(c, []model.Work{{Tokens: []kv.Token{token}, Start: i, Blocks: []int32{0}, Sum: mean}}); err != nil {
			t.Fatal(err)
		}
	}
	var squares float64
	for d := range mean {
		squares += float64(mean[d] * mean[d])
	}
	var vector []float32
	for _, v := range mean {
		vector = append(vector, float32(v/math.Sqrt(squares)))
	}
	return vector
}

// embedAll embeds all inputs concurrently, together with requests that generate.
func embedAll(t *testing.T, ctx context.Context, e *Engine, reqs []*engine.EmbedRequest, beside []*engine.Request) [][]float32 {
	t.Helper()
	got := make([][]float32, len(reqs))
	var wg sync.WaitGroup
	for i, req := range reqs {
		wg.Go(func() {
			var err error
			if got[i], err = e.Embed(ctx, req); err != nil {
				t.Errorf("%s: %v", req.ID, err)
			}
		})
	}
	for _, req := range beside {
		wg.Go(func() {
			if _, err := enginetest.Generate(ctx, e, req); err != nil {
				t.Errorf("%s: %v", req.ID, err)
			}
		})
	}
	wg.Wait()
	if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || l.PrefillTokens != 0 {
		t.Errorf("not idle at the end: %+v", l)
	}
	return got
}

// TestEmbedIdentity expects the bits of the model alone, whatever the batch, the chunks, the cache and
// preemptions.
func TestEmbedIdentity(t *testing.T) {
	reqs := inputs(14)
	var want [][]float32
	for _, req := range reqs {
		want = append(want, direct(t, req.Prompt))
	}
	check := func(t *testing.T, got [][]float32) {
		t.Helper()
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%s of %d tokens: not what it is alone", reqs[i].ID, len(reqs[i].Prompt))
			}
		}
	}
	t.Run("alone", func(t *testing.T) {
		e, _, ctx := spied(t, small(t, nil))
		for i, req := range reqs {
			if got, err := e.Embed(ctx, req); err != nil || !slices.Equal(got, want[i]) {
				t.Errorf("%s: not what the model gives (%v)", req.ID, err)
			}
		}
		if l := e.Load(); l.CachedBlocks != 0 {
			t.Errorf("embeddings left %d blocks in the cache", l.CachedBlocks)
		}
	})
	for _, budget := range []int{1, 3, 7, 16, 512} {
		t.Run(fmt.Sprint("chunks of ", budget), func(t *testing.T) {
			e, s, ctx := spied(t, small(t, func(c *Config) { c.MaxSeqs, c.TokenBudget, c.Blocks = min(8, budget), budget, 1000 }))
			check(t, embedAll(t, ctx, e, reqs, nil))
			check(t, embedAll(t, ctx, e, reqs, workload(8, 96, 8)))
			if budget > 1 && budget < 100 {
				happened(t, "a prompt in several chunks", s.chunks.Load())
			}
		})
	}
	t.Run("preemption", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := small(t, func(c *Config) { c.Blocks, c.MaxSeqs, c.TokenBudget = 36, 16, 16 })
			g := &gate{e.cpu.forward, enginetest.NewGate()}
			e.cpu.forward = g
			ctx := enginetest.Start(t, e)
			got := make(chan [][]float32, 1)
			go func() { got <- embedAll(t, ctx, e, reqs, workload(10, 96, 40)) }()
			<-g.Enter
			synctest.Wait() // all requests are there: the blocks do not suffice
			g.Open(t)
			g.Leave <- struct{}{}
			check(t, <-got)
			for range 2 {
				check(t, embedAll(t, ctx, e, reqs, workload(10, 96, 40)))
			}
			happened(t, "a preemption", int64(e.Load().Preemptions))
		})
	})
}

// TestEmbedPreempted preempts an embedding in the middle, which the random requests of TestEmbedIdentity may
// not do.
func TestEmbedPreempted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, func(c *Config) { c.Blocks, c.MaxSeqs, c.TokenBudget = 30, 2, 8 })
		g := &gate{e.cpu.forward, enginetest.NewGate()}
		e.cpu.forward = g
		ctx := enginetest.Start(t, e)
		step := func() { g.Leave <- struct{}{}; <-g.Enter }

		older := make(chan error, 1)
		go func() {
			_, err := enginetest.Generate(ctx, e, within(96, greedy(1, 7, 30)))
			older <- err
		}()
		<-g.Enter
		req := &engine.EmbedRequest{ID: "e", Attempt: 1, Prompt: within(96, greedy(2, 110, 1)).Prompt}
		var got []float32
		embedded := make(chan error, 1)
		go func() {
			var err error
			got, err = e.Embed(ctx, req)
			embedded <- err
		}()
		synctest.Wait()
		for e.Load().Preemptions == 0 {
			select {
			case err := <-embedded:
				t.Fatalf("embedded without a preemption: %v", err)
			default:
			}
			step()
			synctest.Wait()
		}
		g.Open(t)
		g.Leave <- struct{}{}
		if err := errors.Join(<-older, <-embedded); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, direct(t, req.Prompt)) {
			t.Error("a preempted embedding is not what it is alone")
		}
	})
}

// TestEmbedCancel cancels an embedding while it waits and in each of its chunks.
func TestEmbedCancel(t *testing.T) {
	for steps := range 4 {
		t.Run(fmt.Sprint("step ", steps), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testEmbedCancel(t, steps) })
		})
	}
}

func testEmbedCancel(t *testing.T, steps int) {
	e := small(t, func(c *Config) { c.TokenBudget = 16 })
	g := &gate{e.cpu.forward, enginetest.NewGate()}
	e.cpu.forward = g
	ctx := enginetest.Start(t, e)
	neighbour := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(ctx, e, within(96, greedy(1, 12, 40)))
		neighbour <- err
	}()
	<-g.Enter
	embedCtx, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		_, err := e.Embed(embedCtx, &engine.EmbedRequest{ID: "e", Attempt: 1, Prompt: within(96, greedy(2, 60, 1)).Prompt})
		result <- err
	}()
	synctest.Wait() // it is in the inbox; the loop is stopped
	for range steps {
		g.Leave <- struct{}{}
		<-g.Enter
	}
	cancel()
	synctest.Wait() // it has seen that, before the chunk that may be its last is done
	g.Open(t)
	g.Leave <- struct{}{}
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("embed: %v, want context.Canceled", err)
	}
	if l := e.Load(); l.Running > 1 || l.Waiting != 0 || l.UsedBlocks > 13 || l.PrefillTokens > 12 {
		t.Errorf("the canceled embedding is still there: %+v", l)
	}
	if err := <-neighbour; err != nil {
		t.Errorf("neighbour: %v", err)
	}
}

// TestEmbedStopped refuses when the engine has stopped.
func TestEmbedStopped(t *testing.T) {
	e := small(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := e.Embed(t.Context(), &engine.EmbedRequest{ID: "e", Attempt: 1, Prompt: []kv.Token{1}})
	if err == nil || fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("after the end: %v, want %v", err, fault.Unavailable)
	}
}

func TestUnit(t *testing.T) {
	if v, err := normalizeVector([]float64{3, -4}); err != nil || !slices.Equal(v, []float32{0.6, -0.8}) {
		t.Errorf("3 -4 scales to %v, %v", v, err)
	}
	for _, sum := range [][]float64{{0, 0}, {math.NaN(), 1}, {math.Inf(1), 1}, {1e300, 1}} {
		if v, err := normalizeVector(sum); err == nil || fault.CodeOf(err) != fault.Internal {
			t.Errorf("%v scales to %v, %v", sum, v, err)
		}
	}
}
