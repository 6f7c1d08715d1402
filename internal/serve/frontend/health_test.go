package frontend

import (
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestHealthWarns: a warning about an engine that serves does not make it unhealthy.
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

// TestHealthFollowsTheRouter: a model is healthy while the router could send a request to one of its
// workers, the process while one of its models is, and a probe may ask for one model.
func TestHealthFollowsTheRouter(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("hi"))
		w.worker(2, constant("hi"))
		w.router.mu.states = map[kv.WorkerID]string{2: "not_ready"}
		if h := w.get("/health"); h.status != 200 || strings.Count(h.body, `"state":"ready"`) != 1 || !strings.Contains(h.body, `"state":"not_ready"`) ||
			!strings.Contains(h.body, `{"id":"bytes","aliases":["b"],"status":"healthy","workers":2,"ready_workers":1}`) {
			t.Error(h)
		}
		w.router.mu.states = map[kv.WorkerID]string{1: "quarantined", 2: "not_ready"}
		for _, path := range []string{"/health", "/ready", "/ready?model=bytes", "/health?model=bytes"} {
			if h := w.get(path); h.status != 503 || !strings.Contains(h.body, `"status":"unhealthy","reason":"bytes cannot be served: none of 2 workers can take a request"`) ||
				!strings.Contains(h.body, `"workers":2,"ready_workers":0,"reason":"none of 2 workers`) || strings.Contains(h.body, `"state":"quarantined"`) != strings.HasPrefix(path, "/health") {
				t.Error(path, h)
			}
		}
		w.router.mu.states = nil
		for path, want := range map[string]int{"/health": 200, "/ready": 200, "/ready?model=bytes": 200, "/ready?model=other": 503, "/health?model=other": 503} {
			if h := w.get(path); h.status != want || want == 503 && !strings.Contains(h.body, `"id":"other","status":"unhealthy","workers":0,"ready_workers":0,"reason":"no worker is registered for it"`) {
				t.Error(path, h)
			}
		}
	})
}
