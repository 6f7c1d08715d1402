package frontend

import (
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestHealthWarns: what is wrong with an engine that serves is a note, and no failure.
func TestHealthWarns(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("hi"))
		w.worker(2, constant("hi"))
		if h := w.get("/health"); h.status != 200 || strings.Contains(h.body, "warnings") {
			t.Error(h)
		}
		w.router.mu.warnings = map[kv.WorkerID][]engine.Warning{2: {{Code: engine.WarnNoEvents, Detail: "none came", Remedy: "turn them on"}}, 3: {{Code: "of nobody"}}}
		h := w.get("/health")
		if h.status != 200 || !strings.Contains(h.body, `{"worker_id":2,"model":"bytes","engine":"script","host":"host","pid":1,"state":"ready","warnings":[{"code":"no_kv_events","detail":"none came","remedy":"turn them on"}]}`) ||
			strings.Count(h.body, "warnings") != 1 {
			t.Error(h)
		}
	})
}

// TestHealthOfEnginesThatAreDown: a worker beside an engine that does not answer is no help, so
// that a load balancer must not send here once none answers.
func TestHealthOfEnginesThatAreDown(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("hi"))
		w.worker(2, constant("hi"))
		down := []engine.Warning{{Code: engine.WarnUnreachable, Detail: "it does not answer"}}
		w.router.mu.warnings = map[kv.WorkerID][]engine.Warning{2: down}
		if h := w.get("/health"); h.status != 200 || strings.Count(h.body, `"state":"ready"`) != 1 || !strings.Contains(h.body, `"state":"unreachable"`) {
			t.Error(h)
		}
		w.router.mu.warnings = map[kv.WorkerID][]engine.Warning{1: down, 2: down}
		if h := w.get("/health"); h.status != 503 || !strings.Contains(h.body, `"status":"unhealthy"`) || !strings.Contains(h.body, `"reason":"its engines do not answer"`) {
			t.Error(h)
		}
		w.router.mu.warnings = nil
		if h := w.get("/health"); h.status != 200 {
			t.Error(h)
		}
	})
}
