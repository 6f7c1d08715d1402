package trtllm

import (
	"testing"

	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"
)

func TestSalts(t *testing.T) {
	mimictest.TestSalts(t, func(t testing.TB, set ...mimic.Fault) mimictest.Adapter {
		s, card := rig.Serve(t, mimic.TRTLLM, func(c *mimic.Config) { c.Faults = set })
		return opened(t, config(t, s, card))
	}, "/v1/chat/completions", "/v1/completions")
}
