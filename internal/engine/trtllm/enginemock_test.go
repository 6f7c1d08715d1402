package trtllm

import (
	"testing"
	"time"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

var rig enginemocktest.MockRig

// config returns the adapter's configuration for a server whose model is that of card.
func config(t testing.TB, s *enginemock.Server, card engine.Card) Config {
	t.Helper()
	return Config{
		Spec: remote.Spec{
			Kind: "trtllm", URL: enginemocktest.ServerURL(t, s), Rank: remote.AnyRank, Ranks: 1, SaltWait: time.Minute,
			Events: enginemocktest.ParseEndpoint(t, s.EventsAddr()), Replay: enginemocktest.ParseEndpoint(t, s.ReplayAddr()),
		},
		Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: card.VocabSize, ContextLength: card.ContextLength, EOS: card.EOS,
	}
}

// opened opens an adapter.
func opened(t testing.TB, cfg Config) *Engine {
	t.Helper()
	return enginetest.OpenAdapter(t, Open, cfg)
}

// TestSuite runs the conformance suite over real sockets.
func TestSuite(t *testing.T) {
	for name, change := range map[string]func(*enginemock.Config){
		"published": func(c *enginemock.Config) {
			c.KVEvents, c.KVReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
		},
		"pulled": nil,
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Test(t, enginetest.Options{Redraws: true, NoLogprobs: true, New: func(t testing.TB) engine.Engine {
				s, card := rig.StartServer(t, enginemock.TRTLLM, change)
				return enginemocktest.WithoutGrammar(opened(t, config(t, s, card)))
			}})
		})
	}
}
