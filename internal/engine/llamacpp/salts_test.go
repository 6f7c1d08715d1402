package llamacpp

import (
	"testing"

	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// TestSalts checks the refusal of salts if the engine ignores cache_prompt, so that prompts of all salts meet
// in its one slot.
func TestSalts(t *testing.T) {
	enginemocktest.TestSalts(t, func(t testing.TB, set ...enginemock.Fault) enginemocktest.Adapter {
		s, card := rig.StartServer(t, enginemock.LlamaCPP, func(c *enginemock.Config) {
			c.Faults, c.Slots = set, 4
			if len(set) > 0 {
				c.Slots = 1
			}
		})
		return opened(t, config(t, s, card))
	})
}
