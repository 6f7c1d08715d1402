package fixturetest

import (
	"context"
	"testing"
	"time"
)

// lastWords is how long before the end of the test binary a wait gives up, so that the test can still say what
// it waited for.
const lastWords = 15 * time.Second

// TimeLeft returns how long a test may wait for a state: until shortly before the test binary ends, so that no
// test takes a slow machine for a fault. Without -timeout it is a day. It cannot be called in a synctest bubble.
func TimeLeft(t *testing.T) time.Duration {
	end, ok := t.Deadline()
	if !ok {
		return 24 * time.Hour
	}
	return max(time.Until(end)-lastWords, 0)
}

// PatientContext returns a context which ends after half of TimeLeft, so that a failed wait leaves time for the others.
// NATS' client library gives a call without a deadline 5 s, which a busy machine needs. It cannot be called in a
// synctest bubble.
func PatientContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), TimeLeft(t)/2)
	t.Cleanup(cancel)
	return ctx
}
