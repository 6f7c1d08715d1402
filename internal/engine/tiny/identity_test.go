package tiny

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"

	"github.com/google/go-cmp/cmp"
)

// spy is a forwarder that counts the kinds of work the model was given, so that a test can prove that the
// intended circumstances occurred.
type spy struct {
	forwarder
	steps    atomic.Int64
	crowded  atomic.Int64 // steps with more than one sequence
	mixed    atomic.Int64 // steps with prompt chunks and single tokens together
	chunks   atomic.Int64 // chunks of prompts which start after the first token
	computed atomic.Int64 // tokens
}

func (s *spy) Forward(c *model.Cache, work []model.Work) error {
	s.steps.Add(1)
	if len(work) > 1 {
		s.crowded.Add(1)
	}
	var single, many bool
	for i := range work {
		w := &work[i]
		s.computed.Add(int64(len(w.Tokens)))
		if w.Start > 0 && len(w.Tokens) > 1 {
			s.chunks.Add(1)
		}
		single = single || len(w.Tokens) == 1
		many = many || len(w.Tokens) > 1
	}
	if single && many {
		s.mixed.Add(1)
	}
	return s.forwarder.Forward(c, work)
}

// spied starts an engine whose work is counted.
func spied(t *testing.T, e *Engine) (*Engine, *spy, context.Context) {
	s := &spy{forwarder: e.cpu.forward}
	e.cpu.forward = s
	return e, s, enginetest.Start(t, e)
}

// workload is n requests of all kinds: short and long, greedy and sampled, with and without penalties, one
// choice and several, in families that share prefixes.
func workload(n, vocab, output int) []*engine.Request {
	samplings := []engine.Sampling{
		{},
		{Temperature: 1, Seed: 5},
		{Temperature: 0.8, TopK: 30, TopP: 0.9, Seed: 6},
		{Temperature: 1.3, MinP: 0.02, RepetitionPenalty: 1.2, PresencePenalty: 0.5, FrequencyPenalty: 0.3, Seed: 7},
		{RepetitionPenalty: 1.3},
	}
	var all []*engine.Request
	for i := range n {
		req := within(vocab, greedy(i%4, 3+i*11%70, output/2+i*3%(output/2)))
		// Members of a family differ in their last token.
		req.Prompt[len(req.Prompt)-1] = kv.Token(10 + i)
		req.ID, req.Logprobs = fmt.Sprint("request-", i), 2
		req.Sampling, req.Choices = samplings[i%len(samplings)], 1+i%3/2
		req.Stop.IgnoreEOS = true
		all = append(all, req)
	}
	for i, schema := range guidedSchemas {
		req := within(vocab, greedy(i%4, 9+i*17%50, output))
		req.ID, req.Logprobs, req.Stop.IgnoreEOS = fmt.Sprint("guided-", i), 2, i%2 == 0
		req.Sampling, req.Choices = samplings[(i+1)%len(samplings)], 1+i%2
		req.OutputSchema = &engine.OutputSchema{Schema: []byte(schema)}
		all = append(all, req)
	}
	return all
}

// guidedSchemas are schemas of texts that end soon and of some that do not.
var guidedSchemas = []string{
	`{"type":"object","properties":{"name":{"type":"string","maxLength":5},"n":{"type":"integer","minimum":-99,"maximum":99},"ok":{"type":"boolean"}},"required":["name","n"]}`,
	`{"type":"array","items":{"enum":["a","ab",12,null]},"minItems":2,"maxItems":6}`,
	`{"type":"object"}`,
	`{"anyOf":[{"type":"string","pattern":"^[a-f]{3,9}$"},{"type":"number","minimum":0,"maximum":1}]}`,
}

// within moves the prompt of req into a vocabulary.
func within(vocab int, req *engine.Request) *engine.Request {
	for i := range req.Prompt {
		req.Prompt[i] %= kv.Token(vocab)
	}
	return req
}

// run serves one request and returns its answer, without the cached counts, which depend on the
// circumstances.
func run(ctx context.Context, e *Engine, req *engine.Request) (choices []enginetest.Choice, cached int, err error) {
	choices, err = enginetest.Generate(ctx, e, req)
	for i := range choices {
		cached += choices[i].Cached
		choices[i].Cached = 0
	}
	return choices, cached, err
}

// alone serves each request by itself, one after the other, and returns the answers and the cached tokens of
// all.
func alone(t *testing.T, ctx context.Context, e *Engine, requests []*engine.Request) (answers [][]enginetest.Choice, cached int) {
	t.Helper()
	for _, req := range requests {
		a, n, err := run(ctx, e, req)
		if err != nil {
			t.Fatalf("%s: %v", req.ID, err)
		}
		answers, cached = append(answers, a), cached+n
	}
	return answers, cached
}

// together serves all requests concurrently. With stagger each starts when the one before has its second
// token, so that they join the batch at different steps.
func together(t *testing.T, ctx context.Context, e *Engine, requests []*engine.Request, stagger bool) [][]enginetest.Choice {
	t.Helper()
	answers := make([][]enginetest.Choice, len(requests))
	var wg sync.WaitGroup
	next := make(chan struct{}) // closed when the next request may start
	close(next)
	for i, req := range requests {
		begin := next
		next = make(chan struct{})
		next := next
		if !stagger {
			close(next)
		}
		wg.Go(func() {
			<-begin
			r := enginetest.NewRecorder(req)
			begun := !stagger
			err := e.Generate(ctx, req, func(d *engine.Delta) error {
				err := r.Sink(d)
				if !begun && len(r.Choices[0].Tokens) >= 2 {
					begun = true
					close(next)
				}
				return err
			})
			if !begun {
				close(next)
			}
			if err != nil {
				t.Errorf("%s: %v", req.ID, err)
			}
			for c := range r.Choices {
				r.Choices[c].Cached = 0
			}
			answers[i] = r.Choices
		})
	}
	wg.Wait()
	return answers
}

func same(t *testing.T, what string, want, got [][]enginetest.Choice) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: not what each request gives alone on a cold engine (-alone +got):\n%s", what, diff)
	}
}

func happened(t *testing.T, what string, n int64) {
	t.Helper()
	if n == 0 {
		t.Errorf("the test tested nothing: %s never happened", what)
	}
}

// TestIdentity checks the package's guarantee: tokens and log-probabilities are the same bits whatever else
// the engine does, did, or has in its cache.
func TestIdentity(t *testing.T) {
	identity(t, workload(15, 96, 40), []int{1, 3, 7, 16}, small)
}

// TestBuiltinIdentity is the same with the built-in model.
func TestBuiltinIdentity(t *testing.T) {
	identity(t, workload(8, 2048, 8), []int{7}, func(t testing.TB, change func(*Config)) *Engine {
		return newBuiltin(t, func(c *Config) {
			c.BlockSize, c.Blocks, c.MaxContext = 4, 120, 320 // as small does
			change(c)
		})
	})
}

func identity(t *testing.T, requests []*engine.Request, budgets []int, make func(testing.TB, func(*Config)) *Engine) {
	// The reference: one sequence, nothing cached, a prompt in one piece.
	cold, coldSpy, coldCtx := spied(t, make(t, func(c *Config) { c.Reuse, c.TokenBudget, c.MaxSeqs = paged.Off, 512, 1 }))
	want, cached := alone(t, coldCtx, cold, requests)
	if cached != 0 || coldSpy.chunks.Load() != 0 || coldSpy.crowded.Load() != 0 {
		t.Fatalf("the reference is not cold: %d tokens cached, %d chunks, %d batches", cached, coldSpy.chunks.Load(), coldSpy.crowded.Load())
	}

	t.Run("prefix hit", func(t *testing.T) {
		e, s, ctx := spied(t, make(t, func(c *Config) { c.Blocks = 4000 }))
		got, _ := alone(t, ctx, e, requests)
		same(t, "on an engine that gets warm", want, got)
		before := s.computed.Load()
		got, cached := alone(t, ctx, e, requests)
		same(t, "on a warm engine", want, got)
		happened(t, "a prefix hit", int64(cached))
		if computed := s.computed.Load() - before; computed >= coldSpy.computed.Load() {
			t.Errorf("computed %d tokens with hits, %d without", computed, coldSpy.computed.Load())
		}
	})
	t.Run("batch", func(t *testing.T) {
		e, s, ctx := spied(t, make(t, func(c *Config) { c.Blocks, c.MaxSeqs = 4000, 32 }))
		same(t, "all at once", want, together(t, ctx, e, requests, false))
		same(t, "all at once, again", want, together(t, ctx, e, requests, false))
		happened(t, "a batch of several sequences", s.crowded.Load())
	})
	t.Run("arriving at different steps", func(t *testing.T) {
		e, s, ctx := spied(t, make(t, func(c *Config) { c.Blocks, c.MaxSeqs = 4000, 32 }))
		same(t, "one after the other", want, together(t, ctx, e, requests, true))
		happened(t, "a step of both prompts and output", s.mixed.Load())
	})
	for _, budget := range budgets {
		t.Run(fmt.Sprint("chunks of ", budget), func(t *testing.T) {
			e, s, ctx := spied(t, make(t, func(c *Config) { c.MaxSeqs, c.TokenBudget, c.Blocks = min(3, budget), budget, 1000 }))
			same(t, "chunked", want, together(t, ctx, e, requests, true))
			if budget > 1 {
				happened(t, "a prompt in several chunks", s.chunks.Load())
			}
		})
	}
	t.Run("eviction", func(t *testing.T) {
		e, _, ctx := spied(t, make(t, func(c *Config) { c.Blocks, c.MaxSeqs = 80, 2 }))
		first, _, err := run(ctx, e, requests[6])
		if err != nil {
			t.Fatal(err)
		}
		again, hit, err := run(ctx, e, requests[6])
		if err != nil {
			t.Fatal(err)
		}
		happened(t, "a prefix hit", int64(hit))
		for i := range 3 {
			if _, _, err := run(ctx, e, within(96, greedy(100+i, 280, 4))); err != nil {
				t.Fatal(err)
			}
		}
		after, cached, err := run(ctx, e, requests[6])
		if err != nil {
			t.Fatal(err)
		}
		if cached != 0 {
			t.Errorf("%d tokens are cached; the test needs them evicted", cached)
		}
		for _, got := range [][]enginetest.Choice{first, again, after} {
			same(t, "before or after eviction", want[6:7], [][]enginetest.Choice{got})
		}
	})
	t.Run("preemption", func(t *testing.T) {
		// Three choices of finally 80 tokens, with a common prompt of 20, do not fit 120 tokens together.
		crowd := within(96, greedy(9, 20, 60))
		crowd.ID, crowd.Choices, crowd.Sampling, crowd.Logprobs = "crowd", 3, engine.Sampling{Temperature: 1, Seed: 8}, 2
		wantCrowd, _ := alone(t, coldCtx, cold, []*engine.Request{crowd})

		e, _, ctx := spied(t, make(t, func(c *Config) { c.Blocks, c.MaxSeqs = 30, 16 }))
		got, _ := alone(t, ctx, e, []*engine.Request{crowd})
		same(t, "preempted", wantCrowd, got)
		happened(t, "a preemption", int64(e.Load().Preemptions))
		same(t, "preempted", want, together(t, ctx, e, requests, false))
		same(t, "preempted", append(wantCrowd, want...), together(t, ctx, e, append([]*engine.Request{crowd}, requests...), true))
	})
}
