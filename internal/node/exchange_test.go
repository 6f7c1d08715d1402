package node

import (
	"testing"
	"time"
)

// TestHandoffLimits: the times of handoffs have the values of docs/disaggregation.md, and a prefill worker beats
// several times in the silence which its decode workers bear, however short prefill-wait is.
func TestHandoffLimits(t *testing.T) {
	if l := handoffLimits(10 * time.Second); l.QueueWait != 10*time.Second || l.Silence != 5*time.Second || l.Budget != time.Minute {
		t.Errorf("with 10 s the limits are %+v", l)
	}
	for _, wait := range []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		decode, prefill := handoffLimits(wait), jobLimits(wait)
		if decode.Validate() != nil || prefill.Validate() != nil || 4*prefill.Heartbeat > decode.Silence {
			t.Errorf("with %v the limits are %+v and %+v", wait, decode, prefill)
		}
	}
}
