package batch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestCancelReleasesBlocks cancels a request in every phase of its lifecycle, each held by the gate, next to
// another request whose blocks must stay.
func TestCancelReleasesBlocks(t *testing.T) {
	phases := []struct {
		name  string
		steps int // with the request, before it is canceled
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
	g := closed(e)
	ctx := enginetest.Start(t, e)

	// A neighbour that continues, known to run when the first step starts.
	neighbour := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(ctx, e, greedy(1, 12, 40))
		neighbour <- err
	}()
	<-g.Enter

	reqCtx, cancel := context.WithCancel(ctx)
	accepted, release := make(chan struct{}), make(chan struct{})
	if !blocked {
		close(release)
	}
	result := make(chan error, 1)
	go func() {
		req := greedy(2, 40, 100)
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
	synctest.Wait() // it is in the inbox; the loop waits
	g.Leave <- struct{}{}
	<-g.Enter // a step with the request, unless it is queued
	<-accepted
	for range max(0, steps-1) {
		g.Leave <- struct{}{}
		<-g.Enter
	}
	cancel()
	g.Open(t)
	g.Leave <- struct{}{}
	if blocked {
		close(release)
	}
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("generate: %v, want context.Canceled", err)
	}
	// Only the neighbour is left: 12 tokens and at most 40 more in blocks of 4.
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
			if _, err := enginetest.Generate(ctx, e, greedy(i, 10, 5)); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	synctest.Wait()
	if l := e.Load(); l.Waiting != 4 || l.PrefillTokens != 40 {
		t.Errorf("load before Run: %+v", l)
	}
	two := greedy(9, 10, 5)
	two.Choices = 2
	r := enginetest.NewRecorder(two)
	if err := e.Generate(ctx, two, r.Sink); fault.CodeOf(err) != fault.Overloaded || r.Accepted {
		t.Errorf("two choices with room for one: %v, accepted %v", err, r.Accepted)
	}
	// A canceled request leaves its place to another.
	one, giveUp := context.WithCancel(ctx)
	given := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(one, e, greedy(8, 10, 5))
		given <- err
	}()
	synctest.Wait()
	r = enginetest.NewRecorder(greedy(9, 10, 5))
	if err := e.Generate(ctx, greedy(9, 10, 5), r.Sink); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("a request to a full queue: %v", err)
	}
	giveUp()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("giving up: %v", err)
	}
	wg.Go(func() {
		if _, err := enginetest.Generate(ctx, e, greedy(9, 10, 5)); err != nil {
			t.Errorf("a request in the place of another: %v", err)
		}
	})
	synctest.Wait()

	many := greedy(9, 10, 5)
	many.Choices = 6
	if err := e.Generate(ctx, many, r.Sink); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("more choices than can ever be served: %v", err)
	}
	runCtx := enginetest.Start(t, e)
	wg.Wait()
	enginetest.MustGenerate(t, runCtx, e, two)
}

// TestStopReleasesAllRequests stops Run while one request is computed and another is in the inbox.
func TestStopReleasesAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		g := closed(e)
		run, stop := context.WithCancel(context.Background())
		ran, results := make(chan error, 1), make(chan error, 2)
		send := func(i int) {
			go func() {
				_, err := enginetest.Generate(context.Background(), e, greedy(i, 10, 5))
				results <- err
			}()
		}
		go func() { ran <- e.Run(run) }()
		send(1)
		<-g.Enter
		send(2)
		synctest.Wait()
		stop()
		g.Leave <- struct{}{}
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
		for range 2 {
			if err := <-results; fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("a request when the engine stopped: %v", err)
			}
		}
		if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || e.mu.sequences != 0 {
			t.Errorf("not idle: %+v, %d sequences", l, e.mu.sequences)
		}
	})
}

// faulty is a computer that fails in the way of fail when it computes the first token of a prompt that starts
// with the victim.
type faulty struct {
	Computer
	victim kv.Token
	fail   func() error
}

func (f *faulty) ComputeBatch(ctx context.Context, b *Batch) error {
	for i := range b.Plan.Work {
		if w := &b.Plan.Work[i]; w.Start == 0 && w.Tokens[0] == f.victim {
			if err := f.fail(); err != nil {
				return err
			}
		}
	}
	return f.Computer.ComputeBatch(ctx, b)
}

func TestFailedBatch(t *testing.T) {
	const victim = 95
	for name, fail := range map[string]func() error{
		"panic": func() error { panic("a defect") },
		"error": func() error { return errors.New("a defect") },
	} {
		t.Run(name, func(t *testing.T) {
			// One sequence at a time: the others wait and must not be affected.
			e := small(t, func(c *Config) { c.MaxSeqs = 1 })
			e.computer = &faulty{e.computer, victim, fail}
			ctx := enginetest.Start(t, e)
			before := enginetest.MustGenerate(t, ctx, e, greedy(1, 30, 8))[0].Tokens
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					req := greedy(1, 30, 8)
					if i == 1 {
						req.Prompt[0] = victim
						req.Choices = 2
					}
					got, err := enginetest.Generate(ctx, e, req)
					switch {
					case i == 1 && (fault.CodeOf(err) != fault.Internal || err == nil || strings.Contains(err.Error(), "a defect")):
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
}

func TestRunsOnce(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	enginetest.MustGenerate(t, ctx, e, greedy(1, 4, 1))
	if err := e.Run(ctx); fault.CodeOf(err) != fault.Conflict {
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
		"long prompt": {func(r *engine.Request) { r.Prompt = greedy(1, 400, 1).Prompt }, fault.Invalid, []string{"400", "320"}},
		"minimum":     {func(r *engine.Request) { r.Stop.MinTokens = 9 }, fault.Invalid, []string{"9", "8"}},
	} {
		req := greedy(1, 30, 8)
		c.change(req)
		err := e.Generate(ctx, req, func(*engine.Delta) error { return nil })
		if fault.CodeOf(err) != c.code {
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
