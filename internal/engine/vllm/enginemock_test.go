package vllm

import (
	"context"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// served runs an engine mock of vLLM until the test ends.
func served(t testing.TB, change func(*enginemock.Config)) (*enginemock.Server, engine.Card) {
	t.Helper()
	open, card, pipe := simulated(t)
	cfg := enginemock.Config{
		Dialect: enginemock.VLLM, Open: open, Pipe: pipe,
		KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0",
	}
	if change != nil {
		change(&cfg)
	}
	s, err := enginemock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	return s, card
}

// TestSuite runs the conformance suite over real sockets.
func TestSuite(t *testing.T) {
	for name, change := range map[string]func(*enginemock.Config){
		"completions": nil,
		"legacy":      func(c *enginemock.Config) { c.Dialect = enginemock.VLLMLegacy },
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Test(t, enginetest.Options{Redraws: true, New: func(t testing.TB) engine.Engine {
				s, card := served(t, change)
				at := spec(t, s.URL())
				at.Events, at.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
				return enginemocktest.WithoutGrammar(opened(t, at, card))
			}})
		})
	}
}
