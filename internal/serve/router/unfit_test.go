package router

import (
	"log/slog"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// withContext returns a worker of the model m with the given context length.
func withContext(t *testing.T, id kv.WorkerID, context int) disco.Instance {
	t.Helper()
	meta, err := engine.EncodeCard(engine.Card{Name: "m", BlockSize: 4, Ranks: 1, ContextLength: context, VocabSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta}
}

// TestReference: workers are compared with the card that the model is served by, which no new worker
// changes.
func TestReference(t *testing.T) {
	r, err := New(Config{}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	short1 := withContext(t, 1, 100)
	long2 := withContext(t, 2, 200)
	long3 := withContext(t, 3, 200)
	picked := func() kv.WorkerID {
		t.Helper()
		ex, err := r.Explain(t.Context(), &route.Request{Model: "m", Tokens: make([]kv.Token, 9)})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range ex.Excluded {
			if !strings.Contains(x.Reason, "context_length is ") {
				t.Errorf("worker %d is excluded because: %s", x.Worker.ID, x.Reason)
			}
		}
		return ex.Decision.Worker.ID
	}
	r.setInstances([]disco.Instance{long2})
	r.setInstances([]disco.Instance{short1, long2})
	r.setInstances([]disco.Instance{short1, long2})
	if id := picked(); id != 2 {
		t.Errorf("a newcomer made the model its own: %d is picked", id)
	}
	if _, err := r.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: make([]kv.Token, 9), Pin: kv.Worker{ID: 1}}); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "context_length") {
		t.Errorf("pinned to it: %v", err)
	}
	r.setInstances([]disco.Instance{short1})
	if id := picked(); id != 1 {
		t.Errorf("with the last of the old card gone, %d is picked", id)
	}

	r.setInstances([]disco.Instance{short1, long3})
	if id := picked(); id != 1 {
		t.Errorf("a newcomer made the model its own again: %d is picked", id)
	}
	for _, row := range r.workerTable() {
		if want := map[uint64]string{1: "ready", 3: "unfit"}[row.WorkerID]; row.State != want {
			t.Errorf("worker %d is %s, want %s", row.WorkerID, row.State, want)
		}
	}
	if m, err := r.servedModel("m"); err != nil || m.Card.ContextLength != 100 {
		t.Errorf("served by %+v, %v", m, err)
	}
}
