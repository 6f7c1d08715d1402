package dialects

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/internal/enginemock"
)

// failedCalls is how many calls to workers failed.
func (h *house) failedCalls() (n int) {
	h.t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^penstock_router_failed_calls_total\{code="unavailable"\} (\d+)$`).FindAllStringSubmatch(h.get("/metrics"), -1) {
		n, _ = strconv.Atoi(m[1])
	}
	return n
}

// TestKilledEngineIsOutAtOnce: what the adapter of an engine that died knows takes its worker out before the requests that
// noticed it go on elsewhere. No more of them fail there than were there, and none fails.
func TestKilledEngineIsOutAtOnce(t *testing.T) {
	const clients = 12
	for range 3 { // it is a race that each round may lose
		h := build(t, enginemock.VLLM, plan{})
		var sent atomic.Int64
		var dead atomic.Bool
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				for i := 0; !dead.Load() || i%50 != 0; i++ {
					if a := h.ask(prompt(100*c+i, 40), 5, true, nil); a.status != http.StatusOK || a.finish != "length" {
						t.Errorf("%+v", a)
						return
					}
					sent.Add(1)
				}
			})
		}
		h.eventually(func() error {
			if n := sent.Load(); n < 50 {
				return fmt.Errorf("%d requests were served", n)
			}
			return nil
		})
		h.engines[0].die()
		dead.Store(true)
		all.Wait()
		if n := h.failedCalls(); n > clients {
			t.Errorf("%d calls failed at an engine that died under at most %d", n, clients)
		}
		if log := h.log.String(); strings.Contains(log, `msg="a worker answers again"`) {
			t.Errorf("its worker came back without it")
		}
	}
}
