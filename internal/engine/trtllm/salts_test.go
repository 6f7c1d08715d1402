package trtllm

import (
	"testing"

	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

func TestSalts(t *testing.T) {
	enginemocktest.TestSalts(t, func(t testing.TB, set ...enginemock.Fault) enginemocktest.Adapter {
		s, card := rig.StartServer(t, enginemock.TRTLLM, func(c *enginemock.Config) { c.Faults = set })
		return opened(t, config(t, s, card))
	}, "/v1/chat/completions", "/v1/completions")
}
