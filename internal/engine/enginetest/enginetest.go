// Package enginetest is the conformance suite of engines: it tests the contract in package engine for every
// implementation.
//
// The engine under test should be small and quick: with a context of a few hundred tokens and a cache of a
// few dozen blocks the suite is fast and can overflow the cache.
package enginetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// Options describe the engines to test.
type Options struct {
	// New returns an engine that does not run yet. Each call returns an equal one: same weights, same
	// configuration. The engine has room for at least 16 sequences at once, a context of at least 256 and at
	// most 4096 tokens, and blocks of at most 32 tokens.
	New func(testing.TB) engine.Engine
	// Prompt returns n tokens that the model takes as a prompt; prompts of different seeds differ from the
	// first token on. Nil draws them uniformly from the vocabulary.
	Prompt func(seed uint64, n int) []kv.Token
	// Text returns the text of a token; "" if it has none. Engines whose card says StructuredOutput need it.
	Text func(kv.Token) string
	// Redraws says that the engine continues a stream like any prompt: it may draw other tokens than without
	// the interruption, so only the shape of resumed streams is tested.
	Redraws bool
	// NoLogprobs says that the engine refuses requests for log-probabilities.
	NoLogprobs bool
	// SingleTokens says that the engine reuses single tokens, not only blocks.
	SingleTokens bool
}

// Test runs the suite. It tests optional abilities (KVSource, LoadSource, Embedder, Preprocessor, BlockProvider with
// BlockReceiver) if the engine has them.
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
	t.Run("Blocks", s.testBlocks)
	t.Run("Guide", s.testSchema)
	t.Run("Embed", s.testEmbed)
	t.Run("Preprocess", s.testPreprocess)
	t.Run("Watch", s.testWatch)
	t.Run("SlowWatcher", s.testSlowWatcher)
}

// TestPreprocess runs the tests of prompts, for a Preprocessor around an engine which has its own tests.
func TestPreprocess(t *testing.T, o Options) { newSuite(t, o).testPreprocess(t) }

func newSuite(t *testing.T, o Options) *suite {
	s := &suite{Options: o, card: o.New(t).Card()}
	if s.Prompt == nil {
		s.Prompt = s.uniformPrompt
	}
	return s
}

type suite struct {
	Options
	card engine.Card
}

// Start runs e until the test ends and then requires that Run returned nil. The context it returns ends
// before e does. It has no deadline but the test binary's: a slow machine is no fault of an engine.
func Start(t testing.TB, e engine.Engine) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
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

// OpenAdapter opens an adapter of an engine which is a server, and closes its client when the test ends.
func OpenAdapter[C any, K interface{ Close() }, E interface{ Client() K }](t testing.TB, open func(context.Context, C) (E, error), cfg C) E {
	t.Helper()
	e, err := open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Client().Close)
	return e
}

func (s *suite) startEngine(t *testing.T) (engine.Engine, context.Context) {
	e := s.New(t)
	return e, Start(t, e)
}

// newRequest returns a greedy request for n tokens after a prompt made from seed.
func (s *suite) newRequest(seed uint64, prompt, n int) *engine.Request {
	return &engine.Request{
		ID: "test", Attempt: 1, Choices: 1, Logprobs: -1,
		Prompt: s.Prompt(seed, prompt),
		Stop:   engine.Stop{MaxTokens: n, IgnoreEOS: true},
	}
}

func (s *suite) uniformPrompt(seed uint64, n int) []kv.Token {
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

// MustGenerate calls Generate and fails the test on an error.
func MustGenerate(t testing.TB, ctx context.Context, e engine.Engine, req *engine.Request) []Choice {
	t.Helper()
	got, err := Generate(ctx, e, req)
	if err != nil {
		t.Fatalf("generate: %v", err)
	}
	return got
}

// requireIdle fails the test unless the engine reports no work and no block in use. It does nothing if the
// engine reports no load.
func requireIdle(t testing.TB, e engine.Engine, when string) {
	t.Helper()
	src, ok := e.(engine.LoadSource)
	if !ok {
		return
	}
	if l := src.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 || l.PrefillTokens != 0 {
		t.Errorf("%s: the engine is not idle: %+v", when, l)
	}
}

// tokensThrough returns tokens up to and including the first occurrence of stop.
func tokensThrough(tokens []kv.Token, stop kv.Token) []kv.Token {
	if i := slices.Index(tokens, stop); i >= 0 {
		return tokens[:i+1]
	}
	return tokens
}
