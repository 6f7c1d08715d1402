package tiny

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
)

// gate is a forwarder that computes only when it is let: enter receives one
// value when a step begins, and the step goes on when leave has one.
type gate struct {
	forwarder
	enter, leave chan struct{}
}

func (g *gate) Forward(c *model.Cache, work []model.Work) error {
	g.enter <- struct{}{}
	<-g.leave
	return g.forwarder.Forward(c, work)
}

// open lets everything pass from now on.
func (g *gate) open(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-g.enter:
				g.leave <- struct{}{}
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}

// TestCancelReleasesBlocks cancels a request in every phase of its life, each
// held still by the gate, beside another request whose blocks must stay.
func TestCancelReleasesBlocks(t *testing.T) {
	phases := []struct {
		name  string
		steps int // that the request takes part in before it is canceled
		seqs  int // MaxSeqs
	}{
		{"queued", 0, 1},
		{"first chunk", 1, 8},
		{"second chunk", 2, 8},
		{"first token", 3, 8},
		{"decode", 9, 8},
	}
	for _, p := range phases {
		for _, blocked := range []string{"", ", sink blocked"} {
			t.Run(p.name+blocked, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testCancelAt(t, p.steps, p.seqs, blocked != "") })
			})
		}
	}
}

func testCancelAt(t *testing.T, steps, seqs int, blocked bool) {
	e := small(t, func(c *Config) { c.MaxSeqs, c.TokenBudget = seqs, 16 })
	g := &gate{e.forward, make(chan struct{}), make(chan struct{})}
	e.forward = g
	ctx := enginetest.Start(t, e)

	// A neighbour that goes on, known to run when the first step begins.
	neighbour := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(ctx, e, within(96, greedy(1, 12, 40)))
		neighbour <- err
	}()
	<-g.enter

	reqCtx, cancel := context.WithCancel(ctx)
	accepted, release := make(chan struct{}), make(chan struct{})
	if !blocked {
		close(release)
	}
	result := make(chan error, 1)
	go func() {
		req := within(96, greedy(2, 40, 100))
		req.Choices = 3
		result <- e.Generate(reqCtx, req, func(d *engine.Delta) error {
			if d.Accepted {
				close(accepted)
			} else {
				<-release
			}
			return nil
		})
	}()
	synctest.Wait() // it is in the inbox; the loop stands still
	g.leave <- struct{}{}
	<-g.enter // a step that the request is in, unless it is queued
	<-accepted
	for range max(0, steps-1) {
		g.leave <- struct{}{}
		<-g.enter
	}
	cancel()
	g.open(t)
	g.leave <- struct{}{}
	if blocked {
		close(release)
	}
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("generate: %v, want context.Canceled", err)
	}
	// The neighbour alone is left: 12 tokens and at most 40 more in blocks of 4.
	if l := e.Load(); l.Running > 1 || l.Waiting != 0 || l.UsedBlocks > 13 || l.PrefillTokens > 12 {
		t.Errorf("the canceled request is still there: %+v", l)
	}
	if err := <-neighbour; err != nil {
		t.Errorf("neighbour: %v", err)
	}
	if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || l.PrefillTokens != 0 {
		t.Errorf("not idle at the end: %+v", l)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.sequences != 0 {
		t.Errorf("%d sequences still count against the queue", e.mu.sequences)
	}
}

func TestQueueIsBounded(t *testing.T) { synctest.Test(t, testQueueIsBounded) }

func testQueueIsBounded(t *testing.T) {
	e := small(t, func(c *Config) { c.MaxSeqs, c.MaxWaiting = 2, 3 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if _, err := enginetest.Generate(ctx, e, within(96, greedy(i, 10, 5))); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	synctest.Wait()
	if l := e.Load(); l.Waiting != 4 || l.PrefillTokens != 40 {
		t.Errorf("load before Run: %+v", l)
	}
	two := within(96, greedy(9, 10, 5))
	two.Choices = 2
	r := enginetest.NewRecorder(two)
	if err := e.Generate(ctx, two, r.Sink); fault.Of(err) != fault.Overloaded || r.Accepted {
		t.Errorf("two choices with room for one: %v, accepted %v", err, r.Accepted)
	}
	// One that gives up leaves its place to another.
	one, giveUp := context.WithCancel(ctx)
	given := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(one, e, within(96, greedy(8, 10, 5)))
		given <- err
	}()
	synctest.Wait()
	r = enginetest.NewRecorder(within(96, greedy(9, 10, 5)))
	if err := e.Generate(ctx, within(96, greedy(9, 10, 5)), r.Sink); fault.Of(err) != fault.Overloaded {
		t.Errorf("a request to a full queue: %v", err)
	}
	giveUp()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("giving up: %v", err)
	}
	wg.Go(func() {
		if _, err := enginetest.Generate(ctx, e, within(96, greedy(9, 10, 5))); err != nil {
			t.Errorf("a request in the place of another: %v", err)
		}
	})
	synctest.Wait()

	many := within(96, greedy(9, 10, 5))
	many.Choices = 6
	if err := e.Generate(ctx, many, r.Sink); fault.Of(err) != fault.Invalid {
		t.Errorf("more choices than can ever be served: %v", err)
	}
	runCtx := enginetest.Start(t, e)
	wg.Wait()
	mustGenerate(t, runCtx, e, two)
}

// TestStopReleasesEverybody ends Run while one request is computed and another is
// in the inbox.
func TestStopReleasesEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		g := &gate{e.forward, make(chan struct{}), make(chan struct{})}
		e.forward = g
		run, stop := context.WithCancel(context.Background())
		ran, results := make(chan error, 1), make(chan error, 2)
		send := func(i int) {
			go func() {
				_, err := enginetest.Generate(context.Background(), e, within(96, greedy(i, 10, 5)))
				results <- err
			}()
		}
		go func() { ran <- e.Run(run) }()
		send(1)
		<-g.enter
		send(2)
		synctest.Wait()
		stop()
		g.leave <- struct{}{}
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
		for range 2 {
			if err := <-results; fault.Of(err) != fault.Unavailable {
				t.Errorf("a request when the engine stopped: %v", err)
			}
		}
		if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || e.mu.sequences != 0 {
			t.Errorf("not idle: %+v, %d sequences", l, e.mu.sequences)
		}
	})
}

// TestChoicesShareThePrompt counts what the model computes: the prompt once.
func TestChoicesShareThePrompt(t *testing.T) {
	e, s, ctx := spied(t, small(t, nil))
	req := within(96, greedy(4, 101, 6))
	req.Choices, req.Sampling = 4, engine.Sampling{Temperature: 1}
	for i, c := range mustGenerate(t, ctx, e, req) {
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

// faulty is a forwarder that fails as fail says, in the steps that have work
// with the victim's first token at position 0.
type faulty struct {
	forwarder
	victim int
	fail   func(work []model.Work) error
}

func (f *faulty) Forward(c *model.Cache, work []model.Work) error {
	for i := range work {
		if work[i].Start == 0 && int(work[i].Tokens[0]) == f.victim {
			if err := f.fail(work); err != nil {
				return err
			}
		}
	}
	return f.forwarder.Forward(c, work)
}

func TestFailedBatch(t *testing.T) {
	const victim = 95
	nan := float32(math.NaN())
	for name, fail := range map[string]func([]model.Work) error{
		"panic": func([]model.Work) error { panic("a defect") },
		"error": func([]model.Work) error { return errors.New("a defect") },
	} {
		t.Run(name, func(t *testing.T) {
			// One sequence at a time: the others wait and must not notice.
			e := small(t, func(c *Config) { c.MaxSeqs = 1 })
			e.forward = &faulty{e.forward, victim, fail}
			ctx := enginetest.Start(t, e)
			before := mustGenerate(t, ctx, e, within(96, greedy(1, 30, 8)))[0].Tokens
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					req := within(96, greedy(1, 30, 8))
					if i == 1 {
						req.Prompt[0] = victim
						req.Choices = 2
					}
					got, err := enginetest.Generate(ctx, e, req)
					switch {
					case i == 1 && (fault.Of(err) != fault.Internal || err == nil || strings.Contains(err.Error(), "a defect")):
						t.Errorf("the request whose batch failed: %v", err)
					case i == 1 && !strings.Contains(errors.Unwrap(err).Error(), "a defect"):
						t.Errorf("the cause is lost: %v", errors.Unwrap(err))
					case i != 1 && (err != nil || !slices.Equal(got[0].Tokens, before)):
						t.Errorf("request %d: %v, %v", i, got, err)
					}
				})
			}
			wg.Wait()
			if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 {
				t.Errorf("not idle: %+v", l)
			}
		})
	}
	t.Run("no number", func(t *testing.T) {
		e := small(t, nil)
		e.forward = &spoiler{e.forward, nan}
		ctx := enginetest.Start(t, e)
		req := within(96, greedy(1, 30, 8))
		req.Choices = 2
		_, err := enginetest.Generate(ctx, e, req)
		if err == nil || fault.Of(err) != fault.Internal {
			t.Errorf("logits that are no numbers: %v", err)
		}
		if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 {
			t.Errorf("not idle: %+v", l)
		}
	})
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

func TestRunsOnce(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	mustGenerate(t, ctx, e, within(96, greedy(1, 4, 1)))
	if err := e.Run(ctx); fault.Of(err) != fault.Conflict {
		t.Errorf("a second Run: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	for name, c := range map[string]struct {
		change func(*engine.Request)
		code   fault.Code
		says   []string
	}{
		"long prompt": {func(r *engine.Request) { r.Prompt = within(96, greedy(1, 400, 1)).Prompt }, fault.Invalid, []string{"400", "320"}},
		"adapter":     {func(r *engine.Request) { r.Salt.LoRA = "other" }, fault.Unimplemented, []string{"adapter"}},
		"minimum":     {func(r *engine.Request) { r.Stop.MinTokens = 9 }, fault.Invalid, []string{"9", "8"}},
	} {
		req := within(96, greedy(1, 30, 8))
		c.change(req)
		err := e.Generate(ctx, req, func(*engine.Delta) error { return nil })
		if fault.Of(err) != c.code {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %s", name, err, s)
			}
		}
	}
}
