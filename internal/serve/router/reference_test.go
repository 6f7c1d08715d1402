package router

import (
	"bytes"
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
func withContext(t *testing.T, id kv.WorkerID, context int) (disco.Instance, string) {
	t.Helper()
	card := engine.Card{Name: "m", BlockSize: 4, Ranks: 1, ContextLength: context, VocabSize: 100}
	meta, err := engine.EncodeCard(card)
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta}, card.Checksum()
}

// TestReference: workers are compared with the card that the model is served by, which no new worker
// changes.
func TestReference(t *testing.T) {
	var log bytes.Buffer
	r, err := New(Config{}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	short1, _ := withContext(t, 1, 100)
	long2, long := withContext(t, 2, 200)
	long3, _ := withContext(t, 3, 200)
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
	if n := strings.Count(log.String(), "a worker gets no requests"); n != 1 || !strings.Contains(log.String(), "context_length is 100 here and 200 there") {
		t.Errorf("logged %d times: %s", n, log.String())
	}
	if _, err := r.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: make([]kv.Token, 9), Pin: kv.Worker{ID: 1}}); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "context_length") {
		t.Errorf("pinned to it: %v", err)
	}
	r.setInstances([]disco.Instance{short1})
	if id := picked(); id != 1 {
		t.Errorf("with the last of the old card gone, %d is picked", id)
	}

	// The frontend saw the other workers first.
	r.SetReferenceCard("m", long)
	if id := picked(); id != 1 {
		t.Errorf("none has the frontend's card, and %d is picked", id)
	}
	r.setInstances([]disco.Instance{short1, long3})
	if id := picked(); id != 3 {
		t.Errorf("the frontend serves by the card of 3, and %d is picked", id)
	}
	for _, row := range r.workerTable() {
		if want := map[uint64]string{1: "unfit", 3: "ready"}[row.WorkerID]; row.State != want {
			t.Errorf("worker %d is %s, want %s", row.WorkerID, row.State, want)
		}
	}
	if card, _, err := r.servingCard("m"); err != nil || card.ContextLength != 200 {
		t.Errorf("served by %+v, %v", card, err)
	}
}

// TestReferredIsBounded: reference cards of models that never appear do not accumulate.
func TestReferredIsBounded(t *testing.T) {
	r := serving(t, Config{}, obs.NewMetrics())
	r.SetReferenceCard("m", "x")
	for i := range 5 * maxLost {
		r.SetReferenceCard(strings.Repeat("n", i%97)+string(rune('a'+i%26))+strings.Repeat("o", i/97), "x")
	}
	if n := len(r.mu.referred); n > 2*maxLost || r.mu.referred["m"] != "x" {
		t.Errorf("%d are remembered, of the model that is served %q", n, r.mu.referred["m"])
	}
}
