package llamacpp

import (
	"testing"

	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"
)

// TestSalts checks the refusal of salts if the engine ignores cache_prompt, so that prompts of all salts meet
// in its one slot.
func TestSalts(t *testing.T) {
	mimictest.TestSalts(t, func(t testing.TB, set ...mimic.Fault) mimictest.Adapter {
		s, card := rig.Serve(t, mimic.LlamaCPP, func(c *mimic.Config) {
			c.Faults, c.Slots = set, 4
			if len(set) > 0 {
				c.Slots = 1
			}
		})
		return opened(t, config(t, s, card))
	})
}
