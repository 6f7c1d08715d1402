package llamacpp

import (
	"testing"

	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"
)

// TestCuts checks the adapter with responses that break off at any byte.
func TestCuts(t *testing.T) {
	s, card := rig.Serve(t, mimic.LlamaCPP, nil)
	f := mimictest.Flaw(t, s)
	cfg := config(t, s, card)
	cfg.Spec.URL = f.URL()
	mimictest.TestCuts(t, f, opened(t, cfg), "/completion")
}
