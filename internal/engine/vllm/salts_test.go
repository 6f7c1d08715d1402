package vllm

import (
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"
)

func TestSalts(t *testing.T) {
	for _, dialect := range []mimic.Dialect{mimic.VLLM, mimic.VLLMLegacy} {
		t.Run(string(dialect), func(t *testing.T) {
			mimictest.TestSalts(t, func(t testing.TB, set ...mimic.Fault) mimictest.Adapter {
				s, card := served(t, func(c *mimic.Config) { c.Dialect, c.Faults = dialect, set })
				at := spec(t, s.URL())
				at.Events, at.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
				return opened(t, at, card)
			}, "/v1/chat/completions", "/v1/completions")
		})
	}
}

// TestPrefixCachingOff: where the engine reuses nothing, nothing is predicted, and there are no salts to prove.
func TestPrefixCachingOff(t *testing.T) {
	p := &probe{cfg: &Config{}, cache: cacheConfig{caching: "False"}}
	card := engine.Card{}
	source, err := p.source(&card)
	if err != nil || source != nil || !card.NoReuse || p.salts() != remote.SaltsMoot {
		t.Errorf("source %v, %v; no reuse %v; salts %v", source, err, card.NoReuse, p.salts())
	}
}
