// Package enginetest is the conformance suite of engines: what the contract in
// package engine promises, as tests that every implementation runs.
//
// An engine under test is small and quick: a context of a few hundred tokens and
// a cache of a few dozen blocks make the suite both fast and able to overflow
// things.
package enginetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// Options describe the engines to test.
type Options struct {
	// New returns an engine that does not run yet. Each call returns an equal
	// one: same weights, same configuration. The engine has room for at least 16
	// sequences at once, a context of at least 256 and at most 4096 tokens, and
	// blocks of at most 32 tokens.
	New func(testing.TB) engine.Engine
	// Prompt returns n tokens that the model takes as a prompt; different seeds
	// differ from the first token on. Nil draws them uniformly from the
	// vocabulary.
	Prompt func(seed uint64, n int) []kv.Token
	// Text returns the text of a token; "" if it has none. Engines whose card says
	// Guided need it.
	Text func(kv.Token) string
	// Redraws says that the engine goes on with a stream as with any prompt: what it draws then is not
	// what it would have drawn, so that of resumed streams only the shape is tested.
	Redraws bool
	// NoLogprobs says that the engine refuses requests for log-probabilities.
	NoLogprobs bool
	// SingleTokens says that the engine reuses single tokens, whatever the card's blocks.
	SingleTokens bool
}

// Test runs the suite. Optional abilities (KVSource, LoadSource, Embedder, Preprocessor) are tested
// where the engine has them.
func Test(t *testing.T, o Options) {
	s := newSuite(t, o)
	t.Run("Card", s.testCard)
	t.Run("Lifecycle", s.testLifecycle)
	t.Run("Invalid", s.testInvalid)
	t.Run("Length", s.testLength)
	t.Run("Stop", s.testStop)
	t.Run("EOS", s.testEOS)
	t.Run("Done", s.testDone)
	t.Run("Logprobs", s.testLogprobs)
	t.Run("Seeds", s.testSeeds)
	t.Run("Resume", s.testResume)
	t.Run("Concurrent", s.testConcurrent)
	t.Run("Cancel", s.testCancel)
	t.Run("SinkError", s.testSinkError)
	t.Run("SlowSink", s.testSlowSink)
	t.Run("Cached", s.testCached)
	t.Run("Guide", s.testGuide)
	t.Run("Embed", s.testEmbed)
	t.Run("Preprocess", s.testPreprocess)
	t.Run("Watch", s.testWatch)
	t.Run("SlowWatcher", s.testSlowWatcher)
}

// TestPreprocess runs the part of the suite that is about prompts, for a
// Preprocessor around an engine that is tested by itself.
func TestPreprocess(t *testing.T, o Options) { newSuite(t, o).testPreprocess(t) }

func newSuite(t *testing.T, o Options) *suite {
	s := &suite{Options: o, card: o.New(t).Card()}
	if s.Prompt == nil {
		s.Prompt = s.uniform
	}
	return s
}

type suite struct {
	Options
	card engine.Card
}

// patience bounds every wait, so that a broken engine fails instead of hanging.
const patience = 3 * time.Minute

// Start runs e until the test ends and then requires that Run returned nil. The
// context it returns ends before e does.
func Start(t testing.TB, e engine.Engine) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	run, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(run) }()
	t.Cleanup(func() {
		cancel()
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return ctx
}

func (s *suite) start(t *testing.T) (engine.Engine, context.Context) {
	e := s.New(t)
	return e, Start(t, e)
}

// request returns a greedy request for n tokens after a prompt of its own.
func (s *suite) request(seed uint64, prompt, n int) *engine.Request {
	return &engine.Request{
		ID: "test", Attempt: 1, Choices: 1, Logprobs: -1,
		Prompt: s.Prompt(seed, prompt),
		Stop:   engine.Stop{MaxTokens: n, IgnoreEOS: true},
	}
}

func (s *suite) uniform(seed uint64, n int) []kv.Token {
	rng := rand.New(rand.NewPCG(seed, 0))
	prompt := make([]kv.Token, n)
	for i := range prompt {
		prompt[i] = kv.Token(rng.IntN(s.card.VocabSize))
	}
	if n > 0 {
		prompt[0] = kv.Token(seed % uint64(s.card.VocabSize))
	}
	return prompt
}

// MustGenerate is Generate that must succeed.
func MustGenerate(t testing.TB, ctx context.Context, e engine.Engine, req *engine.Request) []Choice {
	t.Helper()
	got, err := Generate(ctx, e, req)
	if err != nil {
		t.Fatalf("generate: %v", err)
	}
	return got
}

// idle fails unless the engine has no work and no block in use, if it can tell.
func idle(t testing.TB, e engine.Engine, when string) {
	t.Helper()
	src, ok := e.(engine.LoadSource)
	if !ok {
		return
	}
	if l := src.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || l.PrefillTokens != 0 {
		t.Errorf("%s: the engine is not idle: %+v", when, l)
	}
}

// upTo returns tokens up to and including the first occurrence of stop.
func upTo(tokens []kv.Token, stop kv.Token) []kv.Token {
	if i := slices.Index(tokens, stop); i >= 0 {
		return tokens[:i+1]
	}
	return tokens
}
