package relay

import (
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestKeepFitting: the model keeps its card as long as any worker has it, and is
// made of those that do.
func TestKeepFitting(t *testing.T) {
	of := func(id kv.WorkerID, context int) worker {
		return worker{id: id, card: engine.Card{Name: "m", BlockSize: 4, Ranks: 1, ContextLength: context, VocabSize: 10}}
	}
	made := func(old *model, workers ...worker) (*model, []kv.WorkerID) {
		m := &model{workers: workers}
		m.keepFitting(old)
		var ids []kv.WorkerID
		for _, w := range m.workers {
			ids = append(ids, w.id)
		}
		return m, ids
	}
	m, ids := made(nil, of(2, 100), of(3, 200), of(4, 100))
	if !slices.Equal(ids, []kv.WorkerID{2, 4}) || m.card().ContextLength != 100 {
		t.Errorf("of the first card: %v", ids)
	}
	m, ids = made(m, of(1, 200), of(3, 200), of(4, 100))
	if !slices.Equal(ids, []kv.WorkerID{4}) || m.card().ContextLength != 100 {
		t.Errorf("beside newcomers: %v", ids)
	}
	m, ids = made(m, of(1, 200), of(3, 200))
	if !slices.Equal(ids, []kv.WorkerID{1, 3}) || m.card().ContextLength != 200 {
		t.Errorf("with the old card gone: %v", ids)
	}
}
