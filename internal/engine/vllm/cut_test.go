package vllm

import (
	"testing"

	"penstock/internal/mimic/mimictest"
)

// TestCuts holds the adapter to what it must do with answers that break off anywhere.
func TestCuts(t *testing.T) {
	s, card := served(t, nil)
	f := mimictest.Flaw(t, s)
	mimictest.TestCuts(t, f, opened(t, spec(t, f.URL().String()), card), pathCompletions)
}
