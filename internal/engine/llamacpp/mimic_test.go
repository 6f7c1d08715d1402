package llamacpp

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

// config is that of an adapter of a server whose model is that of card.
func config(t testing.TB, s *mimic.Server, card engine.Card) Config {
	t.Helper()
	return Config{
		Spec: remote.Spec{
			Kind: "llamacpp", URL: mimictest.URL(t, s), Rank: remote.AnyRank, Ranks: 1,
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

// TestSuite holds the adapter to the contract over real sockets.
func TestSuite(t *testing.T) {
	enginetest.Test(t, enginetest.Options{Redraws: true, SingleTokens: true, New: func(t testing.TB) engine.Engine {
		s, card := rig.Serve(t, mimic.LlamaCPP, nil)
		return mimictest.Unguided(opened(t, config(t, s, card)))
	}})
}
