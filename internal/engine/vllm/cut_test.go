package vllm

import (
	"testing"

	"penstock/internal/mimic/mimictest"
)

// TestCuts checks the adapter with responses that break off at any byte.
func TestCuts(t *testing.T) {
	s, card := served(t, nil)
	f := mimictest.Flaw(t, s)
	mimictest.TestCuts(t, f, opened(t, spec(t, f.URL().String()), card), pathCompletions)
}
