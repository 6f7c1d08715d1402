package tiny

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
)

// gate is a forwarder that computes only when allowed.
type gate struct {
	forwarder
	*enginetest.Gate
}

func (g *gate) Forward(c *model.Cache, work []model.Work) error {
	g.AwaitLeave()
	return g.forwarder.Forward(c, work)
}

// stepped runs e with n requests and returns a function that makes it compute one batch of all of them.
func stepped(t testing.TB, e *Engine, n int, request func(i int) *engine.Request) (step func()) {
	g := &gate{e.cpu.forward, enginetest.NewGate()}
	e.cpu.forward = g
	run, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			err := e.Generate(run, request(i), func(*engine.Delta) error { return nil })
			if err != nil && !errors.Is(err, context.Canceled) && fault.CodeOf(err) != fault.Unavailable {
				t.Error(err)
			}
		})
	}
	for e.Load().Waiting < n { // none may end before the last one is queued
		runtime.Gosched()
	}
	wg.Go(func() {
		if err := e.Run(run); err != nil {
			t.Error(err)
		}
	})
	<-g.Enter
	step = func() { g.Leave <- struct{}{}; <-g.Enter }
	for e.Load().Running < n {
		step()
	}
	t.Cleanup(func() {
		stop()
		g.Leave <- struct{}{}
		wg.Wait()
	})
	return step
}

// TestStepHardlyAllocates computes decode steps of a full batch.
func TestStepHardlyAllocates(t *testing.T) {
	e := small(t, func(c *Config) { c.Blocks, c.BlockSize = 400, 16 })
	step := stepped(t, e, 8, func(i int) *engine.Request {
		req := within(96, greedy(i, 20, 280))
		req.Sampling = engine.Sampling{Temperature: 1, TopK: 20, TopP: 0.9}
		if i%2 == 1 {
			req.OutputSchema = &engine.OutputSchema{Schema: []byte(`{"type":"string","minLength":1000}`)}
		}
		return req
	})
	for range 20 {
		step()
	}
	// Blocks fill and outboxes grow while their readers do not run, but not in every step; half of the
	// sequences have a grammar, and one allocation each would make four.
	if n := testing.AllocsPerRun(100, step); n > 3 {
		t.Errorf("%v allocations per step of 8 sequences", n)
	}
	if load := e.Load(); load.Running != 8 {
		t.Fatalf("%d sequences ran, want 8", load.Running)
	}
}

// TestChoicesShareThePrompt counts what the model computes: the prompt once.
func TestChoicesShareThePrompt(t *testing.T) {
	e, s, ctx := spied(t, small(t, nil))
	req := within(96, greedy(4, 101, 6))
	req.Choices, req.Sampling = 4, engine.Sampling{Temperature: 1}
	for i, c := range enginetest.MustGenerate(t, ctx, e, req) {
		if c.Cached != 0 {
			t.Errorf("choice %d: %d tokens cached; what its sibling computed is no saving of the request's", i, c.Cached)
		}
	}
	// 101 once, the token after the last full block three times more, and five of
	// the six output tokens of each.
	if got := s.computed.Load(); got != 101+3+4*5 {
		t.Errorf("computed %d tokens, want %d", got, 101+3+4*5)
	}
}

// TestNoNumber: only the request for which no token can be sampled fails.
func TestNoNumber(t *testing.T) {
	e := small(t, nil)
	e.cpu.forward = &spoiler{e.cpu.forward, float32(math.NaN())}
	ctx := enginetest.Start(t, e)
	req := within(96, greedy(1, 30, 8))
	req.Choices = 2
	_, err := enginetest.Generate(ctx, e, req)
	if err == nil || fault.CodeOf(err) != fault.Internal {
		t.Errorf("logits that are no numbers: %v", err)
	}
	if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 {
		t.Errorf("not idle: %+v", l)
	}
}

// spoiler is a forwarder whose logits are all the same value.
type spoiler struct {
	forwarder
	value float32
}

func (s *spoiler) Forward(c *model.Cache, work []model.Work) error {
	err := s.forwarder.Forward(c, work)
	for i := range work {
		for j := range work[i].Logits {
			work[i].Logits[j] = s.value
		}
	}
	return err
}

func TestRefusals(t *testing.T) {
	e := small(t, nil)
	req := within(96, greedy(1, 30, 8))
	req.Salt.LoRA = "other"
	if err := e.Generate(t.Context(), req, func(*engine.Delta) error { return nil }); fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "adapter") {
		t.Errorf("adapter: %v", err)
	}
}
