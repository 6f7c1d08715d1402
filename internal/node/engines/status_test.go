package engines

import (
	"testing"

	"penstock/internal/engine"
)

// checkedEngine is an engine whose media are compared between two readings of its state.
type checkedEngine struct {
	engine.Engine
	reads int
}

func (e *checkedEngine) read() bool { e.reads++; return e.reads > 1 }

func (e *checkedEngine) Warnings() []engine.Warning {
	if !e.read() {
		return nil
	}
	return []engine.Warning{{Code: engine.WarnMediaCounts}}
}

func (e *checkedEngine) MediaChecks() []engine.MediaCheck {
	if !e.read() {
		return nil
	}
	return []engine.MediaCheck{{Kind: "image", Counted: 1, Reported: 2}}
}

// TestStatusHasTheWarningOfADifference: a status with a difference of media counts has its warning, also when
// the comparison ends while the status is made.
func TestStatusHasTheWarningOfADifference(t *testing.T) {
	e := &remoteEngine{}
	e.mu.workers = []rankWorker{{engine: &checkedEngine{}}}
	if s := e.fullStatus(); len(s.MediaChecks) > 0 && len(s.Warnings) == 0 {
		t.Errorf("%+v", s)
	}
}
