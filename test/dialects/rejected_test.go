package dialects

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"penstock/internal/enginemock"
)

// TestEngineErrorIsTheRequests: a request at which live engines answer 500 is tried twice. The client gets that status
// and the engine's words, and no worker is taken out for it.
func TestEngineErrorIsTheRequests(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		for _, mode := range []string{"tokens", "pass"} {
			if d == enginemock.TRTLLM && mode == "tokens" || mode == "pass" && d == enginemock.LlamaCPP {
				continue // as the first of each do
			}
			t.Run(string(d)+"/"+mode, func(t *testing.T) {
				h := build(t, d, plan{servers: 3, spec: ",mode=" + mode})
				for _, fault := range []enginemock.Fault{{Kind: enginemock.FaultError}, {Kind: enginemock.FaultStreamError}} {
					for _, stream := range []bool{true, false} {
						if fault.Kind == enginemock.FaultStreamError && mode == "pass" {
							continue // a byte is out before it
						}
						what := fmt.Sprintf("%s, stream %v", fault.Kind, stream)
						before := 0
						for _, e := range h.engines {
							if err := e.Faults().Set(fault); err != nil {
								t.Fatal(err)
							}
							before += e.Faults().TriggerCount(fault.Kind)
						}
						got := h.ask(prompt(7, 60), 30, stream, nil)
						struck := -before
						words := "injected error"
						if fault.Kind == enginemock.FaultStreamError {
							words = "EngineCore encountered an issue"
						}
						for _, e := range h.engines {
							struck += e.Faults().TriggerCount(fault.Kind)
						}
						if got.status != http.StatusInternalServerError && fault.Kind == enginemock.FaultError || !strings.Contains(got.err, words) || strings.Contains(got.err, "send it again") {
							t.Errorf("%s: status %d, error %q", what, got.status, got.err)
						}
						if struck != 2 {
							t.Errorf("%s: tried %d times, want 2", what, struck)
						}
					}
				}
				if log := h.log.String(); strings.Contains(log, "a worker does not answer") {
					t.Errorf("a worker was taken out for it:\n%s", log)
				}
			})
		}
	}
}
