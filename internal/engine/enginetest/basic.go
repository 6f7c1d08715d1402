package enginetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

func (s *suite) testCard(t *testing.T) {
	c := s.card
	if c.Name == "" || c.Engine == "" || c.Numerics == "" {
		t.Errorf("name %q, engine %q, numerics %q: none may be empty", c.Name, c.Engine, c.Numerics)
	}
	if c.BlockSize < 2 || c.Blocks < 1 || c.Ranks < 1 || c.VocabSize < 2 || c.ContextLength < 2 {
		t.Errorf("impossible sizes: %+v", c)
	}
	if again := s.New(t).Card(); again.Numerics != c.Numerics {
		t.Errorf("two equal engines have numerics %q and %q", c.Numerics, again.Numerics)
	}
}

func (s *suite) testLifecycle(t *testing.T) {
	t.Run("generate waits for run", func(t *testing.T) {
		e := s.New(t)
		result := make(chan error, 1)
		go func() {
			_, err := Generate(t.Context(), e, s.newRequest(1, 10, 3))
			result <- err
		}()
		Start(t, e)
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("canceled before run", func(t *testing.T) {
		e := s.New(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := Generate(ctx, e, s.newRequest(1, 10, 3)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
		Start(t, e)
		requireIdle(t, e, "after a request that was canceled before Run")
	})
	t.Run("end of run ends requests", func(t *testing.T) {
		e := s.New(t)
		run, stop := context.WithCancel(context.Background())
		ran, result, first := make(chan error, 1), make(chan error, 1), make(chan struct{})
		go func() { ran <- e.Run(run) }()
		go func() {
			r := NewRecorder(s.newRequest(1, 10, 200))
			result <- e.Generate(context.Background(), r.req, func(d *engine.Delta) error {
				if len(d.Tokens) > 0 && len(r.Choices[0].Tokens) == 0 {
					close(first)
				}
				return r.Sink(d)
			})
		}()
		<-first
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		// The request may have finished before the engine stopped.
		if err := <-result; err != nil && !fault.CodeOf(err).Class().Retryable {
			t.Errorf("the request ended with %v, want a retryable error", err)
		}
		if _, err := Generate(context.Background(), e, s.newRequest(1, 10, 3)); !fault.CodeOf(err).Class().Retryable {
			t.Errorf("a request after the end: %v, want a retryable error", err)
		}
	})
}

func (s *suite) testInvalid(t *testing.T) {
	e, ctx := s.startEngine(t)
	vocab := kv.Token(s.card.VocabSize)
	for name, change := range map[string]func(*engine.Request){
		"no prompt":                  func(r *engine.Request) { r.Prompt = nil },
		"prompt fills the context":   func(r *engine.Request) { r.Prompt = make([]kv.Token, s.card.ContextLength) },
		"prompt outside vocabulary":  func(r *engine.Request) { r.Prompt[3] = vocab },
		"no choices":                 func(r *engine.Request) { r.Choices = 0 },
		"no output":                  func(r *engine.Request) { r.Stop.MaxTokens = 0 },
		"negative minimum":           func(r *engine.Request) { r.Stop.MinTokens = -1 },
		"negative temperature":       func(r *engine.Request) { r.Sampling.Temperature = -1 },
		"generated of another n":     func(r *engine.Request) { r.Generated = make([][]kv.Token, 2) },
		"done of another n":          func(r *engine.Request) { r.Done = make([]bool, 2) },
		"generated past the context": func(r *engine.Request) { r.Generated = [][]kv.Token{make([]kv.Token, s.card.ContextLength)} },
		"generated outside vocabulary": func(r *engine.Request) {
			r.Generated = [][]kv.Token{{vocab}}
		},
	} {
		req := s.newRequest(1, 10, 5)
		change(req)
		r := NewRecorder(req)
		err := e.Generate(ctx, req, r.Sink)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Invalid {
			t.Errorf("%s: error %v, want Invalid", name, err)
		}
		if r.Accepted {
			t.Errorf("%s: the request was accepted", name)
		}
	}
	if !s.card.StructuredOutput {
		req := s.newRequest(1, 10, 5)
		req.OutputSchema = &engine.OutputSchema{Schema: []byte(`{"type":"object"}`)}
		_, err := Generate(ctx, e, req)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Unimplemented || f.Param != engine.SchemaParam {
			t.Errorf("a guide for an engine that cannot: error %v, want Unimplemented about %s", err, engine.SchemaParam)
		}
	}
	requireIdle(t, e, "after invalid requests")
}

func (s *suite) testLength(t *testing.T) {
	e, ctx := s.startEngine(t)
	for _, n := range []int{1, 2, 40} {
		got := MustGenerate(t, ctx, e, s.newRequest(3, 20, n))[0]
		if len(got.Tokens) != n || got.Finish != engine.FinishLength {
			t.Errorf("max tokens %d: %d tokens, finish %d", n, len(got.Tokens), got.Finish)
		}
	}
	for room := 1; room <= 3; room++ {
		got := MustGenerate(t, ctx, e, s.newRequest(4, s.card.ContextLength-room, 100))[0]
		if len(got.Tokens) != room || got.Finish != engine.FinishLength {
			t.Errorf("%d tokens before the end of the context: %d tokens, finish %d", room, len(got.Tokens), got.Finish)
		}
	}
	requireIdle(t, e, "after all requests")
}

func (s *suite) testStop(t *testing.T) {
	e, ctx := s.startEngine(t)
	req := s.newRequest(5, 30, 40)
	whole := MustGenerate(t, ctx, e, req)[0].Tokens
	for at := 0; at < len(whole); at += 7 {
		stop := whole[at]
		req.Stop.Tokens = []kv.Token{stop}
		req.Stop.MinTokens = 0
		got := MustGenerate(t, ctx, e, req)[0]
		if want := tokensThrough(whole, stop); !slices.Equal(got.Tokens, want) || got.Finish != engine.FinishStop {
			t.Errorf("stop token at %d: %v, finish %d, want %v", at, got.Tokens, got.Finish, want)
		}
		// Now it must not come before the minimum.
		req.Stop.MinTokens = at + 4
		got = MustGenerate(t, ctx, e, req)[0]
		first := slices.Index(got.Tokens, stop)
		switch {
		case first >= 0 && first < at+4:
			t.Errorf("stop token at %d before the minimum of %d", first, at+4)
		case (first >= 0) != (got.Finish == engine.FinishStop), len(got.Tokens) > 40:
			t.Errorf("finish %d after %d tokens with the stop token at %d", got.Finish, len(got.Tokens), first)
		}
	}
}

func (s *suite) testEOS(t *testing.T) {
	e, ctx := s.startEngine(t)
	for _, eos := range s.card.EOS {
		req := s.newRequest(6, 12, 8)
		req.Sampling.Bias = []engine.TokenBias{{Token: eos, Bias: 1e4}}
		req.Stop.IgnoreEOS = true
		got := MustGenerate(t, ctx, e, req)[0]
		if len(got.Tokens) != 8 || got.Finish != engine.FinishLength {
			t.Errorf("ignoring end of sequence %d: %v, finish %d", eos, got.Tokens, got.Finish)
		}
		if got.Tokens[0] != eos {
			continue // the model cannot generate it
		}
		req.Stop.IgnoreEOS = false
		got = MustGenerate(t, ctx, e, req)[0]
		if !slices.Equal(got.Tokens, []kv.Token{eos}) || got.Finish != engine.FinishStop {
			t.Errorf("end of sequence %d: %v, finish %d", eos, got.Tokens, got.Finish)
		}
		req.Stop.MinTokens = 3
		got = MustGenerate(t, ctx, e, req)[0]
		if len(got.Tokens) != 4 || slices.Index(got.Tokens, eos) != 3 || got.Finish != engine.FinishStop {
			t.Errorf("end of sequence %d after 3: %v, finish %d", eos, got.Tokens, got.Finish)
		}
	}
}

func (s *suite) testDone(t *testing.T) {
	e, ctx := s.startEngine(t)
	req := s.newRequest(7, 20, 6)
	req.Choices, req.Sampling = 3, engine.Sampling{Temperature: 1, Seed: 3}
	whole := MustGenerate(t, ctx, e, req)

	req.Attempt = 2
	req.Generated = [][]kv.Token{whole[0].Tokens, whole[1].Tokens[:2], nil}
	req.Done = []bool{true, false, false}
	got := MustGenerate(t, ctx, e, req)
	if !s.isContinuation(got[1].Tokens, whole[1].Tokens[2:]) || !s.isContinuation(got[2].Tokens, whole[2].Tokens) {
		t.Errorf("resumed beside a finished choice: %v", got)
	}
	// Everything was delivered, except for the finish.
	req.Done = nil
	req.Generated = [][]kv.Token{whole[0].Tokens, whole[1].Tokens, whole[2].Tokens}
	for i, c := range MustGenerate(t, ctx, e, req) {
		if len(c.Tokens) != 0 || c.Finish != engine.FinishLength {
			t.Errorf("choice %d had reached its length: %+v", i, c)
		}
	}
	req.Stop.Tokens = []kv.Token{whole[1].Tokens[1]}
	req.Generated = [][]kv.Token{nil, whole[1].Tokens[:2], nil}
	if c := MustGenerate(t, ctx, e, req)[1]; len(c.Tokens) != 0 || c.Finish != engine.FinishStop {
		t.Errorf("choice 1 had reached a stop token: %+v", c)
	}
	req.Done = []bool{true, true, true}
	MustGenerate(t, ctx, e, req) // returns, with Accepted alone
	requireIdle(t, e, "after all requests")
}

// isContinuation reports whether a resumed stream is the rest of the original one, as far as engines of this
// kind guarantee it.
func (s *suite) isContinuation(got, want []kv.Token) bool {
	return slices.Equal(got, want) || s.Redraws && len(got) == len(want)
}

func (s *suite) testLogprobs(t *testing.T) {
	e, ctx := s.startEngine(t)
	req := s.newRequest(8, 20, 10)
	req.Logprobs = 5
	if s.NoLogprobs {
		_, err := Generate(ctx, e, req)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Unimplemented || f.Param != "logprobs" {
			t.Errorf("error %v, want Unimplemented about logprobs", err)
		}
		return
	}
	for _, sampling := range []engine.Sampling{{}, {Temperature: 2, Seed: 4, PresencePenalty: 1}} {
		req.Sampling = sampling
		for i, l := range MustGenerate(t, ctx, e, req)[0].Logprobs {
			if len(l.Top) != 5 || !slices.IsSortedFunc(l.Top, func(a, b engine.TokenLogprob) int { return cmpDescending(a.Logprob, b.Logprob) }) {
				t.Errorf("token %d: alternatives %+v", i, l.Top)
			}
			for _, alt := range l.Top {
				if alt.Token == l.Token && alt.Logprob != l.Logprob {
					t.Errorf("token %d: %v as the token drawn, %v as an alternative", i, l.Logprob, alt.Logprob)
				}
			}
			if sampling.Temperature == 0 && l.Top[0].Token != l.Token {
				t.Errorf("token %d: greedy drew %d, most likely is %d", i, l.Token, l.Top[0].Token)
			}
		}
	}
}

func cmpDescending(a, b float32) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

func (s *suite) testSeeds(t *testing.T) {
	e, ctx := s.startEngine(t)
	req := s.newRequest(9, 20, 24)
	req.Choices = 2
	run := func(seed uint64) []Choice {
		req.Sampling = engine.Sampling{Temperature: 1.5, Seed: seed}
		return MustGenerate(t, ctx, e, req)
	}
	a, again, b := run(1), run(1), run(2)
	if !slices.Equal(a[0].Tokens, again[0].Tokens) || !slices.Equal(a[1].Tokens, again[1].Tokens) {
		t.Error("the same seed gave different tokens")
	}
	if slices.Equal(a[0].Tokens, b[0].Tokens) {
		t.Error("two seeds gave the same tokens")
	}
	if slices.Equal(a[0].Tokens, a[1].Tokens) {
		t.Error("two choices are the same")
	}
}
