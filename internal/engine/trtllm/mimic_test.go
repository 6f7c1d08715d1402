package trtllm

import (
	"context"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rig mimictest.Rig

// config returns the adapter's configuration for a server whose model is that of card.
func config(t testing.TB, s *mimic.Server, card engine.Card) Config {
	t.Helper()
	return Config{
		Spec: remote.Spec{
			Kind: "trtllm", URL: mimictest.URL(t, s), Rank: remote.AnyRank, Ranks: 1,
			Events: mimictest.Endpoint(t, s.EventsAddr()), Replay: mimictest.Endpoint(t, s.ReplayAddr()),
		},
		Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: card.VocabSize, ContextLength: card.ContextLength, EOS: card.EOS,
	}
}

// opened opens an adapter.
func opened(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Client().Close)
	return e
}

// TestSuite runs the conformance suite over real sockets.
func TestSuite(t *testing.T) {
	for name, change := range map[string]func(*mimic.Config){
		"published": func(c *mimic.Config) {
			c.KVEvents, c.KVReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
		},
		"pulled": nil,
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Test(t, enginetest.Options{Redraws: true, NoLogprobs: true, New: func(t testing.TB) engine.Engine {
				s, card := rig.Serve(t, mimic.TRTLLM, change)
				return mimictest.Unguided(opened(t, config(t, s, card)))
			}})
		})
	}
}
