package sim

import (
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// small returns an engine with room for few sequences, whose passes take 1 ms per
// prompt token and 10 ms for a token of output.
func small(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	cfg := Config{
		Name:       "small",
		Vocabulary: Vocabulary{Size: 96, Mask: []kv.Token{0, 1, 2, 8}, EOS: []kv.Token{7}},
		Blocks:     120, BlockSize: 4, ContextLength: 320,
		MaxSeqs: 16, TokenBudget: 48, MaxWaiting: 256,
		Timing: Timing{Prefill: Prefill{Token: 1}, Decode: Decode{Base: 10}},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestConformance runs the conformance suite with an engine whose passes take almost no time.
func TestConformance(t *testing.T) {
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		return small(t, func(c *Config) { c.Timing.Speedup = 1e6 })
	}})
}
