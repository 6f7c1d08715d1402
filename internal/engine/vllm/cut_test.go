package vllm

import (
	"testing"

	"penstock/internal/enginemock/enginemocktest"
)

// TestCuts checks the adapter with responses that break off at any byte.
func TestCuts(t *testing.T) {
	s, card := served(t, nil)
	f := enginemocktest.StartFaultyProxy(t, s)
	enginemocktest.TestCuts(t, f, opened(t, spec(t, f.URL().String()), card), pathCompletions)
}
