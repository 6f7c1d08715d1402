package sglang

import (
	"testing"

	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// TestCuts checks the adapter with responses that break off at any byte.
func TestCuts(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, nil)
	f := enginemocktest.StartFaultyProxy(t, s)
	cfg := config(t, s, card)
	cfg.Spec.URL = f.URL()
	enginemocktest.TestCuts(t, f, opened(t, cfg), "/generate")
}
