package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/engine/enginetest"
)

// TestPrefillElsewhere: a prompt which another engine computes takes the time of its prefill there, of the transfer of
// its blocks by Timing.KV, and of the rest of the prompt here.
func TestPrefillElsewhere(t *testing.T) { synctest.Test(t, testPrefillElsewhere) }

func testPrefillElsewhere(t *testing.T) {
	open := func() *Engine {
		return small(t, func(c *Config) {
			c.TokenBudget = 320
			c.Timing.KV = KV{Bytes: 1e6, Bandwidth: 1, Fixed: 7} // 1 ms for a token
		})
	}
	prefill, decode := open(), open()
	ctx := enginetest.Start(t, prefill)
	enginetest.Start(t, decode)
	begin := time.Now()
	req := request(1, 103, 3)
	got, m, err := enginetest.GenerateApart(ctx, prefill, decode, req)
	if err != nil || len(got[0].Tokens) != 3 {
		t.Fatalf("%v: %v", err, got)
	}
	// 103 ms of prefill, 100 tokens of 1 ms and 7 ms of the transfer, 3 ms of prefill, 3 tokens of 10 ms.
	if d := time.Since(begin); d != (103+107+3+30)*time.Millisecond {
		t.Errorf("it took %v", d)
	}
	if m.Held != 0 || m.End != 100 || m.Bytes != 100*simTokenBytes {
		t.Errorf("%+v was moved", m)
	}
}
