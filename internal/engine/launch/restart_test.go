package launch

import (
	"testing"
	"time"
)

func TestRestartPolicy(t *testing.T) {
	r := restartPolicy{limit: 2}
	for i, step := range []struct {
		served time.Duration
		want   bool
	}{
		{time.Second, true},
		{0, true},
		{settledAfter, true}, // a new row begins
		{settledAfter - 1, true},
		{settledAfter - 1, false},
		{settledAfter, true},
	} {
		if got := r.decideRestart(step.served); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
	if (&restartPolicy{}).decideRestart(time.Hour) {
		t.Error("a limit of 0 restarts")
	}
}
